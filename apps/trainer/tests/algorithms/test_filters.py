"""Group filters."""

from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.algorithms import grpo, has_mixed_accuracy, has_spread


def test_a_group_has_spread_when_its_graded_rewards_differ() -> None:
    assert has_spread([[1.0, 0.0], [0.1, 0.1], [0.5, None], [None], [0.0, 0.02, None]]) == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_dynamic_sampling_looks_at_accuracy_and_not_at_the_bonus() -> None:
    # All wrong, but one called the tool: spread in reward, none in accuracy.
    assert has_spread([[0.0, 0.02]]) == [True]
    assert has_mixed_accuracy([[False, False]]) == [False]
    assert has_mixed_accuracy([[True, False, None], [True, None], [True, True]]) == [
        True,
        False,
        False,
    ]


@given(st.lists(st.lists(st.sampled_from([None, 0.0, 0.02, 1.0]), min_size=1), max_size=5))
def test_a_group_without_spread_gets_only_zeros(batch: list) -> None:
    for spread, row in zip(has_spread(batch), grpo(batch), strict=True):
        assert spread == any(row)
