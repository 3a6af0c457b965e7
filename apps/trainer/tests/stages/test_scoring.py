"""Rewards and advantages of whole groups, from the trajectories' records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from retool_data import Problem
from retool_reward import Grade, Reason
from retool_rollout import CallRecord, Status, StopReason, Trajectory, TurnRecord
from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import (
    LimitsConfig,
    OverlongConfig,
    RewardConfig,
    RlConfig,
    load_config,
)
from retool_trainer.stages import _evaluate
from retool_trainer.stages._scoring import score, shuffled, to_records, with_advantages
from retool_trainer.workers import GradedGroup, GradedSample, RolloutStats


def trajectory(
    calls: Sequence[bool] = (), status: Status = Status.COMPLETED, num_tokens: int = 4
) -> Trajectory:
    """A trajectory whose calls succeed or fail as given; every call another program."""
    records = tuple(
        CallRecord(
            name="code_interpreter",
            arguments={"code": f"print({index})"},
            outcome="ok" if ok else "failed",
            ok=ok,
            text="",
            wall_time_s=0.0,
        )
        for index, ok in enumerate(calls)
    )
    turn = TurnRecord(
        text="x", start=1, end=num_tokens, observation_end=num_tokens, complete=True, calls=records
    )
    return Trajectory(
        problem_id="p",
        ids=tuple(range(num_tokens)),
        mask=(0, *[1] * (num_tokens - 1)),
        logprobs=(0.0, *[-1.0] * (num_tokens - 1)),
        weight_versions=(None, *[0] * (num_tokens - 1)),
        prompt_length=1,
        turns=(turn,),
        status=status,
        stop_reason=StopReason.ANSWERED,
    )


def group(*members: tuple[Trajectory, bool | None]) -> GradedGroup:
    return GradedGroup(
        problem=Problem(problem_id="p", statement="?", gold="1"),
        samples=tuple(
            GradedSample(
                trajectory=t,
                grade=Grade(correct=correct, pred=None, reason=Reason.MATCH, path="exact", ms=0.0),
            )
            for t, correct in members
        ),
    )


def rewards(graded: GradedGroup, **config: object) -> list[float | None]:
    scored = score(graded, RewardConfig(**config), LimitsConfig())  # type: ignore[arg-type]
    return [reward.total for reward in scored.rewards]


def test_the_retool_table_counts_successful_calls() -> None:
    assert rewards(
        group(
            (trajectory(), True),
            (trajectory([True]), True),
            (trajectory(), False),
            (trajectory([True, True]), False),
        )
    ) == pytest.approx([1.0, 1.05, 0.0, 0.04])


@pytest.mark.parametrize("preset", ["retool", "outcome", "success_gated"])
@pytest.mark.parametrize("num_failing", [1, 3, 16])
def test_a_converged_hack_of_failing_calls_never_out_earns_a_policy_that_answers(
    preset: str, num_failing: int
) -> None:
    """Counting failing calls made RL collapse into them: three per problem, accuracy 0."""
    hack = trajectory([False] * num_failing, Status.TRUNCATED)
    paid = rewards(group((hack, False), (trajectory(), False), (trajectory(), True)), preset=preset)
    assert paid[0] is not None
    assert paid[1] is not None
    assert paid[2] is not None
    assert paid[0] <= paid[1] < paid[2]
    # And among its like: a group of nothing but the hack carries no signal at all.
    records = to_records(
        [score(group(*[(hack, False)] * 4), RewardConfig(preset=preset), LimitsConfig())],  # type: ignore[arg-type]
        1,
        str,
    )
    assert not any(record.trained for record in with_advantages(records, RlConfig(problems="x")))


def test_an_aborted_or_ungradable_trajectory_is_not_trained_on() -> None:
    graded = group(
        (trajectory(status=Status.ABORTED), False),
        (trajectory(), None),
        (trajectory(), True),
        (trajectory(), False),
    )
    scored = score(graded, RewardConfig(), LimitsConfig())
    records = with_advantages(to_records([scored], 1, str), RlConfig(problems="x"))
    assert [record.trained for record in records] == [False, False, True, True]
    assert sum(record.advantage or 0.0 for record in records) == pytest.approx(0.0)


def test_flat_groups_are_left_out_or_kept_by_choice() -> None:
    scored = score(
        group((trajectory(), True), (trajectory(), True)), RewardConfig(), LimitsConfig()
    )
    records = to_records([scored], 1, str)
    assert not any(r.trained for r in with_advantages(records, RlConfig(problems="x")))
    kept = with_advantages(records, RlConfig(problems="x", drop_flat_groups=False))
    assert [r.advantage for r in kept] == [0.0, 0.0]


def test_the_overlong_penalty_is_a_component_of_its_own() -> None:
    scored = score(
        group((trajectory(num_tokens=10), True), (trajectory(num_tokens=2), False)),
        RewardConfig(overlong=OverlongConfig(buffer_tokens=4)),
        LimitsConfig(response_tokens=10),
    )
    assert scored.rewards[0].components["overlong"] == pytest.approx(-0.75)
    assert scored.rewards[1].components["overlong"] == 0.0


def test_shuffled_rewards_are_the_same_ones_in_other_places() -> None:
    groups = [
        score(
            group(*[(trajectory(), i % 3 == 0) for i in range(8)]), RewardConfig(), LimitsConfig()
        )
        for _ in range(4)
    ]
    mixed = shuffled(groups, seed=1)

    def pool(of: list) -> list[float]:
        return sorted(reward.total for scored in of for reward in scored.rewards)

    assert pool(mixed) == pool(groups)
    assert [g.rewards for g in mixed] != [g.rewards for g in groups]
    assert [g.rewards for g in mixed] == [g.rewards for g in shuffled(groups, seed=1)]


def test_an_evaluation_pays_the_reward_that_training_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, float] = {}
    context: Any = SimpleNamespace(
        config=load_config(quickstart_config(), ["rl.reward.preset=outcome"]),
        folder=None,
        decode=None,
        workers=SimpleNamespace(
            collect=lambda _: (
                [group((trajectory(calls=[True]), True))],
                RolloutStats(wall_time_s=1.0, num_sampled_tokens=3),
            )
        ),
        observer=SimpleNamespace(
            work=lambda *_, **__: nullcontext(lambda _: None),
            evaluation=lambda of, step, values: logged.update(values),
        ),
    )
    monkeypatch.setattr(_evaluate, "data_file", lambda *_: None)
    monkeypatch.setattr(_evaluate, "read_records", lambda *_: [])
    _evaluate.evaluate(context, "rl", step=1, keep=False)
    assert logged["eval/greedy/reward"] == 1.0  # retool would add a bonus for the call
