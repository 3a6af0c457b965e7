"""Estimate the distance between the policy and its reference, token by token.

Legend: B rows, T positions. All three estimators are from Schulman 2020, "Approximating KL
Divergence" (joschu.net/blog/kl-approx.html); `r` there is reference / policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from retool_trainer.config import KlConfig

# exp(20) is 5e8: past any useful value, and far from float32's overflow, which would give NaN.
_MAX_LOG_RATIO = 20.0


def token_kl(logprobs_BT: Tensor, reference_logprobs_BT: Tensor, estimator: str) -> Tensor:
    """Estimate KL(policy || reference) at each sampled token.

    In the loss, their gradients differ: k2's is the gradient of the KL of on-policy samples,
    low_var's that of the reverse divergence near the reference, and k1's is zero on average, so k1
    belongs into the reward.

    Args:
        logprobs_BT: Log-probabilities of the sampled tokens under the policy.
        reference_logprobs_BT: The same under the reference.
        estimator: `k1` (unbiased, either sign), `k2` (half the square) or `low_var` (k3: unbiased,
            never negative).

    Returns:
        kl_BT, in nats.

    Raises:
        ValueError: An unknown estimator.
    """
    log_ratio_BT = (reference_logprobs_BT - logprobs_BT).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if estimator == "k1":
        return -log_ratio_BT
    if estimator == "k2":
        return 0.5 * log_ratio_BT.square()
    if estimator == "low_var":
        return torch.expm1(log_ratio_BT) - log_ratio_BT
    raise ValueError(f"kl.estimator must be k1, k2 or low_var, got {estimator!r}")


def kl_reward(
    logprobs_T: Sequence[float],
    reference_logprobs_T: Sequence[float],
    mask_T: Sequence[int],
    config: KlConfig,
) -> float:
    """Return what is added to a trajectory's reward for its distance to the reference.

    The sum over the tokens that the policy sampled, times -coefficient. What a tool printed is not
    the policy's doing: its tokens are left out, whatever their log-probabilities (in slime#1370
    they leaked into the return).

    Args:
        logprobs_T: Log-probabilities under the policy before the update; anywhere outside the mask
            the value is ignored, NaN included.
        reference_logprobs_T: The same under the reference.
        mask_T: 1 where the policy sampled the token.
        config: Estimator and coefficient.
    """
    mask = torch.as_tensor(mask_T) > 0
    policy = torch.as_tensor(logprobs_T, dtype=torch.float64)[mask]
    reference = torch.as_tensor(reference_logprobs_T, dtype=torch.float64)[mask]
    return -config.coefficient * float(token_kl(policy, reference, config.estimator).sum())
