"""Draw one token for each row of logits, and say how likely it was.

Shape suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from retool_rollout import Sampling


def sample(
    logits_BV: Tensor, samplings: Sequence[Sampling], uniforms_B: Sequence[float]
) -> list[tuple[int, float]]:
    """Draw by inverting the cumulative distribution at one uniform number per row.

    Args:
        logits_BV: Raw logits.
        samplings: Temperature (0: the most likely token), top_p and top_k of each row.
        uniforms_B: Numbers in [0, 1).

    Returns:
        (token, logprob) per row. The logprob is that of the distribution the token was drawn from:
        after the temperature, top_k and top_p; for a greedy row that of the raw logits.
    """
    temperatures_B = torch.tensor([s.temperature or 1.0 for s in samplings])
    logprobs_BV = torch.log_softmax(logits_BV / temperatures_B[:, None], dim=-1)
    for index, sampling in enumerate(samplings):
        if sampling.temperature and (sampling.top_p < 1.0 or sampling.top_k > 0):
            logprobs_BV[index] = _truncated(logprobs_BV[index], sampling)
    # In double precision: over many tokens a float32 sum is off by more than rare ones weigh.
    cumulative_BV = logprobs_BV.double().exp().cumsum(dim=-1)
    targets_B = torch.tensor(uniforms_B, dtype=torch.float64) * cumulative_BV[:, -1]
    drawn_B = torch.searchsorted(cumulative_BV, targets_B[:, None], right=True)[:, 0]
    greedy_B = torch.tensor([s.temperature == 0 for s in samplings])
    tokens_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), drawn_B)
    chosen_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    return list(zip(tokens_B.tolist(), chosen_B.tolist(), strict=True))


def _truncated(logprobs_V: Tensor, sampling: Sampling) -> Tensor:
    """Keep the top_k tokens and the smallest set that reaches top_p, and renormalise."""
    ordered_V, order_V = logprobs_V.sort(descending=True)
    keep_V = torch.ones_like(ordered_V, dtype=torch.bool)
    if sampling.top_k > 0:
        keep_V[sampling.top_k :] = False
    mass_before_V = ordered_V.exp().cumsum(0) - ordered_V.exp()
    keep_V &= mass_before_V < sampling.top_p
    keep_V[0] = True
    kept_V = torch.full_like(logprobs_V, -torch.inf)
    kept_V[order_V[keep_V]] = ordered_V[keep_V]
    return torch.log_softmax(kept_V, dim=-1)
