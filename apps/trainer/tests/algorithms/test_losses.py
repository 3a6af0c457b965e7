"""Token losses against numbers worked out by hand, and how the parts are joined."""

import dataclasses
import math
import pickle
import typing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from retool_trainer.algorithms import (
    ADVANTAGES,
    cispo_loss,
    clip_loss,
    gspo_loss,
    make_token_loss,
    token_weights,
)
from retool_trainer.config import CorrectionConfig, KlConfig, RlConfig

log_ratio = st.floats(-5, 5)
advantage = st.floats(-3, 3)


@dataclasses.dataclass(kw_only=True)
class Batch:
    logprobs_BT: Tensor
    mask_BT: Tensor
    entropy_BT: Tensor | None = None
    old_logprobs_BT: Tensor | None = None
    advantages_BT: Tensor | None = None
    reference_logprobs_BT: Tensor | None = None
    engine_logprobs_BT: Tensor | None = None


def rl(**changes: object) -> RlConfig:
    return RlConfig.model_validate({"problems": "train", **changes})


def test_clip_loss_by_hand() -> None:
    # ratios 1.5, 1.1, 0.5, 0.5, 1.5 with bounds 0.8 and 1.28
    ratio = torch.tensor([[1.5, 1.1, 0.5, 0.5, 1.5]])
    advantages = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0]])
    got = clip_loss(ratio.log(), advantages, clip_low=0.2, clip_high=0.28)
    assert got.loss_BT[0].tolist() == pytest.approx([-1.28, -1.1, -0.5, 0.8, 1.5])
    assert got.clipped_BT[0].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert got.ratio_BT[0].tolist() == pytest.approx(ratio[0].tolist())


def test_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    ratio = torch.tensor([[5.0, 5.0, 2.0]])
    advantages = torch.tensor([[-2.0, 2.0, -2.0]])
    got = clip_loss(ratio.log(), advantages, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert got.loss_BT[0].tolist() == pytest.approx([6.0, -2.4, 4.0])
    assert got.clipped_BT[0].tolist() == [1.0, 1.0, 0.0]


def test_a_clipped_token_has_no_gradient() -> None:
    x = torch.log(torch.tensor([[1.5, 1.1]])).requires_grad_()
    clip_loss(x, torch.ones(1, 2), clip_low=0.2, clip_high=0.28).loss_BT.sum().backward()
    assert x.grad is not None
    assert x.grad[0].tolist() == pytest.approx([0.0, -1.1])


@given(st.lists(st.tuples(log_ratio, advantage), min_size=1, max_size=6))
def test_clip_bounds(pairs: list) -> None:
    x, a = (torch.tensor([column], dtype=torch.float64) for column in zip(*pairs, strict=True))
    loss = clip_loss(x, a, clip_low=0.2, clip_high=0.28).loss_BT
    dual = clip_loss(x, a, clip_low=0.2, clip_high=0.28, dual_clip=3.0).loss_BT
    assert (loss >= -a * x.exp() - 1e-12).all(), "pessimistic: never below the free loss"
    assert (loss[a > 0] >= -1.28 * a[a > 0] - 1e-12).all(), "a good token's gain is bounded"
    assert (dual <= loss).all()
    assert (dual[a < 0] <= -3.0 * a[a < 0] + 1e-12).all(), "so is a bad token's loss"
    assert torch.equal(dual[a >= 0], loss[a >= 0])


@pytest.mark.parametrize("huge", [-1e4, 1e4])
def test_an_absurd_ratio_gives_finite_losses_and_gradients(huge: float) -> None:
    for value in (-1.0, 1.0):
        x = torch.tensor([[huge]], requires_grad=True)
        loss = clip_loss(x, torch.full((1, 1), value), clip_low=0.2, clip_high=0.28).loss_BT
        loss.sum().backward()
        assert math.isfinite(loss.item())
        assert x.grad is not None
        assert math.isfinite(x.grad.item())


def test_gspo_by_hand() -> None:
    # Sampled tokens have log ratios ln 4 and 0: the sequence's ratio is exp(ln 4 / 2) = 2.
    x = torch.tensor([[math.log(4), 9.0, 0.0]])
    mask = torch.tensor([[1, 0, 1]])
    got = gspo_loss(x, torch.ones(1, 3), mask, clip_low=0.2, clip_high=0.5)
    assert got.ratio_BT[0, [0, 2]].tolist() == pytest.approx([2.0, 2.0])
    assert got.loss_BT[0, [0, 2]].tolist() == pytest.approx([-1.5, -1.5])
    assert got.clipped_BT[0, [0, 2]].tolist() == [1.0, 1.0]


def test_gspo_under_sequence_mean_has_the_gradient_of_the_papers_equation_5() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(3, 6, generator=generator, dtype=torch.float64) * 0.01).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    advantages = torch.tensor([[1.0], [-0.5], [2.0]], dtype=torch.float64)
    ours = gspo_loss(x, advantages.expand(3, 6), mask, clip_low=0.5, clip_high=0.5).loss_BT
    weights = torch.stack(
        [torch.from_numpy(w) for w in token_weights(mask.numpy(), "sequence_mean")]
    )
    ratio = ((x * mask).sum(-1) / mask.sum(-1)).exp()
    paper = -(ratio * advantages[:, 0]).mean()
    got = torch.autograd.grad((weights * ours).sum(), x, retain_graph=True)[0]
    expected = torch.autograd.grad(paper, x)[0]
    assert torch.allclose(got, expected, atol=1e-7)
    assert (weights * ours).sum().item() == pytest.approx(paper.item(), abs=1e-7)


