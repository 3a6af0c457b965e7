"""Advantages against numbers worked out by hand, and the properties that hold for any rewards."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.algorithms import (
    ADVANTAGES,
    dr_grpo,
    grpo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)

rewards = st.one_of(st.none(), st.sampled_from([-1.0, -0.6, 0.0, 0.02, 0.1, 0.5, 1.0, 1.2]))
batches = st.lists(st.lists(rewards, min_size=1, max_size=8), min_size=1, max_size=5)
group_relative = pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
every = pytest.mark.parametrize("name", sorted(ADVANTAGES))


def test_grpo_by_hand() -> None:
    # mean 1/8; sample deviation sqrt(((7/8)^2 + 7 (1/8)^2) / 7) = sqrt(1/8)
    [row] = grpo([[1.0] + [0.0] * 7])
    assert row[0] == pytest.approx(0.875 / math.sqrt(0.125), rel=1e-5)
    assert row[1] == pytest.approx(-0.125 / math.sqrt(0.125), rel=1e-5)


def test_a_single_call_in_an_all_wrong_group_is_as_loud_as_the_only_right_answer() -> None:
    [bonus] = grpo([[0.02] + [0.0] * 7])
    assert bonus[0] == pytest.approx(2.475, abs=1e-3)
    [centred] = dr_grpo([[0.02] + [0.0] * 7])
    assert centred[0] == pytest.approx(0.0175)


def test_dr_grpo_by_hand() -> None:
    assert dr_grpo([[1.0, 0.0, 0.5, 0.5]]) == [[0.5, -0.5, 0.0, 0.0]]


def test_rloo_by_hand() -> None:
    # 1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - (1 + 0) / 2
    assert rloo([[1.0, 0.0, 0.5]])[0] == pytest.approx([0.75, -0.75, 0.0])


def test_reinforce_pp_by_hand() -> None:
    # Batch 1, 1, 0, 0: mean 1/2, sample deviation sqrt(1/3); flat groups keep their news.
    rows = reinforce_pp([[1.0, 1.0], [0.0, 0.0]])
    assert rows[0] == pytest.approx([0.5 / math.sqrt(1 / 3)] * 2, rel=1e-5)
    assert rows[1] == pytest.approx([-0.5 / math.sqrt(1 / 3)] * 2, rel=1e-5)


def test_reinforce_pp_with_a_baseline_by_hand() -> None:
    # Centred 0.5, -0.5, 0, 0: mean 0, sample deviation sqrt(0.5 / 3).
    rows = reinforce_pp_baseline([[1.0, 0.0], [1.0, 1.0]])
    assert rows[0] == pytest.approx([0.5 / math.sqrt(0.5 / 3), -0.5 / math.sqrt(0.5 / 3)], rel=1e-5)
    assert rows[1] == [0.0, 0.0]


@every
@given(batch=batches)
def test_the_shape_is_kept_and_ungraded_trajectories_get_zero(name: str, batch: list) -> None:
    rows = ADVANTAGES[name](batch)
    assert [len(row) for row in rows] == [len(row) for row in batch]
    for row, given_row in zip(rows, batch, strict=True):
        assert all(value == 0.0 for value, r in zip(row, given_row, strict=True) if r is None)
        assert all(math.isfinite(value) for value in row)


@every
@given(batch=batches)
def test_ungraded_trajectories_change_nothing_for_the_others(name: str, batch: list) -> None:
    dropped = [[r for r in row if r is not None] for row in batch]
    rows = [
        [value for value, r in zip(row, given_row, strict=True) if r is not None]
        for row, given_row in zip(ADVANTAGES[name](batch), batch, strict=True)
    ]
    assert rows == ADVANTAGES[name](dropped)


@group_relative
@given(reward=st.floats(-10, 10), size=st.integers(1, 16))
def test_rows_of_equal_rewards_give_exact_zeros(name: str, reward: float, size: int) -> None:
    assert ADVANTAGES[name]([[reward] * size]) == [[0.0] * size]


@every
@given(batch=batches)
def test_the_batch_sums_to_zero(name: str, batch: list) -> None:
    assert sum(sum(row) for row in ADVANTAGES[name](batch)) == pytest.approx(0.0, abs=1e-6)


@group_relative
@given(batch=batches)
def test_each_group_sums_to_zero(name: str, batch: list) -> None:
    for row in ADVANTAGES[name](batch):
        assert sum(row) == pytest.approx(0.0, abs=1e-6)


@every
@given(batch=batches, shift=st.sampled_from([-1.0, 0.25, 3.0]))
def test_adding_a_constant_to_every_reward_changes_nothing(
    name: str, batch: list, shift: float
) -> None:
    shifted = [[None if r is None else r + shift for r in row] for row in batch]
    for row, other in zip(ADVANTAGES[name](batch), ADVANTAGES[name](shifted), strict=True):
        assert row == pytest.approx(other, abs=1e-4)


@given(batch=batches)
def test_rloo_is_dr_grpo_scaled_by_the_group_size(batch: list) -> None:
    for centred, left_out, row in zip(dr_grpo(batch), rloo(batch), batch, strict=True):
        n = sum(r is not None for r in row)
        scale = n / (n - 1) if n > 1 else 0.0
        assert left_out == pytest.approx([scale * value for value in centred])


@given(batch=st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2), min_size=1, max_size=4))
def test_grpo_rows_with_spread_have_unit_deviation(batch: list) -> None:
    for row, given_row in zip(grpo(batch), batch, strict=True):
        if len(set(given_row)) > 1:
            assert statistics.stdev(row) == pytest.approx(1.0, rel=1e-4)


@every
def test_a_reward_that_is_not_a_number_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        ADVANTAGES[name]([[1.0, math.nan]])
