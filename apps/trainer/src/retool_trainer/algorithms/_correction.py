"""Weigh tokens by how much more likely the policy finds them than the engine that sampled them.

Legend: B rows, T positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from retool_trainer.config import CorrectionConfig

_MAX_LOG_RATIO = 20.0  # exp(20) is past any cap, and far from float32's overflow


def correction_weights(
    old_logprobs_BT: Tensor, engine_logprobs_BT: Tensor, config: CorrectionConfig
) -> Tensor:
    """Return the factor of each token's policy loss; no gradient flows through it.

    With `w = policy / engine` (both before the update):

    - `none`: 1.
    - `tis`: `min(w, cap)`. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You
      Off-Policy RL Training" (fengyao.notion.site/off-policy-rl), truncated importance sampling.
    - `mis`: `w` inside `[1 / cap, cap]`, else 0. Masked importance sampling on tokens: Liu et al.
      2025, "When Speed Kills Stability", and IcePop (Ling team 2025, arXiv 2510.18855, section 3).

    A masked token stays in the loss's denominator: how many tokens the engine got wrong must not
    change the step size of the others.

    Args:
        old_logprobs_BT: Under the policy before the update.
        engine_logprobs_BT: As recorded by the engine when it sampled.
        config: Kind and cap.

    Returns:
        weights_BT.
    """
    log_ratio_BT = (old_logprobs_BT - engine_logprobs_BT).detach()
    ratio_BT = log_ratio_BT.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    if config.kind == "none":
        return torch.ones_like(ratio_BT)
    if config.kind == "tis":
        return ratio_BT.clamp(max=config.cap)
    inside_BT = (ratio_BT >= 1 / config.cap) & (ratio_BT <= config.cap)
    return torch.where(inside_BT, ratio_BT, torch.zeros_like(ratio_BT))
