"""Causal attention over packed rows: rotary embedding first, then the platform's kernel.

Shapes: N tokens of all rows, H query heads of this rank, G key/value heads of this rank, D size of
a head, B rows, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.dot_product_attention import DotProductAttention
from torch import Tensor
from torch.nn import functional as F

from ._microbatches import Microbatch


@dataclass
class PackedRows(PackedSeqParams):
    """Where rows start and end, for the kernel, and the rotary tables of their positions.

    It travels with the call, not on the model: in a pipeline several microbatches are under way at
    once, and recomputation needs the layout of its own.
    """

    cos_N1D: Tensor | None = None
    sin_N1D: Tensor | None = None
    blocks: tuple[_Block, ...] = ()
    """Rows of similar length, padded to the longest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Consecutive rows of a microbatch as a padded grid; M of the N tokens are in it."""

    pad_BT: Tensor
    """For each cell of the grid the token in it (the block's first for padding)."""
    unpad_M: Tensor
    """For each token of the block its cell."""


# A row shorter than this share of a block's longest starts a new block. Rows come longest first,
# and attention costs the square of the width: one long row must not set it for all.
_BLOCK_SHARE = 0.75


def pack(microbatch: Microbatch, frequencies_F: Tensor, dtype: torch.dtype) -> PackedRows:
    """Describe a microbatch to the attention.

    Args:
        microbatch: The rows.
        frequencies_F: From `_rotary.rotary_frequencies`; F = D / 2.
        dtype: Of the model's activations.
    """
    device = microbatch.ids_N.device
    lengths = torch.tensor(microbatch.lengths, dtype=torch.int32)
    bounds = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    _, width = microbatch.grid
    angles = microbatch.positions_N[:, None].float() * frequencies_F
    angles_N1D = torch.cat([angles, angles], dim=-1)[:, None]
    return PackedRows(
        qkv_format="thd",
        cu_seqlens_q=bounds.to(device),
        cu_seqlens_kv=bounds.to(device),
        max_seqlen_q=width,
        max_seqlen_kv=width,
        cos_N1D=angles_N1D.cos().to(dtype),
        sin_N1D=angles_N1D.sin().to(dtype),
        blocks=tuple(_blocks(microbatch)),
    )


def _blocks(microbatch: Microbatch) -> Iterator[_Block]:
    lengths = microbatch.lengths
    first_row = first_token = 0
    for end in range(1, len(lengths) + 1):
        width = lengths[first_row]
        if end < len(lengths) and _BLOCK_SHARE * width <= lengths[end] <= width:
            continue
        counts = torch.tensor(lengths[first_row:end])
        num_rows, num_tokens = len(counts), int(counts.sum())
        tokens = slice(first_token, first_token + num_tokens)
        row_M = torch.repeat_interleave(torch.arange(num_rows), counts)
        positions_M = microbatch.positions_N[tokens]
        unpad_M = row_M.to(positions_M.device) * width + positions_M
        pad = torch.full((num_rows * width,), first_token, device=unpad_M.device)
        pad[unpad_M] = torch.arange(tokens.start, tokens.stop, device=unpad_M.device)
        yield _Block(pad_BT=pad.view(num_rows, width), unpad_M=unpad_M)
        first_row, first_token = end, tokens.stop


class RotaryAttention(torch.nn.Module):
    """Megatron's `core_attention`: rotates queries and keys, then attends.

    Megatron would rotate row by row and recompute the tables in every layer.
    """

    kernel: type = DotProductAttention
    """The platform's attention; set by `rotary_attention`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.attend = self.kernel(**kwargs)

    def forward(
        self,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attend within each row; returns [N, 1, H * D]."""
        cos, sin = packed_seq_params.cos_N1D, packed_seq_params.sin_N1D
        return self.attend(
            _rotate(query_NHD, cos, sin),
            _rotate(key_NGD, cos, sin),
            value_NGD,
            attention_mask,
            attn_mask_type=attn_mask_type,
            attention_bias=attention_bias,
            packed_seq_params=packed_seq_params,
        )


def rotary_attention(kernel: type | None) -> type[RotaryAttention]:
    """`RotaryAttention` over a platform's kernel, or over ours if the platform has none."""
    return type("RotaryAttention", (RotaryAttention,), {"kernel": kernel or PaddedAttention})


def _rotate(x_NHD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    first, second = x_NHD.chunk(2, dim=-1)
    return x_NHD * cos_N1D + torch.cat([-second, first], dim=-1) * sin_N1D


class PaddedAttention(DotProductAttention):
    """torch's attention over padded rows: one call for all of similar length.

    Padding is on the right, so the causal mask alone keeps it from being seen.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """NHD, NGD, NGD -> [N, 1, H * D]."""
        del attention_mask, attn_mask_type, attention_bias
        repeats = query.size(1) // key.size(1)
        return torch.cat(
            [self._attend(block, query, key, value, repeats) for block in packed_seq_params.blocks]
        ).unsqueeze(1)

    def _attend(
        self, block: _Block, query: Tensor, key: Tensor, value: Tensor, repeats: int
    ) -> Tensor:
        num_rows, width = block.pad_BT.shape
        query_BHTD, key_BGTD, value_BGTD = (
            x.index_select(0, block.pad_BT.view(-1))
            .view(num_rows, width, x.size(1), -1)
            .transpose(1, 2)
            for x in (query, key, value)
        )
        if repeats > 1:
            key_BGTD = key_BGTD.repeat_interleave(repeats, dim=1)
            value_BGTD = value_BGTD.repeat_interleave(repeats, dim=1)
        context_BHTD = F.scaled_dot_product_attention(
            query_BHTD, key_BGTD, value_BGTD, is_causal=True, scale=self.softmax_scale
        )
        flat = context_BHTD.transpose(1, 2).reshape(num_rows * width, -1)
        return flat.index_select(0, block.unpad_M)
