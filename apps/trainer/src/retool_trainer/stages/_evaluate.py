"""Measure a model on the configured sets: accuracy with intervals, tool use, tool errors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from retool_data import Problem
from retool_trainer.config import EvaluationSet, RewardConfig
from retool_trainer.observe import SampleRecord, avg_at_n, pass_at_k
from retool_trainer.run_folder import write_json
from retool_trainer.workers import RolloutRequest

from ._context import Context
from ._prepare import data_file, read_records
from ._scoring import score, to_records


def evaluate(context: Context, of: str, *, step: int = 0, keep: bool = True) -> dict[str, Any]:
    """Measure the weights that the engine holds.

    Args:
        context: The run.
        of: baseline, sft or rl: whose weights they are.
        step: The training step that the measurement follows.
        keep: Write `RUN/evaluations/OF.json` and the trajectories; False only logs.

    Returns:
        Metrics by set: `{"heldout": {"accuracy": ..., ...}}`.
    """
    results: dict[str, Any] = {}
    rl = context.config.rl
    rewards = rl.reward if rl else RewardConfig()
    for chosen in context.config.evaluation.sets:
        if not (keep or chosen.during_training):
            continue
        problems = read_records(data_file(context.folder, chosen.data), Problem)
        with context.observer.work(f"evaluate {of} on {chosen.name}", total=len(problems)) as done:
            groups, stats = context.workers.collect(
                RolloutRequest(
                    problems=tuple(problems),
                    group_size=chosen.samples,
                    temperature=chosen.temperature,
                    top_p=chosen.top_p,
                    response_tokens=chosen.response_tokens,
                    # The same draw for every model that is measured, whatever the run's seed.
                    seed=zlib.crc32(f"evaluate {chosen.name}".encode()),
                )
            )
            done(len(problems))
        scored = [score(group, rewards, context.config.limits) for group in groups]
        records = to_records(scored, step, context.decode)
        results[chosen.name] = _measure(chosen, records) | {
            "wall_time_s": round(stats.wall_time_s, 2)
        }
        if keep:
            context.observer.samples(f"evaluate-{of}-{chosen.name}", step, records)
    values = {
        f"eval/{name}/{key}": value
        for name, result in results.items()
        for key, value in result.items()
        if key != "wall_time_s"
    }
    context.observer.evaluation(of, step, values)
    if keep:
        write_json(context.folder.evaluations / f"{of}.json", results)
    return results


def _measure(chosen: EvaluationSet, records: Sequence[SampleRecord]) -> dict[str, Any]:
    """The metrics of one set (the keys of `eval/<set>/...`)."""
    by_problem: dict[int, list[bool | None]] = {}
    for record in records:
        by_problem.setdefault(record.group, []).append(record.correct)
    verdicts = list(by_problem.values())
    accuracy = avg_at_n(verdicts)
    calls = [call for record in records for call in record.calls]
    rewards = [record.reward for record in records if record.reward is not None]
    measured: dict[str, Any] = {
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "samples": accuracy.num_samples,
        "problems": accuracy.num_problems,
        "ungraded": sum(record.correct is None for record in records),
        "reward": sum(rewards) / len(rewards) if rewards else 0.0,
        "tool_use": sum(bool(record.calls) for record in records) / len(records),
        "tool_errors": sum(not call.ok for call in calls) / len(calls) if calls else 0.0,
        "turns": sum(record.num_turns for record in records) / len(records),
        "truncated": sum(record.status == "truncated" for record in records) / len(records),
        "response_tokens": sum(len(r.ids) - r.prompt_length for r in records) / len(records),
    }
    if chosen.samples > 1:
        for k in sorted(
            {k for k in (1, 4, 8, 16, 32, 64) if 1 < k < chosen.samples} | {chosen.samples}
        ):
            tries = pass_at_k(verdicts, k)
            measured |= {
                f"pass_at_{k}": tries.value,
                f"pass_at_{k}_low": tries.low,
                f"pass_at_{k}_high": tries.high,
            }
    return measured
