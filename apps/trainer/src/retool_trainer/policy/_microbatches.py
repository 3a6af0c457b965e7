"""Share a batch among data-parallel ranks by tokens, and cut a share into microbatches.

Legend: N tokens of all rows of a microbatch, one after the other without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ._rows import Row, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which rows a rank works on, the same decision on every rank."""

    microbatches: list[list[int]]
    """Indices into the batch, one list per forward pass."""
    dropped: int
    """Rows of the whole batch that are longer than a microbatch may be."""


def share_rows(
    lengths: Sequence[int], *, tokens_per_microbatch: int, data_parallel: int, rank: int
) -> Share:
    """Balance rows over the data-parallel ranks and pack this rank's into microbatches.

    Longest rows first, each to the rank with the fewest tokens; then each into the first
    microbatch with room. Both are within a few percent of the optimum for real length
    distributions, and depend on nothing but the lengths.

    Args:
        lengths: Tokens of each row of the batch.
        tokens_per_microbatch: A row longer than this is dropped.
        data_parallel: Number of ranks that share the batch.
        rank: This rank's place among them.

    Returns:
        This rank's microbatches; possibly none.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    kept = [index for index in order if lengths[index] <= tokens_per_microbatch]
    loads = [0] * data_parallel
    mine: list[int] = []
    for index in kept:
        target = loads.index(min(loads))
        loads[target] += lengths[index]
        if target == rank:
            mine.append(index)
    microbatches: list[list[int]] = []
    room: list[int] = []
    for index in mine:
        slot = next((i for i, free in enumerate(room) if free >= lengths[index]), None)
        if slot is None:
            microbatches.append([index])
            room.append(tokens_per_microbatch - lengths[index])
        else:
            microbatches[slot].append(index)
            room[slot] -= lengths[index]
    return Share(microbatches=microbatches, dropped=len(lengths) - len(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Rows laid one after the other, and where the wanted predictions are among them."""

    rows: Sequence[Row]
    ids_N: Tensor
    positions_N: Tensor
    """Position of each token in its row."""
    lengths: list[int]
    predictors_M: Tensor
    """Indices into N: the tokens whose prediction is wanted."""
    targets_M: Tensor
    """The id that follows each of them."""
    cells_M: Tensor
    """Where the prediction belongs in a flattened [B, T] grid."""

    @property
    def grid(self) -> tuple[int, int]:
        """B and T."""
        return len(self.lengths), max(self.lengths)

    def to_grid(self, values_M: Tensor) -> Tensor:
        """Lay per-prediction values into [B, T]; 0 elsewhere."""
        num_rows, width = self.grid
        flat = values_M.new_zeros(num_rows * width)
        return flat.index_put((self.cells_M,), values_M).view(num_rows, width)


def lay_out(rows: Sequence[Row], *, masked_only: bool, device: str) -> Microbatch:
    """Lay rows one after the other.

    Args:
        rows: At least one.
        masked_only: Want predictions of masked tokens only, else of every token but the first.
        device: Where the tensors go.
    """
    lengths = [len(row) for row in rows]
    starts = np.cumsum([0, *lengths[:-1]])
    width = max(lengths)
    predictors: list[np.ndarray] = []
    cells: list[np.ndarray] = []
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        wanted = np.flatnonzero(row.mask) if masked_only else np.arange(1, len(row))
        predictors.append(start + wanted - 1)
        cells.append(index * width + wanted)
    ids_N = np.concatenate([row.ids for row in rows]).astype(np.int64)
    predictors_M = np.concatenate(predictors)
    return Microbatch(
        rows=rows,
        lengths=lengths,
        ids_N=torch.from_numpy(ids_N).to(device),
        positions_N=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).to(device),
        predictors_M=torch.from_numpy(predictors_M).to(device),
        targets_M=torch.from_numpy(ids_N[predictors_M + 1]).to(device),
        cells_M=torch.from_numpy(np.concatenate(cells)).to(device),
    )


def token_batch(microbatch: Microbatch, logprobs_M: Tensor, entropy_M: Tensor) -> TokenBatch:
    """Bring predictions and the rows' own numbers into one [B, T] grid.

    Raises:
        ValueError: An optional array is there for some rows only.
    """
    return TokenBatch(
        logprobs_BT=microbatch.to_grid(logprobs_M),
        entropy_BT=microbatch.to_grid(entropy_M),
        mask_BT=_grid(microbatch, "mask", np.dtype(bool)),
        weights_BT=_grid(microbatch, "weights"),
        old_logprobs_BT=_optional_grid(microbatch, "old_logprobs"),
        advantages_BT=_optional_grid(microbatch, "advantages"),
        reference_logprobs_BT=_optional_grid(microbatch, "reference_logprobs"),
        engine_logprobs_BT=_optional_grid(microbatch, "engine_logprobs"),
    )


def _optional_grid(microbatch: Microbatch, name: str) -> Tensor | None:
    present = sum(getattr(row, name) is not None for row in microbatch.rows)
    if present == 0:
        return None
    if present < len(microbatch.rows):
        raise ValueError(f"{present} of {len(microbatch.rows)} rows have {name}; give all or none")
    return _grid(microbatch, name)


def _grid(microbatch: Microbatch, name: str, dtype: np.dtype | type = np.float32) -> Tensor:
    grid = np.zeros(microbatch.grid, dtype=dtype)
    for index, row in enumerate(microbatch.rows):
        grid[index, : len(row)] = getattr(row, name)
    return torch.from_numpy(grid).to(microbatch.ids_N.device)