def test_cispo_by_hand() -> None:
    # Weights clip(2) = 1.28 and clip(0.5) = 0.8, constants in the gradient.
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    x = torch.tensor([[math.log(2), math.log(0.5)]])
    got = cispo_loss(logprobs, x, torch.tensor([[1.0, -1.0]]), clip_low=0.2, clip_high=0.28)
    assert got.loss_BT[0].tolist() == pytest.approx([1.28, -1.6])
    assert got.clipped_BT[0].tolist() == [1.0, 1.0]
    got.loss_BT.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-1.28, 0.8])


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo"])
def test_at_the_old_policy_every_loss_has_the_gradient_of_reinforce(loss: str) -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -0.3], [-0.5, -0.1, -4.0]], requires_grad=True)
    advantages = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
    # GSPO spreads a sequence's gradient evenly, so compare under the weights that it is made for.
    mask = torch.ones(2, 3)
    batch = Batch(logprobs_BT=logprobs, mask_BT=mask, advantages_BT=advantages)
    loss_BT, stats = make_token_loss(rl(loss=loss))(batch)
    got = torch.autograd.grad(loss_BT.sum(), logprobs)[0]
    assert torch.allclose(got, -advantages)
    assert stats["ratio"].unique().tolist() == [1.0]
    assert stats["clip_fraction"].sum() == 0


def test_the_joined_loss_is_the_sum_of_its_parts() -> None:
    half = math.log(2)
    batch = Batch(
        logprobs_BT=torch.tensor([[-1.0, -5.0]]),
        mask_BT=torch.tensor([[1, 0]]),
        old_logprobs_BT=torch.tensor([[-1.0, 0.0]]),
        advantages_BT=torch.tensor([[2.0, 2.0]]),
        reference_logprobs_BT=torch.tensor([[-1.0 - half, 0.0]]),
        engine_logprobs_BT=torch.tensor([[-1.0 - math.log(4), 0.0]]),
        entropy_BT=torch.tensor([[0.7, 9.0]]),
    )
    config = rl(
        kl=KlConfig(coefficient=0.1, estimator="k1"),
        correction=CorrectionConfig(kind="tis", cap=3.0),
        entropy_coefficient=0.01,
    )
    loss_BT, stats = make_token_loss(config)(batch)
    # weight min(4, 3) x -2, plus 0.1 ln 2, minus 0.01 x 0.7
    assert loss_BT[0].tolist() == pytest.approx([-6 + 0.1 * half - 0.007, 0.0])
    assert {name: value[0].tolist() for name, value in stats.items()} == {
        "policy_loss": [-2.0, 0.0],
        "ratio": [1.0, 0.0],
        "clip_fraction": [0.0, 0.0],
        "approx_kl": [0.0, 0.0],
        "engine_logprob_gap": [pytest.approx(math.log(4)), 0.0],
        "correction_weight": [3.0, 0.0],
        "correction_bound": [1.0, 0.0],
        "kl": [pytest.approx(half), 0.0],
        "entropy": [pytest.approx(0.7), 0.0],
    }


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo"])
def test_what_lies_outside_the_mask_cannot_poison_the_gradient(loss: str) -> None:
    rubbish = torch.tensor([[-1.0, math.nan, -math.inf]])
    logprobs = rubbish.clone().requires_grad_()
    batch = Batch(
        logprobs_BT=logprobs,
        mask_BT=torch.tensor([[True, False, False]]),
        old_logprobs_BT=rubbish,
        advantages_BT=rubbish,
        reference_logprobs_BT=rubbish,
        engine_logprobs_BT=rubbish,
        entropy_BT=rubbish,
    )
    config = rl(
        loss=loss,
        kl=KlConfig(coefficient=0.1),
        correction=CorrectionConfig(kind="mis"),
        entropy_coefficient=0.1,
    )
    loss_BT, stats = make_token_loss(config)(batch)
    loss_BT.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0, 1:].tolist() == [0.0, 0.0]
    assert math.isfinite(logprobs.grad[0, 0].item())
    for value in (loss_BT, *stats.values()):
        assert torch.isfinite(value).all()
        assert not value[0, 1:].any()


