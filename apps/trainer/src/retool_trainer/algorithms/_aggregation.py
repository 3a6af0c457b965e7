"""Token weights that turn per-token losses into one number: total = sum(weights * loss).

The weights are fixed by the masks of the whole batch before it is split over ranks and
microbatches, so the total does not depend on how it is split.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float32]


def token_weights(
    masks: Sequence[ArrayLike], kind: str, *, constant_tokens: int | None = None
) -> list[FloatArray]:
    """Return the weight of every token of a batch.

    - `token_mean`: each token counts the same (DAPO, arXiv 2503.14476, equation 12).
    - `sequence_mean`: each sequence counts the same (GRPO, arXiv 2402.03300, equation 3).
    - `constant_length`: as the sum over tokens divided by a constant length, so that long wrong
      answers are not let off lightly (Dr.GRPO, Liu et al. 2025, arXiv 2503.20783, section 3.2).

    Args:
        masks: One row per sequence, any lengths: 1 where the policy sampled the token.
        kind: One of the three above.
        constant_tokens: `constant_length` only: the length, usually the response limit.

    Returns:
        One array per row, as long as its mask; 0 outside the mask. The sum over the batch is 1
        (`constant_length`: the mean share of the constant length that is used). A row without a
        sampled token does not count as a sequence; a batch without one gets zeros.

    Raises:
        ValueError: An unknown kind, or no positive `constant_tokens` where it is needed.
    """
    rows = [np.asarray(mask) > 0 for mask in masks]
    num_tokens = [int(row.sum()) for row in rows]
    num_sequences = sum(count > 0 for count in num_tokens)
    if kind == "token_mean":
        denominators = [sum(num_tokens)] * len(rows)
    elif kind == "sequence_mean":
        denominators = [num_sequences * count for count in num_tokens]
    elif kind == "constant_length":
        if constant_tokens is None or constant_tokens <= 0:
            raise ValueError(f"constant_length needs constant_tokens > 0, got {constant_tokens!r}")
        denominators = [num_sequences * constant_tokens] * len(rows)
    else:
        raise ValueError(
            f"aggregation must be token_mean, sequence_mean or constant_length, got {kind!r}"
        )
    return [
        (row / max(denominator, 1)).astype(np.float32)
        for row, denominator in zip(rows, denominators, strict=True)
    ]
