"""From graded groups to rewards, advantages and the records that training and the report read.

Legend: P groups (problems), G trajectories per group.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retool_data import Problem
from retool_reward import (
    Reward,
    Sample,
    count_tool_turns,
    overlong_penalty,
    shape_group,
    with_terms,
)
from retool_trainer.algorithms import ADVANTAGES, has_mixed_accuracy, has_spread, kl_reward
from retool_trainer.config import LimitsConfig, RewardConfig, RlConfig
from retool_trainer.observe import SampleRecord, make_record
from retool_trainer.workers import GradedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """The rewards of one group, in the order of its trajectories."""

    group: GradedGroup
    rewards: tuple[Reward, ...]

    @property
    def problem(self) -> Problem:
        """What was asked."""
        return self.group.problem

    @property
    def mixed(self) -> bool:
        """Some answer is right and some is wrong (unshaped accuracy)."""
        return has_mixed_accuracy([[sample.grade.correct for sample in self.group.samples]])[0]


def score(group: GradedGroup, config: RewardConfig, limits: LimitsConfig) -> ScoredGroup:
    """Shape the rewards of one group."""
    samples = [
        Sample(
            correct=sample.grade.correct,
            tool_turns=count_tool_turns(c for turn in sample.trajectory.turns for c in turn.calls),
            status=sample.trajectory.status.value,
        )
        for sample in group.samples
    ]
    rewards = shape_group(samples, config.preset, truncated=config.truncated)
    if config.overlong.buffer_tokens:
        rewards = [
            with_terms(
                reward,
                overlong=config.overlong.penalty
                * overlong_penalty(
                    len(sample.trajectory.response_ids),
                    limits.response_tokens,
                    config.overlong.buffer_tokens,
                ),
            )
            for reward, sample in zip(rewards, group.samples, strict=True)
        ]
    return ScoredGroup(group=group, rewards=tuple(rewards))


def shuffled(groups: Sequence[ScoredGroup], seed: int) -> list[ScoredGroup]:
    """Permute all rewards of a step among its trajectories: the control that must not learn."""
    pool = [reward for group in groups for reward in group.rewards]
    random.Random(seed).shuffle(pool)
    rest = iter(pool)
    return [replace(group, rewards=tuple(next(rest) for _ in group.rewards)) for group in groups]


def to_records(
    groups: Sequence[ScoredGroup], step: int, decode: Callable[[Sequence[int]], str]
) -> list[SampleRecord]:
    """One record per trajectory, without advantages yet."""
    return [
        make_record(
            sample.trajectory,
            step=step,
            group=index,
            sample=number,
            gold=group.problem.gold or "",
            decode=decode,
            correct=sample.grade.correct,
            reward=reward.total,
            reward_components=dict(reward.components),
        )
        for index, group in enumerate(groups)
        for number, (sample, reward) in enumerate(
            zip(group.group.samples, group.rewards, strict=True)
        )
    ]


def with_kl_reward(records: Sequence[SampleRecord], config: RlConfig) -> list[SampleRecord]:
    """Take the distance to the reference off the reward of each trajectory, as a component `kl`."""
    adjusted: list[SampleRecord] = []
    for record in records:
        assert record.reward is not None
        assert record.policy_logprobs is not None
        assert record.reference_logprobs is not None
        term = kl_reward(record.policy_logprobs, record.reference_logprobs, record.mask, config.kl)
        adjusted.append(
            replace(
                record,
                reward=record.reward + term,
                reward_components={**record.reward_components, "kl": term},
            )
        )
    return adjusted


def with_advantages(records: Sequence[SampleRecord], config: RlConfig) -> list[SampleRecord]:
    """Give an advantage to every record that is to be trained on.

    Left out (advantage None): trajectories without a reward, without a sampled token, and, with
    `rl.drop_flat_groups`, whole groups without spread.
    """
    num_groups = max((record.group for record in records), default=-1) + 1
    members_PG: list[list[SampleRecord]] = [[] for _ in range(num_groups)]
    for record in records:
        members_PG[record.group].append(record)
    rewards_PG = [[record.reward for record in members] for members in members_PG]
    advantages_PG = ADVANTAGES[config.advantage](rewards_PG)
    keep_P = has_spread(rewards_PG) if config.drop_flat_groups else [True] * num_groups
    return [
        replace(record, advantage=advantage)
        if keep and record.reward is not None and record.num_sampled
        else record
        for members, advantages, keep in zip(members_PG, advantages_PG, keep_P, strict=True)
        for record, advantage in zip(members, advantages, strict=True)
    ]
