"""The angles of rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from ._hf_config import ModelDims


def rotary_frequencies(dims: ModelDims, device: str) -> Tensor:
    """Angle per position of each pair of dimensions, [D / 2], float32.

    theta ** (-2i / D) as in RoFormer (arXiv:2104.09864); `llama3` lowers the slow ones by a factor
    and blends between two wavelengths (Llama 3.1's model card and transformers' rope utilities).
    """
    exponents = torch.arange(0, dims.head_dim, 2, dtype=torch.int64, device=device).float()
    frequencies = 1.0 / (dims.rope_theta ** (exponents / dims.head_dim))
    scaling = dims.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_positions * frequencies / (2 * torch.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * (1 - share) + frequencies * share