def test_stats_carry_no_gradient() -> None:
    x = torch.tensor([[-1.0]], requires_grad=True)
    batch = Batch(
        logprobs_BT=x, mask_BT=torch.ones(1, 1), advantages_BT=torch.ones(1, 1), entropy_BT=-x
    )
    _, stats = make_token_loss(rl())(batch)
    assert not any(value.requires_grad for value in stats.values())


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"kl": {"coefficient": 0.1}}, "reference_logprobs_BT"),
        ({"correction": {"kind": "tis"}}, "engine_logprobs_BT"),
        ({"entropy_coefficient": 0.1}, "entropy_BT"),
    ],
)
def test_a_missing_tensor_is_named(changes: dict, missing: str) -> None:
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match=missing):
        make_token_loss(rl(**changes))(Batch(logprobs_BT=-one, mask_BT=one, advantages_BT=one))


def test_kl_in_the_reward_stays_out_of_the_loss_but_is_reported() -> None:
    one = torch.ones(1, 1)
    batch = Batch(
        logprobs_BT=-one, mask_BT=one, advantages_BT=0 * one, reference_logprobs_BT=-3 * one
    )
    loss_BT, stats = make_token_loss(rl(kl={"coefficient": 1.0, "where": "reward"}))(batch)
    assert loss_BT.item() == 0.0
    assert stats["kl"].item() > 0


def test_the_loss_survives_pickling() -> None:
    loss = make_token_loss(rl(dual_clip=3.0, kl={"coefficient": 0.1}))
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize("loss", ["gspo", "cispo"])
def test_a_bound_that_a_loss_does_not_have_is_refused(loss: str) -> None:
    with pytest.raises(
        ValueError, match=f"rl.dual_clip is a bound of rl.loss=clip, not of '{loss}'"
    ):
        rl(loss=loss, dual_clip=3.0)


def test_every_estimator_of_the_configuration_exists() -> None:
    choices = typing.get_args(RlConfig.model_fields["advantage"].annotation)
    assert set(choices) == set(ADVANTAGES)


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length"])
@given(data=st.data())
def test_the_total_does_not_depend_on_microbatches_or_padding(
    loss: str, aggregation: str, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    token = st.tuples(st.floats(-3, -0.01), st.floats(-1, 1), st.integers(0, 1))
    rows = [data.draw(st.lists(token, min_size=n, max_size=n)) for n in lengths]
    advantages = data.draw(st.lists(advantage, min_size=len(rows), max_size=len(rows)))
    weights = token_weights([[t[2] for t in row] for row in rows], aggregation, constant_tokens=6)
    token_loss = make_token_loss(rl(loss=loss))

    def total(chosen: list[int], width: int) -> float:
        def tensor(columns: list[list[float]]) -> Tensor:
            padded = [column + [0.0] * (width - len(column)) for column in columns]
            return torch.tensor(padded, dtype=torch.float64)

        loss_BT, _ = token_loss(
            Batch(
                logprobs_BT=tensor([[t[0] for t in rows[i]] for i in chosen]),
                old_logprobs_BT=tensor([[t[0] + t[1] for t in rows[i]] for i in chosen]),
                mask_BT=tensor([[t[2] for t in rows[i]] for i in chosen]),
                advantages_BT=tensor([[advantages[i]] * len(rows[i]) for i in chosen]),
            )
        )
        return float((tensor([weights[i].tolist() for i in chosen]) * loss_BT).sum())

    whole = total(list(range(len(rows))), max(lengths) + 2)
    alone = sum(total([i], lengths[i]) for i in range(len(rows)))
    assert alone == pytest.approx(whole, abs=1e-9)
