"""The names of slime's and vime's retool `tool_sandbox.py`, on the real sandbox.

Put `from retool_sandbox.compat.tool_sandbox import *` where the example imports its own file. What
is different: programs are isolated by the kernel, calls run concurrently without blocking the event
loop, `memory_limit` holds, and `execute_tool` takes its limit once, inside; `SEMAPHORE` is free for
the caller.
"""

import asyncio
import atexit
import os
import re
import threading
from collections.abc import Mapping
from typing import Any

from retool_sandbox._interpreter import CODE_INTERPRETER_SPEC, reply_text
from retool_sandbox._policy import Policy
from retool_sandbox._sandbox import Sandbox
from retool_sandbox._sync import LoopThread
from retool_sandbox._tools import ToolRegistry as _Registry
from retool_sandbox._tools import ToolReply
from retool_sandbox._types import Limits, Outcome

__all__ = ["SEMAPHORE", "TOOL_CONFIGS", "PythonSandbox", "ToolRegistry", "tool_registry"]

TOOL_CONFIGS: dict[str, Any] = {
    "max_turns": 16,
    "max_tool_calls": 16,
    "tool_concurrency": 32,
    "python_timeout": 120,
    "python_memory_limit": "4GB",
    "python_cpu_limit": 1,
}
SEMAPHORE = asyncio.Semaphore(TOOL_CONFIGS["tool_concurrency"])

_UNITS_MIB = {"KB": 1 / 1024, "MB": 1, "GB": 1024, "TB": 1024 * 1024}


class _Shared:
    """One sandbox per process, in a thread of its own: the example has no place to open one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._sandbox: Sandbox | None = None
        self._pid = 0

    def open(self) -> tuple[Sandbox, LoopThread]:
        with self._lock:
            if self._sandbox is None or self._thread is None or self._pid != os.getpid():
                thread, sandbox = LoopThread("retool-sandbox-compat"), Sandbox(tier="math")
                try:
                    thread.run(sandbox.__aenter__())
                except BaseException:
                    thread.stop()
                    raise
                self._pid, self._thread, self._sandbox = os.getpid(), thread, sandbox
                atexit.register(self.close, self._pid)
            return self._sandbox, self._thread

    def close(self, pid: int) -> None:
        thread, sandbox = self._thread, self._sandbox
        if pid != os.getpid() or thread is None or sandbox is None:
            return
        self._thread = self._sandbox = None
        thread.run(sandbox.__aexit__())
        thread.stop()


_shared = _Shared()


def _memory_mib(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"memory_limit must look like '100MB' or '4GB', got {text!r}")
    return max(16, round(float(match[1]) * _UNITS_MIB[match[2].upper()]))


class PythonSandbox:
    """Runs code and returns text for the model, as the example does.

    Args:
        timeout: Wall seconds per call.
        memory_limit: Such as "100MB" or "4GB".
    """

    def __init__(self, timeout: float = 10, memory_limit: str = "100MB") -> None:
        self.timeout = timeout
        self.memory_limit = memory_limit
        self.allowed_modules: set[str] = set(Policy.math().allowed_modules or ())

    def _limits(self) -> Limits:
        return Limits(wall_time_s=self.timeout, memory_mib=_memory_mib(self.memory_limit))

    def _policy(self) -> Policy:
        return Policy(allowed_modules=frozenset(self.allowed_modules))

    def _check_code_safety(self, code: str) -> tuple[bool, str]:
        """Whether the policy lets the code run, and why not. The code is parsed in the jail."""
        sandbox, thread = _shared.open()
        reason = thread.run(sandbox.review(code, self._policy()))
        return reason is None, reason or "Code is safe"

    async def execute_code(self, code: str) -> str:
        """Run code; output, or a text that starts with "Error: "."""
        return (await self.reply(code)).text

    async def reply(self, code: str) -> ToolReply:
        """Run code; text and outcome."""
        if not code.strip():
            return ToolReply(text="Error: No code provided", outcome="bad_call", ok=False)
        sandbox, _ = await asyncio.to_thread(_shared.open)
        result = await sandbox.run(code, limits=self._limits(), policy=self._policy())
        text = reply_text(result)
        if result.outcome is Outcome.FAILED and result.traceback is not None:
            text = "\n".join(part for part in (result.stdout.rstrip("\n"), "Error: ") if part)
            text += result.traceback.rstrip("\n")
        return ToolReply(
            text=text,
            outcome=result.outcome.value,
            ok=result.ok,
            wall_time_s=result.wall_time_s,
        )


class ToolRegistry:
    """The example's registry: specs for the prompt, and `execute_tool`."""

    def __init__(self) -> None:
        self.python_sandbox = PythonSandbox(
            timeout=TOOL_CONFIGS["python_timeout"],
            memory_limit=TOOL_CONFIGS["python_memory_limit"],
        )
        self._registry = _Registry(concurrency=TOOL_CONFIGS["tool_concurrency"])
        self.tools: dict[str, Mapping[str, Any]] = {}

        async def code_interpreter(code: str) -> ToolReply:
            return await self.python_sandbox.reply(code)

        self._registry.add(code_interpreter, spec=CODE_INTERPRETER_SPEC)
        self.register_tool("code_interpreter", CODE_INTERPRETER_SPEC)

    def register_tool(self, name: str, tool_spec: Mapping[str, Any]) -> None:
        """Show a tool in the prompt."""
        self.tools[name] = tool_spec

    def get_tool_specs(self) -> list[Mapping[str, Any]]:
        """The tools in OpenAI's form."""
        return list(self.tools.values())

    async def execute_tool(self, tool_name: str, arguments: str | Mapping[str, Any]) -> str:
        """Run a call and return the text for the model."""
        return (await self._registry.execute(tool_name, arguments)).text


tool_registry = ToolRegistry()
