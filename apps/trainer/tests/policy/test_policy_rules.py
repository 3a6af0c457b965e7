"""What a policy does with batches and settings that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

_ADAM = ("set_optimizer", {"learning_rate": 1e-2, "schedule": "linear", "warmup_steps": 1})


def test_over_long_rows_are_dropped_and_counted(ranks: Any, make_hf: Any, worker: Any) -> None:
    lengths = [len(row) for row in worker.make_rows(0, 10, 101)]
    limit = sorted(lengths)[6]
    for layout in ({}, {"data_parallel": 2}):
        _, step, logprobs = ranks.run(
            make_hf(),
            _ADAM,
            ("step", {}),
            ("logprobs", {"num_rows": 10}),
            tokens_per_microbatch=limit,
            **layout,
        )
        assert step["rows_dropped"] == sum(n > limit for n in lengths) > 0
        assert step["tokens"] == sum(n for n in lengths if n <= limit)
        assert np.isfinite(step["loss"])
        for length, values in zip(lengths, logprobs, strict=True):
            assert len(values) == length
            assert np.isnan(values).all() == (length > limit)


def test_a_rank_without_rows_takes_part(ranks: Any, make_hf: Any) -> None:
    one = {"num_rows": 1}
    expected = ranks.run(make_hf(), _ADAM, ("steps", {"count": 2, **one}), ("logprobs", one))
    found = ranks.run(
        make_hf(), _ADAM, ("steps", {"count": 2, **one}), ("logprobs", one), data_parallel=2
    )
    assert found[1][1]["loss"] == pytest.approx(expected[1][1]["loss"], abs=1e-5)
    assert np.abs(found[2][0] - expected[2][0]).max() < 1e-5


def test_a_batch_of_over_long_rows_only_is_no_crash(ranks: Any, make_hf: Any) -> None:
    _, step = ranks.run(make_hf(), _ADAM, ("step", {}), tokens_per_microbatch=2)
    assert step["rows_dropped"] == 10
    assert step["grad_norm"] == 0.0


def test_a_gradient_that_is_no_number_stops_before_the_weights(ranks: Any, make_hf: Any) -> None:
    for layout in ({}, {"data_parallel": 2}):
        _, before, error, after, step = ranks.run(
            make_hf(),
            _ADAM,
            ("logprobs", {}),
            ("try_step", {"loss": "broken"}),
            ("logprobs", {}),
            ("step", {}),
            **layout,
        )
        assert error.startswith("PolicyError: the gradient norm is nan")
        assert np.array_equal(before[0], after[0])
        assert np.isfinite(step["grad_norm"])


def test_masked_only_leaves_the_rest_zero(ranks: Any, make_hf: Any, worker: Any) -> None:
    everything, masked = ranks.run(make_hf(), ("logprobs", {}), ("logprobs", {"masked_only": True}))
    for row, all_T, masked_T in zip(worker.make_rows(0, 4, 101), everything, masked, strict=True):
        assert np.allclose(masked_T, np.where(row.mask, all_T, 0.0), atol=1e-6)


def test_the_learning_rate_follows_the_schedule(ranks: Any, make_hf: Any) -> None:
    _, steps = ranks.run(
        make_hf(),
        ("set_optimizer", {"min_learning_rate_ratio": 0.0, "total_steps": 4, **_ADAM[1]}),
        ("steps", {"count": 4}),
    )
    rates = [step["learning_rate"] for step in steps]
    assert rates == pytest.approx([0.5e-2, 1.0e-2, 0.5e-2, 0.0])


def test_muon_learns(ranks: Any, make_hf: Any) -> None:
    muon = ("set_optimizer", {"name": "muon", "learning_rate": 5e-3, "muon_learning_rate": 0.02})
    losses = [step["loss"] for step in ranks.run(make_hf(), muon, *[("step", {})] * 12)[1:]]
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"tensor_parallel": 2}, "muon does not work with policy.tensor_parallel > 1"),
        ({"distributed_optimizer": True}, "muon does not work with policy.distributed_optimizer"),
    ],
)
def test_muon_refuses_layouts_that_split_matrices(
    layout: dict[str, Any], message: str, ranks: Any, make_hf: Any
) -> None:
    with pytest.raises(Exception, match=message):
        ranks.run(make_hf(), ("set_optimizer", {"name": "muon"}), **layout)


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        ({"num_kv_heads": 1}, {"tensor_parallel": 2}, "does not divide the model's num_key_value"),
        ({"num_layers": 3}, {"pipeline_parallel": 2}, "does not divide the model's num_hidden_lay"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_refused(
    shape: dict[str, int], layout: dict[str, Any], message: str, ranks: Any, make_hf: Any
) -> None:
    with pytest.raises(Exception, match=message):
        ranks.run(make_hf(**shape), **layout)


def test_steps_need_an_optimizer(ranks: Any, make_hf: Any) -> None:
    assert "before set_optimizer" in ranks.run(make_hf(), ("try_step", {}))[0]
