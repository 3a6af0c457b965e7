"""Log-probability and entropy from logits whose vocabulary is spread over tensor ranks.

Legend: M predictions, V entries of the vocabulary on this rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def vocab_parallel_logprobs(
    logits_MV: Tensor, targets_M: Tensor, *, vocab_size: int, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, both float32 with gradient.

    With p = softmax(z): d log p_t / dz = onehot_t - p and dH / dz = -p (log p + H), so one softmax
    kept from the forward pass serves both gradients.

    Args:
        logits_MV: This rank's part, already divided by the temperature.
        targets_M: Ids in the whole vocabulary.
        vocab_size: Entries of the model; a rank's columns beyond it are padding and get no
            probability.
        group: The tensor ranks.

    Returns:
        logprobs_M and entropy_M, the same on every tensor rank.
    """
    return _VocabParallelLogprobs.apply(logits_MV, targets_M, vocab_size, group)


class _VocabParallelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, vocab_size: int, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor]:
        size, rank = group.size(), group.rank()
        width = logits_MV.size(1)
        start = rank * width
        # float() copies half-precision logits; float32 ones must not be changed in place.
        logits = logits_MV.float()
        if start + width > vocab_size:
            logits = logits.clone()
            logits[:, max(vocab_size - start, 0) :] = -torch.inf
        top = logits.amax(dim=1)
        if size > 1:
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - top[:, None]
        local = targets_M - start
        here = (local >= 0) & (local < width)
        local = local.clamp(0, width - 1)
        target_logit = shifted.gather(1, local[:, None])[:, 0].masked_fill(~here, 0.0)
        exp = shifted.exp()
        # A padded column is -inf with weight 0; 0 * -inf would be NaN.
        weighted = (exp * shifted.nan_to_num(neginf=0.0)).sum(dim=1)
        sums = torch.stack([exp.sum(dim=1), weighted, target_logit])
        if size > 1:
            dist.all_reduce(sums, group=group)
        total, weighted, target_logit = sums
        log_total = total.log()
        entropy = log_total - weighted / total
        softmax = exp.div_(total[:, None])
        ctx.save_for_backward(softmax, local, here, entropy)
        ctx.dtype = logits_MV.dtype
        ctx.set_materialize_grads(False)
        return target_logit - log_total, entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad_logprob, grad_entropy = grad_outputs
        softmax, local, here, entropy = ctx.saved_tensors
        grad = torch.zeros_like(softmax)
        if grad_logprob is not None:
            grad -= softmax * grad_logprob[:, None]
            grad.scatter_add_(1, local[:, None], (grad_logprob * here)[:, None])
        if grad_entropy is not None:
            # p log p is 0 where p underflows to 0.
            log_softmax = softmax.clamp_min(torch.finfo(softmax.dtype).tiny).log()
            grad -= softmax * (log_softmax + entropy[:, None]) * grad_entropy[:, None]
        return grad.to(ctx.dtype), None, None, None
