import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from retool_data import (
    Problem,
    Provenance,
    ReplayStatus,
    Segment,
    Trajectory,
    Validated,
    compare_outputs,
    validate,
)


def trajectory(*steps: tuple[str, str] | str, name: str = "p") -> Trajectory:
    """Pairs are code and recorded output; a text is prose."""
    segments: list[Segment] = []
    for step in steps:
        if isinstance(step, str):
            segments.append(Segment.of_text(step))
        else:
            segments.append(Segment.of_call("code_interpreter", {"code": step[0]}))
            segments.append(Segment.of_result(step[1]))
    problem = Problem(
        problem_id=name, statement="x", provenance=Provenance(source="t.jsonl", row=7)
    )
    return Trajectory(problem=problem, segments=tuple(segments))


async def run(rows: list[Trajectory], executor: Any, **options: Any) -> list[Validated]:
    return [row async for row in validate(rows, executor, **options)]


def statuses(row: Validated) -> list[str]:
    return [s.result.status.value for s in row.trajectory.segments if s.result is not None]


@pytest.mark.parametrize(
    ("recorded", "replayed", "status"),
    [
        ("18\n", "18", ReplayStatus.EXACT),
        ("", "(no output)", ReplayStatus.EXACT),
        ("0.30000000000000004", "0.3", ReplayStatus.NUMERIC_CLOSE),
        ("[1.4142135623730951, 2]", "[1.414213562373095, 2]", ReplayStatus.NUMERIC_CLOSE),
        ("12.106549", "12.106550", ReplayStatus.MISMATCH),
        ("10.000000", "10.000002", ReplayStatus.MISMATCH),
        ("100000000000", "100000000001", ReplayStatus.MISMATCH),
        ("2", "2.0", ReplayStatus.NUMERIC_CLOSE),
        ("x = 2.0", "y = 2.0", ReplayStatus.MISMATCH),
        (
            "Traceback ...\nNameError: name 'x' is not defined",
            "Traceback (most recent call last):\n  File 1\nNameError: name 'x' is not defined.",
            ReplayStatus.SAME_ERROR,
        ),
        ("NameError: x", "TypeError: x", ReplayStatus.MISMATCH),
        ("42", "NameError: x", ReplayStatus.MISMATCH),
        ("Error: 0.012", "Error: 0.013", ReplayStatus.MISMATCH),
        ("Warning: a", "Warning: b", ReplayStatus.MISMATCH),
        ("5\nNameError: x", "7\nNameError: y", ReplayStatus.MISMATCH),
        ("5.0\nNameError: x", "5\nTraceback ...\nNameError: y", ReplayStatus.SAME_ERROR),
        ("NameError: x", "5\nTraceback ...\nNameError: y", ReplayStatus.SAME_ERROR),
    ],
)
def test_outputs_are_compared(recorded: str, replayed: str, status: ReplayStatus) -> None:
    assert compare_outputs(recorded, replayed) is status


async def test_state_is_kept_across_the_calls_of_a_trajectory(executor: Any) -> None:
    row = trajectory(("x = 2", ""), ("print(x + 1)", "3"))
    (result,) = await run([row], executor)
    assert statuses(result) == ["exact", "exact"]
    assert executor.sessions == 1
    assert result.findings == ()


async def test_blocks_that_share_state_are_told_from_wrong_ones(executor: Any) -> None:
    row = trajectory(("x = 2", ""), ("print(x + 1)", "3"), ("print(5)", "6"))
    (result,) = await run([row], executor, state="fresh")
    assert statuses(result) == ["exact", "state_dependent", "mismatch"]
    assert [found.code for found in result.findings] == ["replay_state", "replay_mismatch"]


async def test_an_output_recorded_without_state_is_state_dependent(executor: Any) -> None:
    row = trajectory(
        ("x = 2", ""), ("try:\n    print(x)\nexcept NameError:\n    print('no')", "no")
    )
    (result,) = await run([row], executor)
    assert statuses(result) == ["exact", "state_dependent"]


async def test_chance_is_told_from_a_wrong_record(executor: Any) -> None:
    row = trajectory(("import random\nprint(random.random())", "0.5"))
    (result,) = await run([row], executor)
    assert statuses(result) == ["nondeterministic"]


