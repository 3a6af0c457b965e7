"""Policy losses per token, and the one callable that joins them with KL, entropy and correction.

Legend: B rows (one trajectory each), T positions; every tensor is aligned with the ids, so
logprobs_BT[b, t] belongs to the token at position t. Lower is better. Values outside the mask are
meaningless going in and 0 going out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from retool_trainer.config import CorrectionConfig, KlConfig, RlConfig

from ._correction import correction_weights
from ._kl import token_kl

# exp(20) is 5e8: no clip range reaches it, and float32 does not overflow to NaN gradients.
_MAX_LOG_RATIO = 20.0


class TokenTensors(Protocol):
    """What a loss needs of a batch; the policy's `TokenBatch` satisfies it."""

    @property
    def logprobs_BT(self) -> Tensor:
        """Of the sampled tokens under the policy that is trained; carries the gradient."""
        ...

    @property
    def entropy_BT(self) -> Tensor | None:
        """Of the policy's distribution at each position; carries a gradient if that is wanted."""
        ...

    @property
    def mask_BT(self) -> Tensor:
        """1 where the policy sampled the token."""
        ...

    @property
    def old_logprobs_BT(self) -> Tensor | None:
        """Under the policy before the step's first update; None = the same as `logprobs_BT`."""
        ...

    @property
    def advantages_BT(self) -> Tensor | None:
        """The trajectory's advantage at each of its tokens."""
        ...

    @property
    def reference_logprobs_BT(self) -> Tensor | None:
        """Under the reference model, where there is one."""
        ...

    @property
    def engine_logprobs_BT(self) -> Tensor | None:
        """As recorded by the engine when it sampled."""
        ...


class PolicyLoss(NamedTuple):
    """What a policy loss returns; all [B, T], the last two without gradient."""

    loss_BT: Tensor
    ratio_BT: Tensor
    """Policy / old policy, of the token (clip, cispo) or of the sequence (gspo)."""
    clipped_BT: Tensor
    """1.0 where the ratio's bound is active, and cuts the token's gradient (cispo: caps it)."""


