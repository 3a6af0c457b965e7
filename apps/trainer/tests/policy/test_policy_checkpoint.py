"""A checkpoint continues exactly, in its own layout or another; it is there whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

_ADAM = ("set_optimizer", {"learning_rate": 1e-2, "schedule": "cosine", "warmup_steps": 2})
_MUON = (
    "set_optimizer",
    {"name": "muon", "learning_rate": 1e-2, "schedule": "linear", "weight_decay": 0.1},
)


@pytest.mark.parametrize(
    ("optimizer", "layout"),
    [
        (_ADAM, {}),
        (_MUON, {}),
        (_ADAM, {"tensor_parallel": 2}),
        (_MUON, {"data_parallel": 2}),
        (_ADAM, {"data_parallel": 2, "distributed_optimizer": True}),
        (_MUON, {"pipeline_parallel": 2, "dtype": "bfloat16"}),
    ],
    ids=["adam", "muon", "adam TP2", "muon DP2", "adam DP2 distributed", "muon PP2 bfloat16"],
)
def test_loading_continues_bit_for_bit(
    optimizer: Any, layout: dict[str, Any], ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    undisturbed = ranks.run(
        make_hf(),
        optimizer,
        ("steps", {"count": 3}),
        ("save", {"folder": tmp_path / "step-3"}),
        ("steps", {"count": 3, "first_seed": 3}),
        ("weights", {}),
        **layout,
    )
    continued = ranks.run(
        # Other weights to start from: all that counts is the checkpoint.
        make_hf(seed=1),
        optimizer,
        ("load", {"folder": tmp_path / "step-3"}),
        ("steps", {"count": 3, "first_seed": 3}),
        ("weights", {}),
        **layout,
    )
    assert continued[2] == undisturbed[3]
    for name, tensor in undisturbed[4].items():
        assert np.array_equal(continued[3][name], tensor), name


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({"tensor_parallel": 2}, {}),
        ({}, {"tensor_parallel": 2}),
        ({"pipeline_parallel": 2}, {}),
        ({"data_parallel": 2, "distributed_optimizer": True}, {"distributed_optimizer": True}),
    ],
    ids=["TP2-TP1", "TP1-TP2", "PP2-PP1", "DP2-DP1 distributed"],
)
def test_another_layout_continues(
    saved: dict[str, Any], loaded: dict[str, Any], ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    undisturbed = ranks.run(
        make_hf(),
        _ADAM,
        ("steps", {"count": 2}),
        ("save", {"folder": tmp_path / "step-2"}),
        ("steps", {"count": 3, "first_seed": 2}),
        **saved,
    )
    continued = ranks.run(
        make_hf(seed=1),
        _ADAM,
        ("load", {"folder": tmp_path / "step-2"}),
        ("steps", {"count": 3, "first_seed": 2}),
        **loaded,
    )
    for step, expected in zip(continued[2], undisturbed[3], strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], abs=1e-4)
        assert step["learning_rate"] == expected["learning_rate"]


def test_a_checkpoint_of_another_model_is_refused_by_name(
    ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    ranks.run(make_hf(), _ADAM, ("save", {"folder": tmp_path / "a"}))
    with pytest.raises(Exception, match=r"rope_theta is 10000\.0 in the checkpoint but 500000\.0"):
        ranks.run(make_hf(rope_theta=500_000.0), _ADAM, ("load", {"folder": tmp_path / "a"}))


def test_another_optimizers_state_is_refused(ranks: Any, make_hf: Any, tmp_path: Path) -> None:
    ranks.run(make_hf(), _ADAM, ("save", {"folder": tmp_path / "a"}), distributed_optimizer=True)
    for optimizer in (_ADAM, _MUON):
        with pytest.raises(Exception, match="has the state of adam, distributed, but this stage"):
            ranks.run(make_hf(), optimizer, ("load", {"folder": tmp_path / "a"}))


def test_saving_replaces_and_leaves_nothing_else(ranks: Any, make_hf: Any, tmp_path: Path) -> None:
    target = ("save", {"folder": tmp_path / "newest"})
    ranks.run(make_hf(), _ADAM, target, ("step", {}), target)
    assert [path.name for path in tmp_path.iterdir()] == ["newest"]


def test_half_a_checkpoint_is_refused(ranks: Any, make_hf: Any, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    with pytest.raises(Exception, match="is not a checkpoint"):
        ranks.run(make_hf(), ("load", {"folder": tmp_path / "half"}))


def test_weights_alone_load_without_an_optimizer(ranks: Any, make_hf: Any, tmp_path: Path) -> None:
    folder = {"folder": tmp_path / "a"}
    expected = ranks.run(make_hf(), _ADAM, ("step", {}), ("save", folder), ("logprobs", {}))[3]
    found = ranks.run(make_hf(seed=1), ("load", folder), ("logprobs", {}))[1]
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_megatron_lms_own_checkpoints_load_and_its_arguments_are_compared(
    ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    import torch

    folder = tmp_path / "iter_0000007"
    expected = ranks.run(make_hf(), ("save", {"folder": folder}), ("logprobs", {}))[1]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7\n")
    # Megatron-LM knows nothing of our own record; what remains is what it would have written.
    common = torch.load(folder / "common.pt", weights_only=False)
    del common["common"]
    torch.save(common, folder / "common.pt")
    load = ("load", {"folder": tmp_path})
    found = ranks.run(make_hf(seed=1), load, ("logprobs", {}))[1]
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)
    with pytest.raises(Exception, match=r"rope_theta is 10000\.0 in the checkpoint but 500000\.0"):
        ranks.run(make_hf(rope_theta=500_000.0), load)
    with pytest.raises(Exception, match="has the state of no optimizer, but this stage uses adam"):
        ranks.run(make_hf(), _ADAM, load)
    del common["args"]
    torch.save(common, folder / "common.pt")
    with pytest.raises(Exception, match="does not say of which model it is"):
        ranks.run(make_hf(), load)
