"""Names and cuts: every Hugging Face tensor is mapped, and joining undoes cutting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from retool_trainer.policy import read_dims
from retool_trainer.policy._hf_files import HfTensors
from retool_trainer.policy._mapping import (
    Cut,
    cut_for_rank,
    entries,
    fused_rows,
    hf_shape,
    join_ranks,
    on_stage,
    stage_of,
)

_FAMILIES = ("qwen3", "qwen2", "llama")


@pytest.mark.parametrize("architecture", _FAMILIES)
def test_the_table_names_exactly_the_tensors_of_transformers(
    architecture: str, make_hf: Any
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    hf = make_hf(architecture)
    dims = read_dims(hf)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(hf))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if dims.tied_embeddings:
        del shapes["lm_head.weight"]
    mapped = {name: hf_shape(name, dims) for entry in entries(dims) for name in entry.hf}
    assert mapped == shapes


@pytest.mark.parametrize("architecture", _FAMILIES)
@pytest.mark.parametrize("size", [1, 2])
def test_joining_the_ranks_undoes_cutting(architecture: str, size: int, make_hf: Any) -> None:
    hf = make_hf(architecture)
    dims, source = read_dims(hf), HfTensors(hf)
    seen: set[Cut] = set()
    for entry in entries(dims):
        seen.add(entry.cut)
        whole = [source.read(name) for name in entry.hf]
        parts = [cut_for_rank(entry, whole, dims, rank=r, size=size) for r in range(size)]
        assert len({part.shape for part in parts}) == 1
        for tensor, joined in zip(whole, join_ranks(entry, parts, dims), strict=True):
            assert torch.equal(tensor, joined), entry.megatron
    assert seen == set(Cut)


def test_fused_rows_pick_the_matrices_out_of_a_fused_one(make_hf: Any) -> None:
    hf = make_hf()
    dims, source = read_dims(hf), HfTensors(hf)
    fused = [entry for entry in entries(dims) if fused_rows(entry, dims) is not None]
    assert {entry.cut for entry in fused} == {Cut.QKV, Cut.GATE_UP}
    for entry in fused:
        whole = [source.read(name) for name in entry.hf]
        together = cut_for_rank(entry, whole, dims, rank=0, size=1)
        for tensor, rows in zip(whole, fused_rows(entry, dims) or [], strict=True):
            assert torch.equal(together[rows], tensor)


def test_stages_share_the_layers_and_count_their_own(make_hf: Any) -> None:
    dims = read_dims(make_hf(num_layers=4))
    names = [(stage_of(entry, dims, 2), on_stage(entry, dims, 2)) for entry in entries(dims)]
    assert len(set(names)) == len(names)
    assert (1, "decoder.layers.1.mlp.linear_fc2.weight") in names
    assert (0, "embedding.word_embeddings.weight") in names
    assert (1, "decoder.final_layernorm.weight") in names
