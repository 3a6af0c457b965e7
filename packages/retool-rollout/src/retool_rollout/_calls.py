"""Runs the calls of a turn and records what the policy reads of each."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ._dialect import Dialect
from ._end import End
from ._limits import Limits, cut_text
from ._tools import BAD_CALL, NOT_RUN, ToolExecutor, ToolSession
from ._trajectory import CallRecord, Status, StopReason, TurnRecord
from ._turn import MalformedCall, ToolCallRequest

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
"""For a session to close: the time limit of the trajectory may have passed already."""


class Calls:
    """The calls of one trajectory, each alone or, stateful, one after the other in a session."""

    def __init__(
        self, session: ToolSession, dialect: Dialect, limits: Limits, *, stateful: bool
    ) -> None:
        self._session, self._dialect = session, dialect
        self._limits, self._stateful = limits, stateful

    @classmethod
    @asynccontextmanager
    async def open(
        cls, tools: ToolExecutor, dialect: Dialect, limits: Limits, *, stateful: bool, name: str
    ) -> AsyncGenerator["Calls"]:
        """Hold a session of the tools for the block, if `stateful`.

        Raises:
            End: Aborted: there is no session to be had.
        """
        if not stateful:
            yield cls(tools, dialect, limits, stateful=False)
            return
        manager = tools.session()
        try:
            session = await manager.__aenter__()
        except Exception as error:
            problem = f"no tool session: {error!r}"
            raise End(Status.ABORTED, StopReason.TOOL_ERROR, problem) from error
        try:
            yield cls(session, dialect, limits, stateful=True)
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await manager.__aexit__(None, None, None)
            except Exception as error:  # noqa: BLE001 - the trajectory is whole, whatever became of its session
                logger.warning("problem %s: closing its tools: %r", name, error)

    async def execute(
        self, calls: Sequence[ToolCallRequest | MalformedCall], budget: int
    ) -> list[CallRecord]:
        """Run the calls of a turn; those beyond `budget` or the parallel limit are told so.

        Raises:
            End: Aborted: the machinery failed, and a failure of ours is no tool output.
        """
        allowed = min(budget, self._limits.parallel_calls)
        if not self._stateful:
            return await _together([self._call(call, i < allowed) for i, call in enumerate(calls)])
        records: list[CallRecord] = []
        for i, call in enumerate(calls):
            records += await _together([self._call(call, i < allowed)])
        return records

    async def replay(self, turns: Sequence[TurnRecord]) -> None:
        """Bring a new session to where the one of an interrupted trajectory stood."""
        for turn in turns:
            for call in turn.calls:
                if call.outcome not in (BAD_CALL, NOT_RUN):
                    request = ToolCallRequest(name=call.name, arguments=call.arguments)
                    await _together([self._call(request, allowed=True)])

    async def _call(self, call: ToolCallRequest | MalformedCall, allowed: bool) -> CallRecord:
        name, arguments = "", dict[str, Any]()
        if isinstance(call, ToolCallRequest):
            name, arguments = call.name, dict(call.arguments)
        if not allowed:
            most = f"{self._limits.parallel_calls} calls per turn and {self._limits.calls} in all"
            text = f"Error: this call was not executed: at most {most}."
            return _not_executed(name, arguments, NOT_RUN, self._cut(text))
        if isinstance(call, MalformedCall):
            return _not_executed("", {}, BAD_CALL, self._cut(self._dialect.hint(call)))
        try:
            reply = await self._session.execute(name, arguments)
        except Exception as error:  # law 4: whatever failed, it is no tool output
            problem = f"{name}: {type(error).__name__}: {error}"
            raise End(Status.ABORTED, StopReason.TOOL_ERROR, problem) from error
        return CallRecord(
            name=name,
            arguments=arguments,
            outcome=reply.outcome,
            ok=reply.ok,
            text=self._cut(reply.text),
            wall_time_s=reply.wall_time_s,
        )

    def _cut(self, text: str) -> str:
        return cut_text(text, self._limits.observation_chars, self._limits.observation_cut)


async def _together(work: Sequence[Coroutine[Any, Any, CallRecord]]) -> list[CallRecord]:
    """Run all of it; the first failure ends the rest.

    A tool may answer its cancellation with an error. In tasks of their own, watched from here, that
    error cannot take the place of the cancellation, as it would in a `TaskGroup` or `gather`.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        errors = [task.exception() for task in tasks if not task.cancelled()]
    for error in errors:
        if error is not None:
            raise error
    return [task.result() for task in tasks]


def _not_executed(name: str, arguments: dict[str, Any], outcome: str, text: str) -> CallRecord:
    return CallRecord(
        name=name, arguments=arguments, outcome=outcome, ok=False, text=text, wall_time_s=0.0
    )
