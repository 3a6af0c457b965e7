"""Attention without a score matrix in memory, for Megatron's local layer spec.

Megatron's own `DotProductAttention` writes all scores (heads x T x T) to memory and refuses packed
sequences. Both classes here take its place in the spec and change nothing but `forward`.

Shapes: S sequence, B batch, T tokens of all packed rows, N query heads of this rank, G key/value
heads of this rank (N is a multiple of G), D head size. Unpacked tensors are SBND, packed ones TND.
Rows are padded on the right, so the causal mask alone keeps every real token from seeing padding.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.dot_product_attention import DotProductAttention
from torch import Tensor
from torch.nn import functional as F


class SdpaAttention(DotProductAttention):
    """Causal attention through torch's `scaled_dot_product_attention` (flash kernels on CUDA)."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Attend causally; the mask argument is ignored (see the top of the file).

        Returns:
            SBH, or with packing T1H; H = N * D.
        """
        del attention_mask, attn_mask_type
        _refuse_bias(attention_bias)
        if packed_seq_params is None:
            return self._attend(query, key, value)
        bounds = _bounds(packed_seq_params)
        # One kernel per row: rows have thousands of tokens, so the launches do not count.
        rows = [
            self._attend(*(x[start:end].unsqueeze(1) for x in (query, key, value)))
            for start, end in zip([0, *bounds], bounds, strict=False)
        ]
        return torch.cat(rows)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context_BNSD = F.scaled_dot_product_attention(
            *(x.permute(1, 2, 0, 3) for x in (query, key, value)),
            dropout_p=self.config.attention_dropout if self.training else 0.0,
            is_causal=True,
            scale=self.softmax_scale,
            enable_gqa=query.size(2) != key.size(2),
        )
        return context_BNSD.permute(2, 0, 1, 3).flatten(2).contiguous()


class NpuAttention(DotProductAttention):
    """Causal attention through `torch_npu.npu_fusion_attention`: TND when packed, SBH otherwise."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Attend causally; the kernel repeats key/value heads itself.

        Returns:
            SBH, or with packing T1H; H = N * D.
        """
        import torch_npu  # pyright: ignore[reportMissingImports]

        del attention_mask, attn_mask_type
        _refuse_bias(attention_bias)
        packed = packed_seq_params is not None
        extra: dict[str, Any] = {}
        if packed:
            bounds = _bounds(packed_seq_params)
            extra = {"actual_seq_qlen": bounds, "actual_seq_kvlen": bounds}
        else:
            query, key, value = (x.flatten(2) for x in (query, key, value))
        context = torch_npu.npu_fusion_attention(
            query,
            key,
            value,
            self.num_attention_heads_per_partition,
            "TND" if packed else "SBH",
            atten_mask=_compressed_causal_mask(query.device),
            scale=self.softmax_scale,
            keep_prob=1.0 - (self.config.attention_dropout if self.training else 0.0),
            # 2: causal from the upper left corner; the mask is 2048 x 2048 whatever the length.
            sparse_mode=2,
            **extra,
        )[0]
        return context.flatten(1).unsqueeze(1) if packed else context


_MASKS: dict[torch.device, Tensor] = {}


def _compressed_causal_mask(device: torch.device) -> Tensor:
    """True above the diagonal, 2048 x 2048: the size that sparse modes 2 and 3 prescribe."""
    if device not in _MASKS:
        _MASKS[device] = torch.ones((2048, 2048), dtype=torch.bool, device=device).triu(1)
    return _MASKS[device]


def _bounds(packed: PackedSeqParams) -> list[int]:
    """The end of each packed row, as the kernels want it."""
    ends: list[int] = packed.cu_seqlens_q.tolist()
    return ends[1:]


def _refuse_bias(bias: Tensor | None) -> None:
    if bias is not None:
        raise ValueError("attention_bias is not supported; the models here have none")