async def test_an_output_that_nobody_executed_is_a_mismatch_with_its_evidence(
    executor: Any,
) -> None:
    (result,) = await run([trajectory(("print(2 ** 10)", "1025"))], executor)
    (found,) = result.findings
    assert (found.code, found.source, found.row, found.where) == (
        "replay_mismatch",
        "t.jsonl",
        7,
        "call 1",
    )
    assert "recorded '1025', replayed '1024\\n'" in found.evidence
    assert result.kept


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("timed_out", "timeout"), ("refused", "refused"), ("bad_call", "refused")],
)
async def test_limits_and_refusals_have_their_own_class(
    executor: Any, outcome: str, status: str
) -> None:
    executor.outcomes["loop()"] = outcome
    (result,) = await run([trajectory(("loop()", "1"))], executor)
    assert statuses(result) == [status]


async def test_drop_says_which_rows_to_leave_out(executor: Any) -> None:
    rows = [trajectory(("print(1)", "1"), name="good"), trajectory(("print(1)", "2"), name="bad")]
    results = await run(rows, executor, action="drop")
    assert [(r.trajectory.problem.problem_id, r.kept) for r in results] == [
        ("good", True),
        ("bad", False),
    ]


async def test_repair_shows_the_replay_from_the_first_bad_output_on(executor: Any) -> None:
    row = trajectory(
        ("print(1)", "1"),
        ("print(3.14159)", "3.14160"),
        "So it is about 3.14160.",
        ("print(2)", "2"),
    )
    (result,) = await run([row], executor, action="repair")
    seen = [(s.result.text.strip(), s.result.shown) for s in result.trajectory.segments if s.result]
    assert seen == [("1", "recorded"), ("3.14159", "replayed"), ("2", "replayed")]
    assert [found.code for found in result.findings] == [
        "replay_mismatch",
        "quotes_replaced_output",
    ]
    quote = result.findings[1]
    assert quote.evidence == "3.14160"
    assert "So it is about 3.14160."[quote.start : quote.end] == "3.14160"
    assert result.trajectory.provenance.steps == ("repair:output 2",)


async def test_a_call_without_a_recorded_output_is_not_run(executor: Any) -> None:
    row = trajectory(("print(1)", "1"))
    last = Segment.of_call("code_interpreter", {"code": "print(9)"})
    row = row.model_copy(update={"segments": (*row.segments, last)})
    (result,) = await run([row], executor)
    assert executor.runs == ["print(1)"]
    assert statuses(result) == ["exact"]


@pytest.mark.parametrize(("words", "dialect"), [(["So:"], "messages"), ([], "retool")])
async def test_a_result_belongs_to_the_call_before_it_though_an_earlier_one_has_none(
    words: list[str], dialect: str, executor: Any
) -> None:
    row = trajectory(*words, ("print(x)", "2"))
    first = Segment.of_call("code_interpreter", {"code": "x = 2\nprint(1)"})
    row = row.model_copy(update={"segments": (first, *row.segments), "dialect": dialect})
    (result,) = await run([row], executor)
    assert statuses(result) == ["exact"]


async def test_rows_without_calls_pass(executor: Any) -> None:
    (result,) = await run([trajectory("One.")], executor)
    assert result.kept
    assert executor.sessions == 0


async def test_order_is_kept_over_several_batches(executor: Any) -> None:
    rows = [trajectory((f"print({i})", str(i)), name=str(i)) for i in range(10)]
    results = await run(rows, executor, rows_at_once=3)
    assert [r.trajectory.problem.problem_id for r in results] == [str(i) for i in range(10)]


class Stuck:
    @asynccontextmanager
    async def session(self) -> Any:
        yield self

    async def execute(self, name: str, arguments: Any) -> Any:
        await asyncio.sleep(3600)


async def test_an_executor_that_does_not_answer_is_an_error_and_no_output() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run([trajectory(("print(1)", "1"))], Stuck(), deadline_s=0.05)
    assert caught.group_contains(TimeoutError)


class Broken(Stuck):
    async def execute(self, name: str, arguments: Any) -> Any:
        raise RuntimeError("the sandbox is gone")


async def test_a_failure_of_the_executor_propagates() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run([trajectory(("print(1)", "1"))], Broken())
    assert caught.group_contains(RuntimeError, match="the sandbox is gone")
