"""Get the trajectories of a step: drawn from the engine, or read back from a run's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retool_data import Problem
from retool_trainer.config import RunConfig
from retool_trainer.observe import SampleRecord, read_trajectories, trajectories_path
from retool_trainer.workers import RolloutRequest, Workers

from ._scoring import ScoredGroup, score, shuffled, to_records
from ._stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step is trained on: trajectories with rewards, without advantages yet."""

    records: tuple[SampleRecord, ...]
    rollout_s: float = 0.0
    num_sampled_tokens: int = 0
    num_extra_batches: int = 0
    num_dropped_groups: int = 0
    """Drawn and left out, because every answer of theirs was right or every one wrong."""
    position: int
    """Problems drawn so far, this batch included: where a resumed run goes on."""
    epochs: float


def draw_batch(
    config: RunConfig,
    workers: Workers,
    stream: Stream[Problem],
    step: int,
    decode: Callable[[Sequence[int]], str],
) -> Batch:
    """Solve the problems of one step.

    With `rl.dynamic_sampling` only groups with right and wrong answers are kept, and further
    problems are drawn until there are `rl.prompts_per_step` of them, or `rl.max_extra_batches`
    have not sufficed; then the step makes do with what it has.
    """
    rl = config.rl
    assert rl is not None
    kept: list[ScoredGroup] = []
    rollout_s, num_tokens, num_drawn, extra = 0.0, 0, 0, 0
    while True:
        groups, stats = workers.collect(
            RolloutRequest(
                problems=tuple(stream.take(rl.prompts_per_step)),
                group_size=rl.samples_per_prompt,
                temperature=rl.temperature,
                top_p=rl.top_p,
                seed=config.seed * 1_000_003 + step * 101 + extra,
            )
        )
        scored = [score(group, rl.reward, config.limits) for group in groups]
        rollout_s += stats.wall_time_s
        num_tokens += stats.num_sampled_tokens
        num_drawn += len(scored)
        kept += [group for group in scored if group.mixed] if rl.dynamic_sampling else scored
        if len(kept) >= rl.prompts_per_step or extra == rl.max_extra_batches:
            break
        if not rl.dynamic_sampling:
            break
        extra += 1
    kept = kept[: rl.prompts_per_step]
    if rl.reward.shuffle:
        kept = shuffled(kept, seed=config.seed * 7919 + step)
    return Batch(
        records=tuple(to_records(kept, step, decode)),
        rollout_s=rollout_s,
        num_sampled_tokens=num_tokens,
        num_extra_batches=extra,
        num_dropped_groups=num_drawn - len(kept),
        position=stream.position,
        epochs=stream.epochs,
    )


def read_batch(run_dir: Path, step: int) -> Batch:
    """Read a step's trajectories as another run drew and scored them."""
    records = [
        _as_drawn(record) for record in read_trajectories(trajectories_path(run_dir, "rl", step))
    ]
    return Batch(
        records=tuple(records),
        num_sampled_tokens=sum(record.num_sampled for record in records),
        position=0,
        epochs=0.0,
    )


def _as_drawn(record: SampleRecord) -> SampleRecord:
    """Take off what training adds; its KL term would otherwise be in the reward twice."""
    parts = {name: part for name, part in record.reward_components.items() if name != "kl"}
    return replace(
        record,
        # In the order in which they were added up, so the sum has the same bits.
        reward=sum(parts.values()) if len(parts) < len(record.reward_components) else record.reward,
        reward_components=parts,
        advantage=None,
        policy_logprobs=None,
        reference_logprobs=None,
    )
