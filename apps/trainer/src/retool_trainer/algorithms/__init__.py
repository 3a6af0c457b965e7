"""Advantages, losses, aggregation and filters of RL: small pure functions."""

from ._advantages import (
    ADVANTAGES,
    dr_grpo,
    grpo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from ._aggregation import token_weights
from ._correction import correction_weights
from ._filters import has_mixed_accuracy, has_spread
from ._kl import kl_reward, token_kl
from ._losses import PolicyLoss, TokenLoss, cispo_loss, clip_loss, gspo_loss, make_token_loss

__all__ = [
    "ADVANTAGES",
    "PolicyLoss",
    "TokenLoss",
    "cispo_loss",
    "clip_loss",
    "correction_weights",
    "dr_grpo",
    "grpo",
    "gspo_loss",
    "has_mixed_accuracy",
    "has_spread",
    "kl_reward",
    "make_token_loss",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "token_kl",
    "token_weights",
]
