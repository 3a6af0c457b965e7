"""Causal attention over packed rows: rotary embedding first, then the platform's kernel.

Shapes: N tokens of all rows, H query heads of this rank, G key/value heads of this rank, D size of
a head, B rows, T tokens of the longest.
"""

from __future__ import annotations

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
    pad_BT: Tensor | None = None
    """For each cell of the padded grid the token in it (0 for padding)."""
    unpad_N: Tensor | None = None
    """For each token its cell in the padded grid."""


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
    num_rows, width = microbatch.grid
    row_N = torch.repeat_interleave(torch.arange(num_rows), lengths)
    unpad_N = row_N.to(device) * width + microbatch.positions_N
    pad = torch.zeros(num_rows * width, dtype=torch.long, device=device)
    pad[unpad_N] = torch.arange(len(unpad_N), device=device)
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
        pad_BT=pad.view(num_rows, width),
        unpad_N=unpad_N,
    )


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
    """torch's attention over rows padded to one length: one call for all, as short rows want it.

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
        pad_BT, unpad_N = packed_seq_params.pad_BT, packed_seq_params.unpad_N
        num_rows, width = pad_BT.shape
        query_BHTD, key_BGTD, value_BGTD = (
            x.index_select(0, pad_BT.view(-1)).view(num_rows, width, x.size(1), -1).transpose(1, 2)
            for x in (query, key, value)
        )
        repeats = query.size(1) // key.size(1)
        if repeats > 1:
            key_BGTD = key_BGTD.repeat_interleave(repeats, dim=1)
            value_BGTD = value_BGTD.repeat_interleave(repeats, dim=1)
        context_BHTD = F.scaled_dot_product_attention(
            query_BHTD, key_BGTD, value_BGTD, is_causal=True, scale=self.softmax_scale
        )
        flat = context_BHTD.transpose(1, 2).reshape(num_rows * width, -1)
        return flat.index_select(0, unpad_N).unsqueeze(1)
