"""Log-probabilities, entropies and their gradients, against torch's own."""

from __future__ import annotations

from typing import Any

import torch

from retool_trainer.policy._logprobs import vocab_parallel_logprobs


class _OneRank:
    """A process group of one: the function asks for nothing else. (Two: test_policy_parity.)"""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def _both(logits: torch.Tensor, targets: torch.Tensor, vocab_size: int) -> Any:
    group: Any = _OneRank()
    return vocab_parallel_logprobs(logits, targets, vocab_size=vocab_size, group=group)


def test_values_and_gradients_equal_torchs() -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(7, 11)).requires_grad_()
    targets = torch.randint(0, 11, (7,))
    weight_a, weight_b = torch.randn(7), torch.randn(7)
    logprobs, entropy = _both(logits, targets, 11)
    (logprobs * weight_a + entropy * weight_b).sum().backward()
    found, logits.grad = logits.grad, None
    log_softmax = logits.log_softmax(-1)
    expected = log_softmax.gather(1, targets[:, None])[:, 0]
    expected_entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    (expected * weight_a + expected_entropy * weight_b).sum().backward()
    assert torch.allclose(logprobs, expected, atol=1e-6)
    assert torch.allclose(entropy, expected_entropy, atol=1e-6)
    assert found is not None
    assert torch.allclose(found, logits.grad, atol=1e-6)


def test_padded_columns_get_no_probability_and_no_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 8)
    padded = torch.cat([logits, torch.full((4, 3), 9.0)], dim=1).requires_grad_()
    targets = torch.tensor([0, 7, 3, 1])
    logprobs, entropy = _both(padded, targets, 8)
    plain, plain_entropy = _both(logits, targets, 8)
    assert torch.equal(logprobs, plain)
    assert torch.equal(entropy, plain_entropy)
    (logprobs + entropy).sum().backward()
    assert padded.grad is not None
    assert torch.all(padded.grad[:, 8:] == 0)
    assert torch.isfinite(padded.grad).all()


def test_certain_predictions_have_finite_gradients() -> None:
    logits = torch.tensor([[0.0, 500.0, -500.0]], requires_grad=True)
    logprobs, entropy = _both(logits, torch.tensor([1]), 3)
    (logprobs + entropy).sum().backward()
    assert (logprobs.item(), entropy.item()) == (0.0, 0.0)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
