"""Evaluate an endpoint: n samples of each problem, graded, kept as they come, resumable."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ._dialect import Dialect
from ._engine import Engine, Sampling
from ._groups import rollout_groups
from ._limits import Limits
from ._metrics import RolloutMetrics
from ._problems import EvalProblem
from ._record import read_jsonl, trajectory_to_dict, write_json
from ._statistics import summarise
from ._tools import ToolExecutor
from ._trajectory import Status, Trajectory

logger = logging.getLogger(__name__)

ATTEMPTS = 3

Grader = Callable[[Trajectory, str], Awaitable[bool | None]]
"""(trajectory, gold) -> right, wrong, or None: could not be graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One sample of one problem."""

    problem: EvalProblem
    sample: int

    @property
    def problem_id(self) -> str:
        return self.problem.problem_id

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        return self.problem.messages


async def evaluate(
    problems: Sequence[EvalProblem],
    *,
    num_samples: int,
    folder: Path,
    settings: Mapping[str, Any],
    engine: Engine,
    tools: ToolExecutor | None,
    dialect: Dialect,
    limits: Limits,
    sampling: Sampling,
    concurrency: int,
    grader: Grader,
    stateful: bool = False,
    on_sample: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Sample, grade and summarise.

    Writes `settings.json`, `samples.jsonl` (a record as soon as its trajectory ends) and
    `summary.json` into the folder.
    Samples that are there already are not made again; aborted ones are no samples, and are tried
    again next time.

    Args:
        problems: What to solve.
        num_samples: n.
        folder: Of this evaluation, and no other.
        settings: What makes two evaluations comparable; kept, and compared when the folder is there
            already.
        on_sample: Called with each record, those of an earlier run first.

    Returns:
        The summary.

    Raises:
        ValueError: The folder holds an evaluation with other settings.
    """
    path = folder / "samples.jsonl"
    records = _open_folder(folder, settings)
    wanted = {problem.problem_id for problem in problems}
    records = [r for r in records if r["problem_id"] in wanted and r["sample"] < num_samples]
    done = {(record["problem_id"], record["sample"]) for record in records}
    jobs = [
        _Job(problem=problem, sample=sample)
        for sample in range(num_samples)
        for problem in problems
        if (problem.problem_id, sample) not in done
    ]
    for record in records:
        on_sample(record)
    metrics = RolloutMetrics()
    with path.open("a", encoding="utf-8") as output:
        groups = rollout_groups(
            jobs,
            group_size=1,
            concurrency=concurrency,
            attempts=ATTEMPTS,
            metrics=metrics,
            engine=engine,
            tools=tools,
            dialect=dialect,
            limits=limits,
            sampling=sampling,
            stateful=stateful,
        )
        async with aclosing(groups):
            async for group in groups:
                (trajectory,) = group.trajectories
                if trajectory.status is Status.ABORTED:
                    continue
                job = group.problem
                right = await grader(trajectory, job.problem.gold)
                record = {
                    "problem_id": job.problem_id,
                    "sample": job.sample,
                    "correct": right,
                    "gold": job.problem.gold,
                    "tokens": dialect.tokenizer.split(trajectory.ids),
                    **trajectory_to_dict(trajectory),
                }
                output.write(json.dumps(record, ensure_ascii=False) + "\n")
                output.flush()
                records.append(record)
                on_sample(record)
    summary = summary_of(records, expected=len(problems) * num_samples)
    summary["stall_p99_ms"] = metrics.summary()["stall/p99_ms"]
    write_json(folder / "summary.json", summary)
    return summary


def summary_of(records: Sequence[Mapping[str, Any]], *, expected: int) -> dict[str, Any]:
    """Scores and tool statistics of the records."""
    grades: dict[str, list[bool]] = {}
    for record in records:
        row = grades.setdefault(str(record["problem_id"]), [])
        if record["correct"] is not None:
            row.append(bool(record["correct"]))
    calls = [call for record in records for turn in record["turns"] for call in turn["calls"]]
    outcomes: dict[str, int] = {}
    for call in calls:
        outcomes[call["outcome"]] = outcomes.get(call["outcome"], 0) + 1
    total = max(1, len(records))
    sampled = [sum(record["mask"]) for record in records]
    return {
        "problems": len(grades),
        "samples": len(records),
        "missing": expected - len(records),
        "ungraded": sum(record["correct"] is None for record in records),
        "scores": {name: asdict(value) for name, value in summarise(grades).items()},
        "answered": sum(record["answer"] is not None for record in records) / total,
        "stop_reasons": _counted(record["stop_reason"] for record in records),
        "turns_mean": sum(len(record["turns"]) for record in records) / total,
        "sampled_tokens_mean": sum(sampled) / total,
        "tool_calls_mean": len(calls) / total,
        "tool_ok": sum(call["ok"] for call in calls) / len(calls) if calls else None,
        "tool_outcomes": outcomes,
        "samples_with_tools": sum(
            any(turn["calls"] for turn in record["turns"]) for record in records
        )
        / total,
    }


async def grade_exactly(trajectory: Trajectory, gold: str) -> bool | None:
    """Compare the stated answer as a number if both are one, else as text: enough for AIME."""
    if trajectory.answer is None:
        return False
    return _plain(trajectory.answer) == _plain(gold)


def grade_with(function: Callable[..., Any]) -> Grader:
    """Grade the policy's last turn with `retool_reward.grade`, off the event loop."""

    async def grader(trajectory: Trajectory, gold: str) -> bool | None:
        # Only a completed turn's own words: tool output is never graded.
        return (await asyncio.to_thread(function, trajectory.final_text, gold)).correct

    return grader


def _plain(text: str) -> str:
    text = text.strip().strip("$").replace(",", "").rstrip(".").strip()
    try:
        number = float(text)
    except ValueError:
        return "".join(text.split())
    return str(int(number)) if number.is_integer() else str(number)


def _counted(values: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[str(value)] = counts.get(str(value), 0) + 1
    return dict(sorted(counts.items()))


def _open_folder(folder: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    _check_settings(folder / "settings.json", dict(settings))
    return _finished(folder / "samples.jsonl")


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        write_json(path, settings)
        return
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    current: dict[str, Any] = json.loads(json.dumps(settings))
    differing = [key for key in {**known, **current} if known.get(key) != current.get(key)]
    if differing:
        first = differing[0]
        raise ValueError(
            f"{path.parent} holds an evaluation with {first} = {known.get(first)!r}, now it is "
            f"{current.get(first)!r}; give another --output, or the same settings to go on"
        )


def _finished(path: Path) -> list[dict[str, Any]]:
    """Records of an earlier run; a last line that it could not finish is cut off."""
    if not path.exists():
        return []
    records = list(read_jsonl(path, torn_end=True))
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        logger.warning("%s ends in half a record; that sample is made again", path)
        with path.open("r+b") as file:
            file.truncate(whole)
    return records
