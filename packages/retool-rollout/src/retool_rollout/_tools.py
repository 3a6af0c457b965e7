"""What the loop needs from whoever runs the tools."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

BAD_CALL = "bad_call"
"""Outcome of a call that no tool ran: unknown tool, bad arguments, or not parsable."""
NOT_RUN = "not_run"
"""Outcome of a call beyond a limit: it was understood and deliberately not executed."""


class ToolReply(Protocol):
    """How one call ended. A program's failure is a reply; the machinery's is an exception."""

    @property
    def text(self) -> str:
        """What the model reads."""
        ...

    @property
    def outcome(self) -> str:
        """One word: `ok`, `failed`, `timed_out`, ..., or `bad_call`."""
        ...

    @property
    def ok(self) -> bool:
        """The call was executed and succeeded."""
        ...

    @property
    def wall_time_s(self) -> float:
        """Seconds that the call took."""
        ...


class ToolSession(Protocol):
    """Something that executes calls; a session keeps state between them."""

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        """The tools in OpenAI's `{"type": "function", "function": {...}}` form."""
        ...

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> ToolReply:
        """Run one call. The concurrency limit is taken in here and nowhere else."""
        ...


class ToolExecutor(ToolSession, Protocol):
    """A `ToolSession` that can open further sessions, one per trajectory."""

    def session(self) -> AbstractAsyncContextManager[ToolSession]:
        """Open a session whose state lives until the context ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A plain `ToolReply`."""

    text: str
    outcome: str = "ok"
    ok: bool = True
    wall_time_s: float = 0.0


class NoTools:
    """The executor of a rollout without tools: it lists none, and says so when called."""

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        """No tools."""
        return ()

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        """Answer that there is nothing to call."""
        return Reply(
            text=f"Error: there is no tool {name!r}; no tool is available here.",
            outcome=BAD_CALL,
            ok=False,
        )

    @asynccontextmanager
    async def session(self) -> AsyncGenerator["NoTools"]:
        """Open a session, which is this same object."""
        yield self
