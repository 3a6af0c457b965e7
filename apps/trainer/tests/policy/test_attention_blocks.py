"""Rows of similar length are padded together: every token is in one block, in the same order."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_trainer.policy import Row
from retool_trainer.policy._megatron import import_megatron
from retool_trainer.policy._microbatches import lay_out

import_megatron()

from retool_trainer.policy._attention import _BLOCK_SHARE, _blocks  # noqa: E402


def microbatch(lengths: list[int]):
    rows = [
        Row(
            ids=np.arange(length, dtype=np.int32),
            mask=np.zeros(length, dtype=bool),
            weights=np.zeros(length, dtype=np.float32),
        )
        for length in lengths
    ]
    return lay_out(rows, masked_only=False, device="cpu")


@settings(deadline=None)
@given(st.lists(st.integers(min_value=2, max_value=40), min_size=1, max_size=12))
def test_blocks_lay_out_every_token_once_and_in_order(lengths: list[int]) -> None:
    blocks = list(_blocks(microbatch(lengths)))
    tokens = torch.cat([block.pad_BT.reshape(-1)[block.unpad_M] for block in blocks])
    assert tokens.tolist() == list(range(sum(lengths)))
    assert sum(len(block.pad_BT) for block in blocks) == len(lengths)


def test_one_long_row_does_not_widen_the_short_ones() -> None:
    blocks = list(_blocks(microbatch([200, 90, 80, 70, 50])))
    assert [tuple(block.pad_BT.shape) for block in blocks] == [(1, 200), (3, 90), (1, 50)]
    assert 70 / 90 > _BLOCK_SHARE > 50 / 90
