"""Folders are written whole, in shards of a bounded size, and read tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from retool_trainer.config import ModelShape
from retool_trainer.errors import CheckpointError
from retool_trainer.policy import make_random_hf
from retool_trainer.policy._hf_files import HfTensors, write_hf

_TENSORS = {f"t{i}": torch.full((100,), float(i)) for i in range(5)}


def test_shards_have_an_index_and_read_back(tmp_path: Path) -> None:
    write_hf(tmp_path / "out", iter(_TENSORS.items()), config={"a": 1}, shard_bytes=900)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000
    source = HfTensors(tmp_path / "out")
    assert source.names == set(_TENSORS)
    for name, tensor in _TENSORS.items():
        assert torch.equal(source.read(name), tensor)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_hf(tmp_path / "out", iter(_TENSORS.items()), config={}, shard_bytes=900)
    (tmp_path / "out" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names model-00002-of-00003\.saf"):
        HfTensors(tmp_path / "out")


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_hf(tmp_path / "out", iter(_TENSORS.items()), config={})
    with pytest.raises(CheckpointError, match=r"has no tensor 'lm_head\.weight'"):
        HfTensors(tmp_path / "out").read("lm_head.weight")


def test_a_failure_half_way_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    write_hf(tmp_path / "out", iter(_TENSORS.items()), config={"version": 1})

    def breaks() -> Iterator[tuple[str, Tensor]]:
        yield "t0", torch.zeros(1)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_hf(tmp_path / "out", breaks(), config={"version": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["version"] == 1


def test_side_files_come_along_and_weights_do_not(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "chat_template.jinja", "pytorch_model.bin", "config.json"):
        (source / name).write_text("{}")
    write_hf(tmp_path / "out", iter(_TENSORS.items()), config={"a": 1}, copy_from=source)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"tokenizer.json", "chat_template.jinja", "config.json", "model.safetensors"}


def test_random_weights_depend_on_the_seed_alone_and_no_row_is_zero(tmp_path: Path) -> None:
    shape = ModelShape(hidden_size=32, num_layers=2, head_dim=8, mlp_size=64)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_random_hf(shape, 50, tmp_path / name, seed)
    first, again, other = (HfTensors(tmp_path / name) for name in ("a", "b", "c"))
    for name in first.names:
        assert torch.equal(first.read(name), again.read(name))
    name = "model.embed_tokens.weight"
    assert not torch.equal(first.read(name), other.read(name))
    # A zero row is how Hugging Face marks padding; training on it explodes the gradient.
    assert first.read(name).abs().sum(dim=1).min() > 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["pad_token_id"] is None
