"""The ready-made `code_interpreter` tool."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from ._policy import Policy
from ._tools import BAD_CALL, ToolFunction, ToolRegistry, ToolReply
from ._types import Limits, Outcome, RunResult

CODE_INTERPRETER_SPEC: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "A tool for executing code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to execute."}},
            "required": ["code"],
        },
    },
}


class Runner(Protocol):
    """A session, here or on a service."""

    async def run(
        self, code: str, *, limits: Limits | None = None, policy: Policy | None = None
    ) -> RunResult:
        """Run one program."""
        ...


class AnySandbox(Runner, Protocol):
    """A Sandbox or a RemoteSandbox."""

    def session(self, *, limits: Limits | None = None) -> AbstractAsyncContextManager[Runner]:
        """Open an interpreter whose variables persist."""
        ...


def reply_text(result: RunResult) -> str:
    """What a model should see of a result: its output, then why it ended if not by itself."""
    parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
    if result.outcome not in (Outcome.OK, Outcome.FAILED):
        parts.append(f"Error: {result.detail or result.outcome.value}.")
    elif result.outcome is Outcome.FAILED and not result.stderr.strip():
        parts.append(f"Error: the program ended with exit code {result.exit_code}.")
    if result.state_lost:
        parts.append("Note: the interpreter was restarted; earlier variables are gone.")
    text = "\n".join(part for part in parts if part)
    return text or "(no output)"


def code_interpreter(
    sandbox: AnySandbox,
    *,
    concurrency: int = 32,
    limits: Limits | None = None,
    policy: Policy | None = None,
) -> ToolRegistry:
    """A registry with the one tool `code_interpreter(code)`.

    Args:
        sandbox: Where the code runs.
        concurrency: Calls in flight at the same time.
        limits: Ceilings of one call; the sandbox's own when not given.
        policy: What the source may name; the sandbox's own when not given.
    """
    registry = ToolRegistry(concurrency=concurrency)

    def bind(runner: Runner) -> ToolFunction:
        async def run(code: str) -> ToolReply:
            if not code.strip():
                text = "Error: the code is empty; give a Python program in `code`."
                return ToolReply(text=text, outcome=BAD_CALL, ok=False)
            result = await runner.run(code, limits=limits, policy=policy)
            return ToolReply(
                text=reply_text(result),
                outcome=result.outcome.value,
                ok=result.ok,
                wall_time_s=result.wall_time_s,
            )

        return run

    @asynccontextmanager
    async def open_session() -> AsyncGenerator[ToolFunction, None]:
        async with sandbox.session(limits=limits) as session:
            yield bind(session)

    registry.add(bind(sandbox), spec=CODE_INTERPRETER_SPEC, open_session=open_session)
    return registry
