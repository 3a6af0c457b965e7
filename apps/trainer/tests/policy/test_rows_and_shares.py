"""Rows refuse what cannot be trained on; shares cover a batch exactly, within the budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.policy import Row, nll
from retool_trainer.policy._microbatches import lay_out, share_rows, token_batch


def _row(length: int = 5, **changes: Any) -> Row:
    mask = np.arange(length) >= 2
    given_values = {
        "ids": np.arange(length, dtype=np.int32),
        "mask": mask,
        "weights": mask.astype(np.float32),
    }
    return Row(**{**given_values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": np.array([True] * 5)}, "nothing predicts the first token"),
        ({"weights": np.ones(5, dtype=np.float32)}, "weights must be 0 outside the mask"),
        ({"weights": np.zeros(4, dtype=np.float32)}, r"weights has shape \(4,\), but ids"),
        ({"advantages": np.zeros(6, dtype=np.float32)}, "advantages has shape"),
        ({"ids": np.zeros((2, 3), dtype=np.int32)}, "one non-empty list"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _row(**changes)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=40),
    budget=st.integers(1, 60),
    ranks=st.integers(1, 5),
)
def test_shares_hold_every_fitting_row_once_and_keep_the_budget(
    lengths: list[int], budget: int, ranks: int
) -> None:
    shares = [
        share_rows(lengths, tokens_per_microbatch=budget, data_parallel=ranks, rank=rank)
        for rank in range(ranks)
    ]
    taken = [index for share in shares for micro in share.microbatches for index in micro]
    fitting = [index for index, length in enumerate(lengths) if length <= budget]
    assert sorted(taken) == fitting
    assert {share.dropped for share in shares} == {len(lengths) - len(fitting)}
    for share in shares:
        for micro in share.microbatches:
            assert 0 < sum(lengths[index] for index in micro) <= budget
    # No rank is ahead of another by more than one row.
    loads = [sum(lengths[i] for micro in share.microbatches for i in micro) for share in shares]
    assert max(loads) - min(loads) <= max([0, *(lengths[index] for index in fitting)])


def test_predictions_land_where_their_tokens_are() -> None:
    import torch

    rows = [_row(3), _row(5)]
    batch = lay_out(rows, masked_only=True, device="cpu")
    assert batch.ids_N.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert batch.positions_N.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert batch.predictors_M.tolist() == [1, 4, 5, 6]
    assert batch.targets_M.tolist() == [2, 2, 3, 4]
    grid = batch.to_grid(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert grid.tolist() == [[0, 0, 1, 0, 0], [0, 0, 2, 3, 4]]
    everything = lay_out(rows, masked_only=False, device="cpu")
    assert everything.predictors_M.tolist() == [0, 1, 3, 4, 5, 6]


def test_a_grid_of_rows_has_zeros_as_padding_and_none_for_what_is_absent() -> None:
    import torch

    batch = lay_out(
        [_row(3, advantages=np.full(3, 7.0)), _row(4, advantages=np.full(4, 8.0))],
        masked_only=True,
        device="cpu",
    )
    values = torch.zeros(len(batch.targets_M))
    tokens = token_batch(batch, values, values)
    assert tokens.advantages_BT is not None
    assert tokens.advantages_BT.tolist() == [[7, 7, 7, 0], [8, 8, 8, 8]]
    assert tokens.mask_BT.tolist() == [[False, False, True, False], [False, False, True, True]]
    assert tokens.old_logprobs_BT is None


def test_an_array_that_only_some_rows_have_is_refused() -> None:
    import torch

    batch = lay_out([_row(3), _row(3, old_logprobs=np.zeros(3))], masked_only=True, device="cpu")
    values = torch.zeros(2)
    with pytest.raises(ValueError, match="1 of 2 rows have old_logprobs"):
        token_batch(batch, values, values)


def test_nll_is_the_negative_logprob() -> None:
    import torch

    batch = lay_out([_row(4)], masked_only=True, device="cpu")
    loss_BT, stats = nll(token_batch(batch, torch.tensor([-1.0, -2.0]), torch.zeros(2)))
    assert loss_BT.tolist() == [[0, 0, 1, 2]]
    assert stats["nll"].tolist() == [[0, 0, 1, 2]]
