"""Run recorded tool calls again, and say how each output compares."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice
from math import isclose
from typing import Any, Literal, Protocol

from ._findings import Finding, finding
from ._records import Kind, ReplayStatus, ToolCall, ToolResult, Trajectory


class Reply(Protocol):
    """What an executor says about one call."""

    @property
    def text(self) -> str:
        """What the model sees."""
        ...

    @property
    def outcome(self) -> str:
        """`ok`, `failed`, `timed_out`, `refused`, ..."""
        ...


class ExecutorSession(Protocol):
    """Runs calls; variables live from one to the next."""

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        """Run one call. Raises where the executor itself did not work."""
        ...


class Executor(Protocol):
    """What `validate` needs; a tool registry of retool-sandbox satisfies it.

    The executor limits how many calls run at once, and for how long.
    """

    def session(self) -> AbstractAsyncContextManager[ExecutorSession]:
        """Open a session with fresh variables."""
        ...


State = Literal["kept", "fresh"]
Action = Literal["keep", "repair", "drop"]

BAD = {
    ReplayStatus.MISMATCH: "replay_mismatch",
    ReplayStatus.NONDETERMINISTIC: "replay_nondeterministic",
    ReplayStatus.STATE_DEPENDENT: "replay_state",
    ReplayStatus.TIMEOUT: "replay_timeout",
    ReplayStatus.REFUSED: "replay_refused",
}
"""Statuses that `repair` and `drop` act on, and the code each is reported under."""

# What interpreters write where a program printed nothing; data sets record an empty text.
_NOTHING = frozenset({"(no output)", "[no output]"})
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
# Not `Error` alone, nor `Warning`: programs print "Error: 0.012" and mean a number.
_ERROR = re.compile(
    r"^(?:[\w.]*\.)?(\w+Error|\w*Exception|KeyboardInterrupt|SystemExit|StopIteration)(?=:|\s*$)",
    re.MULTILINE,
)
_TRACEBACK = re.compile(r"^Traceback ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A trajectory with the status of each of its results."""

    trajectory: Trajectory
    findings: tuple[Finding, ...]
    kept: bool
    """False where the action was `drop` and a result was bad."""


def compare_outputs(recorded: str, replayed: str) -> ReplayStatus:
    """Compare two outputs; white space at the ends does not count.

    Floats are close within a relative 1e-9: that covers the last digits of a printed double, which
    differ between machines, and not a seventh digit that somebody made up.
    """
    was, now = (_said(text) for text in (recorded, replayed))
    if was == now:
        return ReplayStatus.EXACT
    if _NUMBER.sub("#", was).split() == _NUMBER.sub("#", now).split():
        pairs = zip(_NUMBER.findall(was), _NUMBER.findall(now), strict=True)
        if all(a == b or _close(a, b) for a, b in pairs):
            return ReplayStatus.NUMERIC_CLOSE
    (printed_was, error_was), (printed_now, error_now) = _raised(was), _raised(now)
    if error_was is None or error_was != error_now:
        return ReplayStatus.MISMATCH
    # Some interpreters record of a failed program the error only.
    if not printed_was or compare_outputs(printed_was, printed_now) in _SAME:
        return ReplayStatus.SAME_ERROR
    return ReplayStatus.MISMATCH


_SAME = (ReplayStatus.EXACT, ReplayStatus.NUMERIC_CLOSE)


def _raised(output: str) -> tuple[str, str | None]:
    """What a program printed before it failed, and the name of the last error."""
    errors = list(_ERROR.finditer(output))
    if not errors:
        return output, None
    begins = _TRACEBACK.search(output) or errors[0]
    return output[: begins.start()].strip(), errors[-1][1]


def _said(output: str) -> str:
    text = output.strip()
    return "" if text in _NOTHING else text


def _close(a: str, b: str) -> bool:
    if a.lstrip("+-").isdigit() and b.lstrip("+-").isdigit():
        return False  # two integers that differ are different
    return isclose(float(a), float(b), rel_tol=1e-9, abs_tol=1e-12)


def _status(result: ToolResult, reply: Reply) -> ReplayStatus:
    status = compare_outputs(result.recorded, reply.text)
    if status is ReplayStatus.MISMATCH and reply.outcome == "timed_out":
        return ReplayStatus.TIMEOUT
    if status is ReplayStatus.MISMATCH and reply.outcome in ("refused", "bad_call"):
        return ReplayStatus.REFUSED
    return status


async def replay(
    trajectory: Trajectory, executor: Executor, *, state: State = "kept", deadline_s: float = 600.0
) -> Trajectory:
    """Run every call of a trajectory again and store output and status in its results.

    Args:
        trajectory: Calls without a recorded result get none; the last of them are not run.
        executor: Runs the calls.
        state: `kept` runs them in one session, `fresh` each in its own.
        deadline_s: For the whole trajectory; the executor's own limits should strike first.

    Raises:
        TimeoutError: The executor did not answer in time.
    """
    calls, places = _pairs(trajectory)
    if not places:
        return trajectory
    async with asyncio.timeout(deadline_s):
        replies = await _run(executor, calls, state)
        checked: dict[int, ToolResult] = {}
        for i, place in places.items():
            result = trajectory.segments[place].result
            assert result is not None
            status = _status(result, replies[i])
            if status is ReplayStatus.MISMATCH:
                status = await _look_again(executor, calls[: i + 1], state, result, replies[i])
            checked[place] = result.model_copy(
                update={"replayed": replies[i].text, "status": status}
            )
    segments = tuple(
        segment.model_copy(update={"result": checked[i]}) if i in checked else segment
        for i, segment in enumerate(trajectory.segments)
    )
    return trajectory.model_copy(update={"segments": segments})


