"""avg@n, pass@k and their intervals."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.observe import avg_at_n, clustered_wilson, paired_change, pass_at_k

verdicts = st.lists(
    st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=8), min_size=1, max_size=8
)


def test_avg_at_n_by_hand() -> None:
    got = avg_at_n([[True, False, None, None], [True], [None]])
    assert (got.value, got.num_problems, got.num_samples) == (0.75, 2, 3)


def test_pass_at_k_by_hand() -> None:
    # 1 right of 4: C(3, 2) / C(4, 2) = 1/2 of the pairs miss it.
    got = pass_at_k([[True, False, False, False], [True, True, None, None]], 2)
    assert (got.value, got.num_problems) == (0.75, 2)
    assert pass_at_k([[True], [False, True]], 2).num_problems == 1


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(row: list, k: int) -> None:
    if k <= len(row):
        subsets = list(itertools.combinations(row, k))
        share = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k([row], k).value == pytest.approx(share)


@given(verdicts)
def test_pass_at_1_is_avg_at_n(rows: list) -> None:
    one, avg = pass_at_k(rows, 1), avg_at_n(rows)
    assert one.value == pytest.approx(avg.value, nan_ok=True)
    assert (one.num_problems, one.num_samples) == (avg.num_problems, avg.num_samples)


@given(verdicts, st.integers(1, 8))
def test_intervals_hold_the_value_and_stay_within_0_and_1(rows: list, k: int) -> None:
    for got in (avg_at_n(rows), pass_at_k(rows, k)):
        if got.num_problems:
            assert 0 <= got.low <= got.value <= got.high <= 1
        else:
            assert math.isnan(got.value)
            assert (got.low, got.high) == (0.0, 1.0)


def test_one_sample_per_problem_gives_wilsons_interval() -> None:
    # Wilson 1927: 8 of 10 -> [0.4902, 0.9433]
    assert clustered_wilson([1.0] * 8 + [0.0] * 2, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_all_right_is_not_certain() -> None:
    low, high = clustered_wilson([1.0] * 30, 480)
    assert low == pytest.approx(30 / (30 + 1.96**2), abs=1e-4)
    assert high == 1.0


def test_repeating_the_samples_of_unequal_problems_narrows_nothing() -> None:
    once = clustered_wilson([1.0] * 15 + [0.0] * 15, 30)
    assert clustered_wilson([1.0] * 15 + [0.0] * 15, 480) == once


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    # 30 problems (an AIME year) of different difficulty, 16 samples each.
    rng = random.Random(0)
    alpha, beta = 1.2, 0.8
    hits = 0
    for _ in range(400):
        shares = [
            sum(rng.random() < p for _ in range(16)) / 16
            for p in (rng.betavariate(alpha, beta) for _ in range(30))
        ]
        low, high = clustered_wilson(shares, 480)
        hits += low <= alpha / (alpha + beta) <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        pass_at_k([[True]], 0)


def test_a_change_is_measured_problem_by_problem() -> None:
    before = {"a": [False], "b": [True], "c": [False, True], "d": [None], "e": [True]}
    after = {"a": [True], "b": [False], "c": [True, True], "d": [True], "f": [True]}
    # Differences 1, -1, 1/2: mean 1/6, sample deviation sqrt(13 / 12).
    got = paired_change(before, after)
    assert got.difference == pytest.approx(1 / 6)
    half = 1.95996 * math.sqrt(13 / 12 / 3)
    assert (got.low, got.high) == pytest.approx((1 / 6 - half, 1 / 6 + half), abs=1e-4)
    assert (got.newly_right, got.newly_wrong, got.num_problems) == (2, 1, 3)


def test_no_common_problem_is_no_change() -> None:
    got = paired_change({"a": [True]}, {"b": [True]})
    assert got.num_problems == 0
    assert math.isnan(got.difference)
