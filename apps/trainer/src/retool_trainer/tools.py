"""The Python tool of a run: a sandbox on this machine, or sandbox services elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retool_rollout import ToolExecutor
from retool_sandbox import Limits, Sandbox, code_interpreter

from .config import SandboxConfig


@asynccontextmanager
async def open_tools(config: SandboxConfig) -> AsyncIterator[ToolExecutor]:
    """Open the `code_interpreter` of a run and close all of it at the end."""
    limits = Limits(wall_time_s=config.wall_time_s, memory_mib=config.memory_mib)
    if config.urls:
        from retool_sandbox import RemoteSandbox

        sandbox = RemoteSandbox(config.urls, limits=limits)
    else:
        sandbox = Sandbox(tier=config.tier, isolation=config.isolation, limits=limits)
    async with sandbox:
        yield code_interpreter(sandbox, concurrency=config.concurrency)
