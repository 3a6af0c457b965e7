"""KL estimators, KL in the reward, and the correction for the engine's log-probabilities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.algorithms import correction_weights, kl_reward, token_kl
from retool_trainer.config import CorrectionConfig, KlConfig

logprob = st.floats(-30, 0, allow_nan=False)
estimators = pytest.mark.parametrize("estimator", ["k1", "k2", "low_var"])


def test_kl_estimators_by_hand() -> None:
    # reference / policy = 1/2, so log ratio = -ln 2
    policy, reference = torch.tensor([[0.0]]), torch.tensor([[-math.log(2)]])
    got = {e: token_kl(policy, reference, e).item() for e in ("k1", "k2", "low_var")}
    assert got["k1"] == pytest.approx(math.log(2))
    assert got["k2"] == pytest.approx(math.log(2) ** 2 / 2)
    assert got["low_var"] == pytest.approx(0.5 - 1 + math.log(2), abs=1e-6)


@given(logprob, logprob)
def test_k2_and_low_var_are_never_negative(policy: float, reference: float) -> None:
    for estimator in ("k2", "low_var"):
        value = token_kl(torch.tensor([policy]), torch.tensor([reference]), estimator)
        assert 0 <= value.item() < math.inf


@estimators
@given(logprob)
def test_a_policy_equal_to_its_reference_has_no_kl(estimator: str, value: float) -> None:
    tensor = torch.tensor([value])
    assert token_kl(tensor, tensor, estimator).item() == 0.0


@pytest.mark.parametrize("estimator", ["k1", "low_var"])
def test_the_estimators_are_unbiased(estimator: str) -> None:
    policy = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5, 0.0], dtype=torch.float64), 0)
    reference = torch.log_softmax(torch.tensor([0.5, 0.5, -1.0, 0.3], dtype=torch.float64), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    mean = (policy.exp() * token_kl(policy, reference, estimator)).sum()
    assert mean.item() == pytest.approx(exact.item(), abs=1e-12)


def test_the_gradient_of_k2_is_that_of_the_kl_and_that_of_k1_vanishes() -> None:
    logits = torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.5, 0.5, -1.0], dtype=torch.float64), 0)

    def gradient(estimator: str | None) -> list[float]:
        policy = torch.log_softmax(logits, 0)
        if estimator is None:
            loss = (policy.exp() * (policy - reference)).sum()
        else:
            loss = (policy.exp().detach() * token_kl(policy, reference, estimator)).sum()
        return torch.autograd.grad(loss, logits)[0].tolist()

    assert gradient("k2") == pytest.approx(gradient(None), abs=1e-12)
    assert gradient("k1") == pytest.approx([0.0] * 3, abs=1e-12)


def test_kl_in_the_reward_by_hand() -> None:
    config = KlConfig(coefficient=0.1, estimator="k1", where="reward")
    got = kl_reward([-1.0, -2.0, -3.0], [-1.5, -1.0, -3.0], [1, 0, 1], config)
    assert got == pytest.approx(-0.1 * 0.5)


@estimators
@given(st.lists(st.tuples(logprob, logprob, st.integers(0, 1)), min_size=1, max_size=8))
def test_tool_tokens_never_leak_into_the_reward(estimator: str, tokens: list) -> None:
    config = KlConfig(coefficient=1.0, estimator=estimator, where="reward")
    policy, reference, mask = (list(column) for column in zip(*tokens, strict=True))
    clean = kl_reward(policy, reference, mask, config)
    poisoned = [value if on else math.nan for value, on in zip(policy, mask, strict=True)]
    assert kl_reward(poisoned, reference, mask, config) == clean


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="estimator must be"):
        token_kl(torch.zeros(1), torch.zeros(1), "k4")


def test_correction_weights_by_hand() -> None:
    # policy / engine = 4, 1.5, 1/4
    old = torch.log(torch.tensor([[0.8, 0.6, 0.1]]))
    engine = torch.log(torch.tensor([[0.2, 0.4, 0.4]]))

    def weights(kind: str) -> list[float]:
        return correction_weights(old, engine, CorrectionConfig(kind=kind, cap=2.0))[0].tolist()

    assert weights("none") == [1.0, 1.0, 1.0]
    assert weights("tis") == pytest.approx([2.0, 1.5, 0.25])
    assert weights("mis") == pytest.approx([0.0, 1.5, 0.0])


@given(logprob, logprob, st.floats(1.01, 10))
def test_corrected_weights_stay_within_the_cap(old: float, engine: float, cap: float) -> None:
    pair = torch.tensor([old]), torch.tensor([engine])
    tis = correction_weights(*pair, CorrectionConfig(kind="tis", cap=cap)).item()
    mis = correction_weights(*pair, CorrectionConfig(kind="mis", cap=cap)).item()
    assert 0 < tis <= cap * (1 + 1e-6)
    assert mis == 0.0 or 1 / cap * (1 - 1e-6) <= mis <= cap * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["tis", "mis"])
def test_an_engine_that_agrees_needs_no_correction(kind: str) -> None:
    same = torch.tensor([[-0.5, -3.0]])
    assert correction_weights(same, same, CorrectionConfig(kind=kind)).tolist() == [[1.0, 1.0]]
