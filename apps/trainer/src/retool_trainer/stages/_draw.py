"""Draw the trajectories of a step: the next problems, and more of them where DAPO asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from retool_data import Problem
from retool_trainer.config import RunConfig
from retool_trainer.workers import RolloutRequest, Rollouts

from ._scoring import ScoredGroup, score
from ._stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step is trained on."""

    groups: tuple[ScoredGroup, ...]
    rollout_s: float
    num_sampled_tokens: int
    num_extra_batches: int
    num_dropped_groups: int
    """Drawn and left out, because every answer of theirs was right or every one wrong."""
    position: int
    """Problems drawn so far, this batch included: where a resumed run goes on."""
    epochs: float


def draw_batch(config: RunConfig, rollouts: Rollouts, stream: Stream[Problem], step: int) -> Batch:
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
        groups, stats = rollouts.collect(
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
    return Batch(
        groups=tuple(kept),
        rollout_s=rollout_s,
        num_sampled_tokens=num_tokens,
        num_extra_batches=extra,
        num_dropped_groups=num_drawn - len(kept),
        position=stream.position,
        epochs=stream.epochs,
    )
