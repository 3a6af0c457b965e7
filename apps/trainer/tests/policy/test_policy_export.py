"""What leaves the policy is a folder that transformers loads and that holds the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

_ADAM = ("set_optimizer", {"learning_rate": 1e-2})


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("layout", [{}, {"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=str)
def test_the_round_trip_changes_no_bit(
    architecture: str, layout: dict[str, Any], ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    hf = make_hf(architecture)
    _, weights = ranks.run(hf, ("export", {"folder": tmp_path / "out"}), ("weights", {}), **layout)
    before, after = (load_file(folder / "model.safetensors") for folder in (hf, tmp_path / "out"))
    assert list(weights) == [name for name in weights if name in before]
    assert before.keys() == after.keys() == weights.keys()
    for name, tensor in before.items():
        assert np.array_equal(after[name], tensor), name
        assert np.array_equal(weights[name], tensor), name
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_transformers_loads_the_trained_export_with_equal_logits(
    ranks: Any, make_hf: Any, worker: ModuleType, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    _, _, _, logits = ranks.run(
        make_hf(),
        _ADAM,
        ("steps", {"count": 3}),
        ("export", {"folder": tmp_path / "out"}),
        ("logits", {}),
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert model.dtype == torch.float32
    with torch.no_grad():
        expected = [
            model(torch.from_numpy(row.ids.astype(np.int64))[None]).logits[0].numpy()
            for row in worker.make_rows(0, 4, 101)
        ]
    assert np.abs(logits - np.concatenate(expected)).max() <= 1e-5


def test_bfloat16_is_exported_as_such(ranks: Any, make_hf: Any, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_torch

    ranks.run(make_hf(), ("export", {"folder": tmp_path / "out"}), dtype="bfloat16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    before, after = (
        load_torch(folder / "model.safetensors") for folder in (make_hf(), tmp_path / "out")
    )
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name].bfloat16()), name