def _pairs(trajectory: Trajectory) -> tuple[list[ToolCall], dict[int, int]]:
    """List the calls up to the last that has a result; and the segment of each one's result.

    A call whose result is missing is run too, because later calls may need what it defines, but the
    results behind the next words are not its own; nor, in a layout where a result stands right
    behind its call, those behind the next call.
    """
    one_by_one = trajectory.dialect in ("retool", "tora")
    calls: list[ToolCall] = []
    places: dict[int, int] = {}
    waiting: list[int] = []
    for i, segment in enumerate(trajectory.segments):
        if segment.call is not None:
            if one_by_one:
                waiting.clear()
            waiting.append(len(calls))
            calls.append(segment.call)
        elif segment.kind is not Kind.RESULT:
            waiting.clear()
        elif waiting:
            places[waiting.pop(0)] = i
    return calls[: max(places, default=-1) + 1], places


async def _run(executor: Executor, calls: Sequence[ToolCall], state: State) -> list[Reply]:
    replies: list[Reply] = []
    if state == "fresh":
        for call in calls:
            async with executor.session() as session:
                replies.append(await session.execute(call.name, call.arguments))
        return replies
    async with executor.session() as session:
        for call in calls:
            replies.append(await session.execute(call.name, call.arguments))  # noqa: PERF401
    return replies


async def _look_again(
    executor: Executor, calls: Sequence[ToolCall], state: State, result: ToolResult, reply: Reply
) -> ReplayStatus:
    """Tell a wrong record from one that depends on chance or on the other choice of state."""
    other: State = "fresh" if state == "kept" else "kept"
    if len(calls) > 1:
        elsewhere = (await _run(executor, calls[-1:] if other == "fresh" else calls, "kept"))[-1]
        if _status(result, elsewhere) in _SAME:
            return ReplayStatus.STATE_DEPENDENT
    again = (await _run(executor, calls if state == "kept" else calls[-1:], "kept"))[-1]
    if again.text != reply.text:
        return ReplayStatus.NONDETERMINISTIC
    return ReplayStatus.MISMATCH


def judge(trajectory: Trajectory, action: Action) -> Validated:
    """Report the bad results of a replayed trajectory, and act on them.

    `repair` shows the model the replayed output from the first bad result on: everything behind it
    was recorded in a world that did not exist.
    """
    out: list[Finding] = []
    first_bad = -1
    call = 0
    for i, segment in enumerate(trajectory.segments):
        if segment.result is None:
            continue
        call += 1
        code = BAD.get(segment.result.status)
        if code is None:
            continue
        first_bad = i if first_bad < 0 else first_bad
        evidence = (
            f"recorded {segment.result.recorded!r:.200}, replayed {segment.result.replayed!r:.200}"
        )
        out.append(_found(trajectory, code, f"call {call}", evidence))
    if first_bad >= 0 and action == "repair":
        trajectory, quotes = _repaired(trajectory, first_bad)
        out += quotes
    return Validated(
        trajectory=trajectory,
        findings=tuple(out),
        kept=first_bad < 0 or action != "drop",
    )


def _found(
    trajectory: Trajectory, code: str, where: str, evidence: str, span: tuple[int, int] = (-1, -1)
) -> Finding:
    return finding(
        code,
        trajectory.provenance,
        trajectory.problem.problem_id,
        where=where,
        evidence=evidence,
        span=span,
    )


def _repaired(trajectory: Trajectory, first: int) -> tuple[Trajectory, list[Finding]]:
    segments = list(trajectory.segments)
    quotes: list[Finding] = []
    stale: set[str] = set()
    for i, segment in enumerate(segments):
        if i < first:
            continue
        if segment.result is not None and segment.result.replayed is not None:
            result = segment.result
            segments[i] = segment.model_copy(
                update={"result": result.model_copy(update={"shown": "replayed"})}
            )
            if result.status in BAD:
                stale |= _quotable(result.recorded) - _quotable(result.replayed or "")
            continue
        body = segment.text if segment.call is None else segment.call.arguments
        for token in sorted(stale):
            at = body.find(token)
            if at >= 0:
                where = f"segment {i + 1}"
                quotes.append(
                    _found(
                        trajectory, "quotes_replaced_output", where, token, (at, at + len(token))
                    )
                )
    repaired = trajectory.model_copy(update={"segments": tuple(segments)})
    number = sum(s.result is not None for s in segments[: first + 1])
    return repaired.with_step(f"repair:output {number}"), quotes


def _quotable(output: str) -> set[str]:
    """Numbers of three characters or more, and words of five or more."""
    numbers = {n for n in _NUMBER.findall(output) if len(n) >= 3}
    return numbers | set(re.findall(r"[^\W\d_]{5,}", output))


async def validate(
    trajectories: Iterable[Trajectory],
    executor: Executor,
    *,
    state: State = "kept",
    action: Action = "keep",
    rows_at_once: int = 64,
    deadline_s: float = 600.0,
) -> AsyncIterator[Validated]:
    """Replay many trajectories and act on bad results; order is kept.

    Args:
        trajectories: Read lazily, `rows_at_once` at a time.
        executor: Limits by itself how many calls run at once.
        state: `kept` runs a trajectory's calls in one session, `fresh` each in its own.
        action: `keep` only marks, `repair` shows the replayed output from the first bad result on,
            `drop` says `kept=False`.
        rows_at_once: Trajectories in flight.
        deadline_s: Per trajectory.

    Raises:
        TimeoutError: The executor did not answer in time.
        ExceptionGroup: The executor failed; what it raised is inside.
    """
    rows = iter(trajectories)
    while batch := list(islice(rows, rows_at_once)):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(replay(row, executor, state=state, deadline_s=deadline_s))
                for row in batch
            ]
        for task in tasks:
            yield judge(task.result(), action)
