"""Muon on hidden matrices and AdamW on everything else, as one torch optimizer.

Muon: K. Jordan and others, "Muon: an optimizer for hidden layers in neural networks" (2024); the
numbers are those of `torch.optim.Muon`. Megatron fuses q, k, v and gate, up into one parameter
each, but they are matrices of their own and have to be orthogonalised as such: each parameter comes
with the rows of the matrices in it. Matrices of one shape go through the iteration together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_MOMENTUM = 0.95
_ITERATIONS = 5
# Of the quintic whose five iterations take every singular value in (0, 1] to about 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPSILON = 1e-7
# One call for all tensors of a group; exported by torch only with the underscore.
_kernels: Any = torch


class MuonAndAdamW(torch.optim.Optimizer):
    """Groups with `muon: True` are updated by Muon, the others by AdamW.

    Args:
        groups: As for torch optimizers, with `muon`, `lr` and `weight_decay`.
        matrix_rows: For each parameter of the Muon groups, in their order, the row indices of the
            matrices fused in it; None for a parameter that is one matrix.
        betas: Of AdamW.
        epsilon: Of AdamW.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        matrix_rows: Sequence[list[Tensor] | None],
        *,
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        super().__init__(groups, {"betas": betas, "eps": epsilon})
        # By position, not by parameter: in bfloat16 Megatron swaps in fp32 copies.
        self._matrix_rows = list(matrix_rows)

    def initialize_state(self) -> None:
        """Create the state of every parameter; done before a checkpoint is read into it."""
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(param)
                    if not group["muon"]:
                        state["exp_avg_sq"] = torch.zeros_like(param)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter from its `grad`."""
        self.initialize_state()
        rows = iter(self._matrix_rows)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["step"] += 1
            if group["muon"]:
                self._muon_step(group, [next(rows) for _ in group["params"]])
            elif group["params"]:
                self._adamw_step(group)

    def _adamw_step(self, group: dict[str, Any]) -> None:
        params = group["params"]
        states = [self.state[param] for param in params]
        averages = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        grads = [param.grad for param in params]
        first, second = group["betas"]
        step = states[0]["step"].item()
        _kernels._foreach_lerp_(averages, grads, 1 - first)
        _kernels._foreach_mul_(squares, second)
        _kernels._foreach_addcmul_(squares, grads, grads, 1 - second)
        roots = _kernels._foreach_sqrt(squares)
        _kernels._foreach_div_(roots, math.sqrt(1 - second**step))
        _kernels._foreach_add_(roots, group["eps"])
        _kernels._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        _kernels._foreach_addcdiv_(params, averages, roots, -group["lr"] / (1 - first**step))

    def _muon_step(self, group: dict[str, Any], rows: list[list[Tensor] | None]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor | None, Tensor]]] = defaultdict(list)
        for param, matrices in zip(group["params"], rows, strict=True):
            average = self.state[param]["exp_avg"]
            average.lerp_(param.grad, 1 - _MOMENTUM)
            # Nesterov: look one step of the momentum ahead.
            update = param.grad.lerp(average, _MOMENTUM)
            param.mul_(1 - group["lr"] * group["weight_decay"])
            for index in matrices or [None]:
                matrix = update if index is None else update.index_select(0, index)
                by_shape[matrix.shape].append((param, index, matrix))
        for shape, items in by_shape.items():
            # Tall matrices get larger steps, so that their rows move as far as a square one's.
            rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
            updates = orthogonalize(torch.stack([matrix for _, _, matrix in items]))
            for (param, index, _), update in zip(items, updates, strict=True):
                if index is None:
                    param.sub_(update, alpha=rate)
                else:
                    param.index_add_(0, index, update, alpha=-rate)


def orthogonalize(matrices_KRC: Tensor) -> Tensor:
    """Bring the singular values of K matrices of one shape close to 1 (Newton-Schulz, 5 rounds).

    They end between about 0.7 and 1.2, which is all that Muon needs.
    """
    tall = matrices_KRC.size(1) > matrices_KRC.size(2)
    x = matrices_KRC.mT if tall else matrices_KRC
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(_EPSILON)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
