"""Token weights: what each token counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.algorithms import token_weights

masks = st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=6)
kinds = pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant_length"])


def test_token_weights_by_hand() -> None:
    batch = [[0, 1, 1, 0, 1], [1], [0, 0]]
    assert [w.tolist() for w in token_weights(batch, "token_mean")] == [
        [0.0, 0.25, 0.25, 0.0, 0.25],
        [0.25],
        [0.0, 0.0],
    ]
    sixth = np.float32(1 / 6)
    assert [w.tolist() for w in token_weights(batch, "sequence_mean")] == [
        [0.0, sixth, sixth, 0.0, sixth],
        [0.5],
        [0.0, 0.0],
    ]
    assert [w.tolist() for w in token_weights(batch, "constant_length", constant_tokens=8)] == [
        [0.0, 0.0625, 0.0625, 0.0, 0.0625],
        [0.0625],
        [0.0, 0.0],
    ]


@kinds
@given(batch=masks)
def test_weights_are_float32_aligned_and_zero_outside_the_mask(kind: str, batch: list) -> None:
    weights = token_weights(batch, kind, constant_tokens=9)
    assert len(weights) == len(batch)
    for row, mask in zip(weights, batch, strict=True):
        assert row.dtype == np.float32
        assert row.shape == (len(mask),)
        assert ((row > 0) == (np.asarray(mask) > 0)).all()


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean"])
@given(batch=masks)
def test_weights_sum_to_one_over_any_batch_with_a_sampled_token(kind: str, batch: list) -> None:
    total = sum(float(row.sum()) for row in token_weights(batch, kind))
    assert total == pytest.approx(1.0 if any(map(any, batch)) else 0.0, abs=1e-5)


@given(batch=masks)
def test_each_sequence_counts_the_same_under_sequence_mean(batch: list) -> None:
    sums = {round(float(r.sum()), 5) for r in token_weights(batch, "sequence_mean") if r.any()}
    assert len(sums) <= 1


@given(batch=masks)
def test_a_shorter_neighbour_changes_no_token_under_constant_length(batch: list) -> None:
    weights = token_weights(batch, "constant_length", constant_tokens=9)
    values = {float(value) for row in weights for value in row if value}
    assert len(values) <= 1


def test_an_unknown_kind_or_a_missing_length_is_refused() -> None:
    with pytest.raises(ValueError, match="aggregation must be"):
        token_weights([[1]], "mean")
    with pytest.raises(ValueError, match="constant_tokens > 0"):
        token_weights([[1]], "constant_length")
