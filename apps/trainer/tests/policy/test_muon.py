"""Muon and AdamW against torch's, and fused matrices against separate ones."""

from __future__ import annotations

import pytest
import torch

from retool_trainer.policy._muon import MuonAndAdamW, orthogonalize


def _group(params: list[torch.Tensor], *, muon: bool, decay: float = 0.1) -> dict[str, object]:
    return {"params": params, "muon": muon, "lr": 0.02, "weight_decay": decay}


def _run(optimizer: torch.optim.Optimizer, params: list[torch.Tensor], seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()


def test_singular_values_end_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 32), (2, 48, 16), (1, 16, 16)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_muon_is_torchs_up_to_its_bfloat16(shape: tuple[int, int]) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    _run(MuonAndAdamW([_group([ours], muon=True)], [None], betas=(0.9, 0.95), epsilon=1e-8), [ours])
    _run(torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1), [theirs])
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved


def test_adamw_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(5, 3, generator=generator), torch.randn(4, generator=generator)]
    ours, theirs = ([t.clone().requires_grad_() for t in starts] for _ in range(2))
    _run(MuonAndAdamW([_group(ours, muon=False)], [], betas=(0.9, 0.95), epsilon=1e-8), ours)
    _run(torch.optim.AdamW(theirs, lr=0.02, weight_decay=0.1, betas=(0.9, 0.95)), theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_fused_matrices_are_updated_as_separate_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(12, 6, generator=generator)
    rows = [torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5, 8, 9, 10, 11])]
    parts = [fused[index].clone().requires_grad_() for index in rows]
    fused.requires_grad_()
    together = MuonAndAdamW([_group([fused], muon=True)], [rows], betas=(0.9, 0.95), epsilon=1e-8)
    apart = MuonAndAdamW([_group(parts, muon=True)], [None, None], betas=(0.9, 0.95), epsilon=1e-8)
    for _ in range(3):
        fused.grad = torch.randn(fused.shape, generator=generator)
        for part, index in zip(parts, rows, strict=True):
            part.grad = fused.grad[index]
        together.step()
        apart.step()
    for part, index in zip(parts, rows, strict=True):
        assert torch.allclose(fused[index], part, atol=1e-6)
