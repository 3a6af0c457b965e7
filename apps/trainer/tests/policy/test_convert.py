"""`convert` brings weights to Megatron's format and back without changing a bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file


def test_there_and_back_is_exact_and_another_theta_is_refused(
    ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    hf = make_hf("qwen2")
    code, out, error = ranks.command("convert", hf, tmp_path / "megatron", "--json")
    assert (code, error) == (0, "")
    report = json.loads(out)
    assert report["format"] == "megatron"
    assert report["num_parameters"] == sum(
        tensor.size for tensor in load_file(hf / "model.safetensors").values()
    )
    tracker = tmp_path / "megatron" / "latest_checkpointed_iteration.txt"
    assert tracker.read_text() == "release\n"

    # Only config.json and the tokenizer are needed of the folder that --hf names.
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (bare / name).write_text((hf / name).read_text())
    code, out, error = ranks.command(
        "convert", tmp_path / "megatron", tmp_path / "back", "--hf", bare, "--dtype", "float32"
    )
    assert (code, error) == (0, "")
    assert out.startswith("ok    huggingface")
    before = load_file(hf / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert np.array_equal(tensor, after[name]), name

    config = json.loads((bare / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"] = 1e6
    (bare / "config.json").write_text(json.dumps(config))
    code, _, error = ranks.command(
        "convert", tmp_path / "megatron", tmp_path / "wrong", "--hf", bare
    )
    assert code == 1
    assert "rope_theta is 10000.0 in the checkpoint but 1000000.0 in the model" in error
    assert not (tmp_path / "wrong").exists()


def test_what_cannot_be_converted_is_one_clear_line(
    ranks: Any, make_hf: Any, tmp_path: Path
) -> None:
    code, _, error = ranks.command("convert", tmp_path, tmp_path / "out")
    assert code == 1
    assert "is neither a Hugging Face folder" in error
    assert len(error.splitlines()) == 1
    _, _, error = ranks.command("convert", make_hf(), tmp_path)
    assert "exists; choose a target" in error
