"""The Python tool of a run: a sandbox on this machine, or sandbox services elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from retool_rollout import ToolExecutor, ToolReply, ToolSession
from retool_sandbox import (
    Limits,
    RunLost,
    Sandbox,
    SandboxError,
    ToolRegistry,
    code_interpreter,
)
from retool_trainer.errors import RunRefusedError

from .config import SandboxConfig

_ATTEMPTS = 3


class ToolsError(RunRefusedError):
    """The sandbox cannot be had as configured; the message says what to do."""


@asynccontextmanager
async def open_tools(config: SandboxConfig) -> AsyncIterator[ToolExecutor]:
    """Open the `code_interpreter` of a run and close all of it at the end.

    Raises:
        ToolsError: The sandbox does not open, e.g. its isolation cannot be had here.
    """
    limits = Limits(wall_time_s=config.wall_time_s, memory_mib=config.memory_mib)
    async with AsyncExitStack() as stack:
        try:
            if config.urls:
                from retool_sandbox import RemoteSandbox

                sandbox = RemoteSandbox(config.urls, limits=limits)
            else:
                sandbox = Sandbox(tier=config.tier, isolation=config.isolation, limits=limits)
            await stack.enter_async_context(sandbox)
        except SandboxError as error:
            raise ToolsError(f"the sandbox does not open: {error}") from error
        yield _AgainWhenLost(code_interpreter(sandbox, concurrency=config.concurrency))


class _AgainWhenLost:
    """Runs a program again whose run was lost with its interpreter.

    A stateless run leaves nothing behind, so repeating it is safe, and the trajectory need not end
    for a fault of ours. A session's variables are gone: there the loop resumes the trajectory.
    """

    def __init__(self, tools: ToolRegistry) -> None:
        self._tools = tools

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        """The tools."""
        return self._tools.specs

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> ToolReply:
        """Run one call, a few times if need be."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._tools.execute(name, arguments)
            except RunLost:
                continue
        return await self._tools.execute(name, arguments)

    def session(self) -> AbstractAsyncContextManager[ToolSession]:
        """Open a session of the tools themselves."""
        return self._tools.session()
