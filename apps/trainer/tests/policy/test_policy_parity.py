"""The Megatron policy computes what transformers computes, in every parallel layout."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

VOCAB_SIZE = 101
_ADAM = ("set_optimizer", {"learning_rate": 1e-2, "weight_decay": 0.1})


def _reference_logits(hf: Path, rows: Any) -> list[np.ndarray]:
    """transformers' float32 logits of each row alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32).eval()
    with torch.no_grad():
        return [
            model(torch.from_numpy(row.ids.astype(np.int64))[None]).logits[0].numpy()
            for row in rows
        ]


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_logits_and_logprobs_equal_those_of_transformers(
    architecture: str, ranks: Any, make_hf: Any, worker: ModuleType
) -> None:
    hf = make_hf(architecture)
    rows = worker.make_rows(0, 4, VOCAB_SIZE)
    expected = _reference_logits(hf, rows)
    wanted = []
    for row, logits in zip(rows, expected, strict=True):
        log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        wanted.append(np.take_along_axis(log_softmax[:-1], row.ids[1:, None], 1)[:, 0])
    for layout in ({}, {"tensor_parallel": 2}):
        logits, logprobs = ranks.run(hf, ("logits", {}), ("logprobs", {}), **layout)
        assert np.abs(logits - np.concatenate(expected)).max() <= 1e-5
        for row, found, expected_T in zip(rows, logprobs, wanted, strict=True):
            assert found.shape == row.ids.shape
            assert found[0] == 0.0
            assert np.abs(found[1:] - expected_T).max() <= 1e-5


LAYOUTS = {
    "TP2": {"tensor_parallel": 2},
    "PP2": {"pipeline_parallel": 2},
    "DP2": {"data_parallel": 2},
    "DP2 distributed optimizer": {"data_parallel": 2, "distributed_optimizer": True},
    "PP2 small microbatches recomputed": {
        "pipeline_parallel": 2,
        "tokens_per_microbatch": 90,
        "recompute": True,
    },
}


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_every_layout_trains_alike(architecture: str, ranks: Any, make_hf: Any) -> None:
    hf = make_hf(architecture)
    actions = (_ADAM, ("steps", {"count": 5, "loss": "advantage"}), ("logprobs", {}))
    _, expected, expected_logprobs = ranks.run(hf, *actions)
    assert expected[0]["loss"] != expected[-1]["loss"]
    for name, layout in LAYOUTS.items():
        _, steps, logprobs = ranks.run(hf, *actions, **layout)
        for step, one_rank in zip(steps, expected, strict=True):
            assert step.keys() == one_rank.keys()
            assert step["loss"] == pytest.approx(one_rank["loss"], abs=1e-4), name
            assert step["entropy"] == pytest.approx(one_rank["entropy"], abs=1e-4), name
            assert step["grad_norm"] == pytest.approx(one_rank["grad_norm"], rel=1e-3), name
            assert step["sampled_tokens"] == one_rank["sampled_tokens"]
        for found, one_rank in zip(logprobs, expected_logprobs, strict=True):
            assert np.abs(found - one_rank).max() <= 1e-3, name


def test_all_ranks_report_the_same_numbers(ranks: Any, make_hf: Any) -> None:
    for layout in ({"data_parallel": 2}, {"pipeline_parallel": 2}, {"tensor_parallel": 2}):
        first, second = ranks.run_ranks(
            make_hf(), _ADAM, ("steps", {"count": 2}), world_size=2, **layout
        )
        assert first[1] == second[1]


def test_gradients_equal_those_of_transformers(
    ranks: Any, make_hf: Any, worker: ModuleType
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    hf = make_hf("qwen2")
    rows = worker.make_rows(3, 10, VOCAB_SIZE)
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32)
    total = torch.zeros(())
    for row in rows:
        ids = torch.from_numpy(row.ids.astype(np.int64))
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1)
        token = logprobs.gather(1, ids[1:, None])[:, 0]
        total = total - (token * torch.from_numpy(row.weights[1:])).sum()
    total.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    _, step = ranks.run(hf, _ADAM, ("step", {"seed": 3}))
    assert step["loss"] == pytest.approx(total.item(), abs=1e-5)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_temperature_divides_the_logits(ranks: Any, make_hf: Any, worker: ModuleType) -> None:
    hf = make_hf()
    row = worker.make_rows(0, 4, VOCAB_SIZE)[0]
    logits = _reference_logits(hf, [row])[0] / 0.5
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_softmax[:-1], row.ids[1:, None], 1)[:, 0]
    found = ranks.run(hf, ("logprobs", {"temperature": 0.5}))[0][0]
    assert np.abs(found[1:] - expected).max() <= 1e-4


def test_bfloat16_with_recompute_stays_near_float32(ranks: Any, make_hf: Any) -> None:
    actions = (_ADAM, ("steps", {"count": 4}))
    _, exact = ranks.run(make_hf(), *actions)
    _, rounded = ranks.run(make_hf(), *actions, dtype="bfloat16", recompute=True)
    for step, reference in zip(rounded, exact, strict=True):
        assert step["loss"] == pytest.approx(reference["loss"], rel=0.02)