def clip_loss(
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """PPO's clipped loss, with a higher upper bound and a second bound for bad tokens if wanted.

    `-min(r A, clip(r, 1 - low, 1 + high) A)`: Schulman et al. 2017 (arXiv 1707.06347), equation 7;
    two bounds ("clip-higher"): Yu et al. 2025, DAPO (arXiv 2503.14476), equation 10. `dual_clip` c:
    for A < 0 the loss is at most `-c A`: Ye et al. 2020 (arXiv 1912.09729), equation 5.

    Args:
        log_ratio_BT: log(policy / old policy) of each token.
        advantages_BT: Advantage of each token.
        clip_low: Distance of the lower bound from 1.
        clip_high: Distance of the upper bound from 1.
        dual_clip: Bound on the ratio where A < 0; None is no bound.
    """
    ratio_BT = log_ratio_BT.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    free_BT = -advantages_BT * ratio_BT
    bound_BT = -advantages_BT * ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = torch.maximum(free_BT, bound_BT)
    clipped_BT = bound_BT > free_BT
    if dual_clip is not None:
        ceiling_BT = -advantages_BT * dual_clip
        over_BT = (advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(over_BT, ceiling_BT, loss_BT)
        clipped_BT = clipped_BT | over_BT
    return PolicyLoss(loss_BT, ratio_BT.detach(), clipped_BT.to(loss_BT.dtype))


def gspo_loss(
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """GSPO's loss: the ratio is that of the whole sequence, length-normalised.

    Zheng et al. 2025 (arXiv 2507.18071), equations 5-7, in the token form of equations 13-14: each
    token has the value of the sequence's ratio and the gradient of its own log-probability.
    Averaged over a sequence (`aggregation: sequence_mean`) the gradient is that of equation 5.

    Args:
        log_ratio_BT: log(policy / old policy) of each token.
        advantages_BT: Advantage of each token.
        mask_BT: 1 where the policy sampled the token; only these form the sequence's ratio.
        clip_low: Distance of the lower bound from 1 (the paper: 3e-4).
        clip_high: Distance of the upper bound from 1 (the paper: 4e-4).
    """
    sampled_BT = (mask_BT > 0).to(log_ratio_BT.dtype)
    inside_BT = torch.where(mask_BT > 0, log_ratio_BT, torch.zeros_like(log_ratio_BT))
    num_tokens_B1 = sampled_BT.sum(-1, keepdim=True).clamp(min=1)
    sequence_B1 = inside_BT.sum(-1, keepdim=True) / num_tokens_B1
    log_sequence_BT = inside_BT - inside_BT.detach() + sequence_B1.detach()
    return clip_loss(log_sequence_BT, advantages_BT, clip_low=clip_low, clip_high=clip_high)


def cispo_loss(
    logprobs_BT: Tensor,
    log_ratio_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """CISPO's loss: REINFORCE weighed by the bounded ratio, so that no token loses its gradient.

    `-sg(clip(r, 1 - low, 1 + high)) A log pi`: MiniMax-M1 (arXiv 2506.13585), equations 4-5. The
    paper sets no lower bound: that is `clip_low >= 1`.

    Args:
        logprobs_BT: Of the sampled tokens under the policy.
        log_ratio_BT: log(policy / old policy) of each token.
        advantages_BT: Advantage of each token.
        clip_low: Distance of the weight's lower bound from 1.
        clip_high: Distance of the weight's upper bound from 1.
    """
    ratio_BT = log_ratio_BT.detach().clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    weight_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = -weight_BT * advantages_BT * logprobs_BT
    return PolicyLoss(loss_BT, ratio_BT, (weight_BT != ratio_BT).to(loss_BT.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The whole RL loss of a batch, per token; made by `make_token_loss`, picklable."""

    loss: str
    clip_low: float
    clip_high: float
    dual_clip: float | None
    entropy_coefficient: float
    kl: KlConfig
    correction: CorrectionConfig

    def __call__(self, batch: TokenTensors) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each token, and what to report about it.

        Args:
            batch: The tensors of one microbatch, all [B, T].

        Returns:
            loss_BT: policy loss x correction weight + coefficient x KL - coefficient x entropy; 0
            outside the mask. Weigh it with `token_weights` and sum.
            stats_BT: without gradient, 0 outside the mask; the mean over sampled tokens is the
            number to report. Always `policy_loss`, `ratio`, `clip_fraction`, `approx_kl` (low_var
            estimate of old policy vs policy); where the batch has what it needs also `entropy`,
            `kl`, `correction_weight`, `correction_bound` (share truncated or masked) and
            `engine_logprob_gap` (|engine - old policy|).

        Raises:
            ValueError: The batch lacks a tensor that the configuration needs.
        """
        sampled_BT = batch.mask_BT > 0

        def inside(values_BT: Tensor) -> Tensor:
            # Selecting before any exp: padding may hold -inf or NaN, and 0 * inf is NaN.
            return torch.where(sampled_BT, values_BT, torch.zeros_like(values_BT))

        advantages_BT = inside(_required(batch.advantages_BT, "advantages_BT", "rl"))
        logprobs_BT = inside(batch.logprobs_BT)
        old_BT = (
            logprobs_BT.detach() if batch.old_logprobs_BT is None else inside(batch.old_logprobs_BT)
        )
        policy = self._policy_loss(logprobs_BT, logprobs_BT - old_BT, advantages_BT, sampled_BT)
        loss_BT = policy.loss_BT
        stats_BT = {
            "policy_loss": policy.loss_BT.detach(),
            "ratio": policy.ratio_BT,
            "clip_fraction": policy.clipped_BT,
            # The old policy sampled, so the divergence is from old to new.
            "approx_kl": token_kl(old_BT, logprobs_BT.detach(), "low_var"),
        }
        if self.correction.kind != "none" or batch.engine_logprobs_BT is not None:
            engine_BT = inside(
                _required(batch.engine_logprobs_BT, "engine_logprobs_BT", "rl.correction")
            )
            stats_BT["engine_logprob_gap"] = (engine_BT - old_BT).abs()
            if self.correction.kind != "none":
                weight_BT = correction_weights(old_BT, engine_BT, self.correction)
                loss_BT = loss_BT * weight_BT
                stats_BT["correction_weight"] = weight_BT
                unbounded_BT = (old_BT - engine_BT).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
                stats_BT["correction_bound"] = (weight_BT != unbounded_BT).to(loss_BT.dtype)
        in_loss = self.kl.coefficient > 0 and self.kl.where == "loss"
        if in_loss or batch.reference_logprobs_BT is not None:
            reference_BT = inside(
                _required(batch.reference_logprobs_BT, "reference_logprobs_BT", "rl.kl")
            )
            kl_BT = token_kl(logprobs_BT, reference_BT, self.kl.estimator)
            stats_BT["kl"] = kl_BT.detach()
            if in_loss:
                loss_BT = loss_BT + self.kl.coefficient * kl_BT
        if self.entropy_coefficient > 0 or batch.entropy_BT is not None:
            entropy_BT = inside(_required(batch.entropy_BT, "entropy_BT", "rl.entropy_coefficient"))
            stats_BT["entropy"] = entropy_BT.detach()
            if self.entropy_coefficient > 0:
                loss_BT = loss_BT - self.entropy_coefficient * entropy_BT
        return inside(loss_BT), {name: inside(value) for name, value in stats_BT.items()}

    def _policy_loss(
        self, logprobs_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor
    ) -> PolicyLoss:
        low, high = self.clip_low, self.clip_high
        if self.loss == "clip":
            return clip_loss(
                log_ratio_BT,
                advantages_BT,
                clip_low=low,
                clip_high=high,
                dual_clip=self.dual_clip,
            )
        if self.loss == "gspo":
            return gspo_loss(log_ratio_BT, advantages_BT, mask_BT, clip_low=low, clip_high=high)
        if self.loss == "cispo":
            return cispo_loss(
                logprobs_BT, log_ratio_BT, advantages_BT, clip_low=low, clip_high=high
            )
        raise ValueError(f"rl.loss must be clip, gspo or cispo, got {self.loss!r}")


def make_token_loss(config: RlConfig) -> TokenLoss:
    """Return the per-token loss that `config` describes."""
    return TokenLoss(
        loss=config.loss,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        entropy_coefficient=config.entropy_coefficient,
        kl=config.kl,
        correction=config.correction,
    )


def _required(values_BT: Tensor | None, name: str, key: str) -> Tensor:
    if values_BT is None:
        raise ValueError(f"the batch has no {name}, which the configuration's {key} needs")
    return values_BT
