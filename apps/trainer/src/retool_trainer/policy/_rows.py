"""What a policy is trained on: rows of tokens, the tensors a loss sees, and the plain NLL loss.

Legend: B rows, T positions, padded on the right. Everything is aligned with the ids: the
log-probability at position t belongs to the token at position t, given the tokens before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

_OPTIONAL = ("old_logprobs", "advantages", "reference_logprobs", "engine_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training sequence; every array has as many entries as `ids`."""

    ids: np.ndarray
    """int32 token ids."""
    mask: np.ndarray
    """bool; mask[t] says that the policy sampled token t. Token 0 has nothing that predicts it."""
    weights: np.ndarray
    """float32; the factor of token t's loss in the sum over the batch, 0 outside the mask."""
    old_logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None
    reference_logprobs: np.ndarray | None = None
    engine_logprobs: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or len(self.ids) == 0:
            raise ValueError(f"ids must be one non-empty list, got shape {self.ids.shape}")
        for name in ("mask", "weights", *_OPTIONAL):
            values = getattr(self, name)
            if values is not None and values.shape != self.ids.shape:
                raise ValueError(
                    f"{name} has shape {values.shape}, but ids has shape {self.ids.shape}"
                )
        if self.mask[0]:
            raise ValueError("mask[0] must be False: nothing predicts the first token")
        if np.any(self.weights[~self.mask]):
            raise ValueError("weights must be 0 outside the mask")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tensors of one microbatch, all float32 [B, T] but the mask (bool)."""

    logprobs_BT: Tensor
    """Under the policy that is trained, with its gradient; 0 outside the mask."""
    entropy_BT: Tensor
    """Of the policy's distribution over token t, with its gradient; 0 outside the mask."""
    mask_BT: Tensor
    weights_BT: Tensor
    old_logprobs_BT: Tensor | None
    advantages_BT: Tensor | None
    reference_logprobs_BT: Tensor | None
    engine_logprobs_BT: Tensor | None


TokenLoss = Callable[[TokenBatch], tuple[Tensor, dict[str, Tensor]]]
"""Returns loss_BT and stats_BT. The step minimises sum(weights_BT * loss_BT) over all rows and
ranks; a statistic is reported as its mean over all sampled tokens."""


def nll(batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood of the sampled tokens: supervised training."""
    return -batch.logprobs_BT, {
        "nll": -batch.logprobs_BT.detach(),
        "entropy": batch.entropy_BT.detach(),
    }
