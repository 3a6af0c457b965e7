"""Which Hugging Face tensors make up which Megatron parameter, and how tensor ranks cut it.

Shapes are PyTorch's [out, in]. For a fused parameter the cut comes first and the fusion second:
every tensor rank fuses its own part of each Hugging Face tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from ._hf_config import ModelDims


class Cut(Enum):
    """How a parameter is divided among tensor-parallel ranks."""

    WHOLE = "whole"
    """Every rank has all of it."""
    COLUMNS = "columns"
    """Dimension 1 in equal parts."""
    VOCABULARY = "vocabulary"
    """Dimension 0 in equal parts after padding with zero rows to a multiple of the ranks."""
    QKV = "qkv"
    """q, k and v by key/value groups; fused group by group: its query heads, its k, its v."""
    GATE_UP = "gate_up"
    """gate and up in equal parts of dimension 0; fused as gate above up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One Megatron parameter and the Hugging Face tensors that it holds."""

    megatron: str
    hf: tuple[str, ...]
    cut: Cut
    layer: int | None = None
    """Its layer in the whole model; None for what is outside the layers."""
    present: str = "always"
    """always, qkv_bias, qk_norm or untied: the kind of model that has it."""


_EMBEDDING = Entry(
    megatron="embedding.word_embeddings.weight",
    hf=("model.embed_tokens.weight",),
    cut=Cut.VOCABULARY,
)
_LAYER = (
    Entry(megatron="input_layernorm.weight", hf=("input_layernorm.weight",), cut=Cut.WHOLE),
    Entry(
        megatron="self_attention.linear_qkv.weight",
        hf=("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        cut=Cut.QKV,
    ),
    Entry(
        megatron="self_attention.linear_qkv.bias",
        hf=("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        cut=Cut.QKV,
        present="qkv_bias",
    ),
    Entry(
        megatron="self_attention.q_layernorm.weight",
        hf=("self_attn.q_norm.weight",),
        cut=Cut.WHOLE,
        present="qk_norm",
    ),
    Entry(
        megatron="self_attention.k_layernorm.weight",
        hf=("self_attn.k_norm.weight",),
        cut=Cut.WHOLE,
        present="qk_norm",
    ),
    Entry(
        megatron="self_attention.linear_proj.weight",
        hf=("self_attn.o_proj.weight",),
        cut=Cut.COLUMNS,
    ),
    Entry(
        megatron="pre_mlp_layernorm.weight",
        hf=("post_attention_layernorm.weight",),
        cut=Cut.WHOLE,
    ),
    Entry(
        megatron="mlp.linear_fc1.weight",
        hf=("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        cut=Cut.GATE_UP,
    ),
    Entry(megatron="mlp.linear_fc2.weight", hf=("mlp.down_proj.weight",), cut=Cut.COLUMNS),
)
_FINAL_NORM = Entry(
    megatron="decoder.final_layernorm.weight", hf=("model.norm.weight",), cut=Cut.WHOLE
)
_HEAD = Entry(
    megatron="output_layer.weight", hf=("lm_head.weight",), cut=Cut.VOCABULARY, present="untied"
)


def entries(dims: ModelDims) -> Iterator[Entry]:
    """Every parameter of the model in the order of its layers; layers count from 0.

    `megatron` names are those of a model on one pipeline stage: later stages count their own layers
    from 0 (see `on_stage`). A tied embedding is there once.
    """
    kinds = {
        "always": True,
        "qkv_bias": dims.qkv_bias,
        "qk_norm": dims.qk_norm,
        "untied": not dims.tied_embeddings,
    }
    yield _EMBEDDING
    for layer in range(dims.num_layers):
        for entry in _LAYER:
            if kinds[entry.present]:
                yield Entry(
                    megatron=f"decoder.layers.{layer}.{entry.megatron}",
                    hf=tuple(f"model.layers.{layer}.{name}" for name in entry.hf),
                    cut=entry.cut,
                    layer=layer,
                    present=entry.present,
                )
    yield _FINAL_NORM
    if kinds[_HEAD.present]:
        yield _HEAD


def stage_of(entry: Entry, dims: ModelDims, num_stages: int) -> int:
    """The pipeline stage that owns a parameter (the first one, for a tied embedding)."""
    if entry.layer is not None:
        return entry.layer // (dims.num_layers // num_stages)
    return 0 if entry.megatron == _EMBEDDING.megatron else num_stages - 1


def on_stage(entry: Entry, dims: ModelDims, num_stages: int) -> str:
    """The parameter's name on its own stage."""
    if entry.layer is None:
        return entry.megatron
    local = entry.layer % (dims.num_layers // num_stages)
    return entry.megatron.replace(f"decoder.layers.{entry.layer}.", f"decoder.layers.{local}.", 1)


def cut_for_rank(
    entry: Entry, whole: Sequence[Tensor], dims: ModelDims, *, rank: int, size: int
) -> Tensor:
    """Take one tensor rank's part of the Hugging Face tensors and fuse it.

    Args:
        entry: The parameter.
        whole: Its Hugging Face tensors, complete, in the entry's order.
        dims: Of the model.
        rank: The tensor rank.
        size: Number of tensor ranks.

    Returns:
        The Megatron parameter of that rank.
    """
    match entry.cut:
        case Cut.WHOLE:
            return whole[0]
        case Cut.COLUMNS:
            return whole[0].chunk(size, dim=1)[rank]
        case Cut.VOCABULARY:
            padding = padded_vocab(dims.vocab_size, size) - whole[0].size(0)
            padded = torch.nn.functional.pad(whole[0], (0, 0, 0, padding)) if padding else whole[0]
            return padded.chunk(size, dim=0)[rank]
        case Cut.GATE_UP:
            return torch.cat([tensor.chunk(size, dim=0)[rank] for tensor in whole])
        case Cut.QKV:
            groups = dims.num_kv_heads
            # [group, rows of this group, ...]: q has several heads in a group, k and v have one.
            grouped = [t.reshape(groups, t.size(0) // groups, *t.shape[1:]) for t in whole]
            fused = torch.cat([t.chunk(size, dim=0)[rank] for t in grouped], dim=1)
            return fused.reshape(-1, *whole[0].shape[1:])


def join_ranks(entry: Entry, parts: Sequence[Tensor], dims: ModelDims) -> list[Tensor]:
    """Undo `cut_for_rank`: from every tensor rank's part to the Hugging Face tensors."""
    match entry.cut:
        case Cut.WHOLE:
            return [parts[0]]
        case Cut.COLUMNS:
            return [torch.cat(list(parts), dim=1)]
        case Cut.VOCABULARY:
            return [torch.cat(list(parts), dim=0)[: dims.vocab_size]]
        case Cut.GATE_UP:
            halves = [part.chunk(2, dim=0) for part in parts]
            return [torch.cat([half[i] for half in halves]) for i in range(2)]
        case Cut.QKV:
            rows = _rows_per_group(dims)
            fused = torch.cat(list(parts))
            grouped = fused.reshape(dims.num_kv_heads, sum(rows), *fused.shape[1:])
            return [
                tensor.reshape(-1, *fused.shape[1:]).contiguous()
                for tensor in grouped.split(rows, dim=1)
            ]


def fused_rows(entry: Entry, dims: ModelDims) -> list[Tensor] | None:
    """Which rows of a fused parameter (on one tensor rank) belong to each Hugging Face tensor.

    Returns:
        One index tensor per Hugging Face tensor; None if nothing is fused.
    """
    if entry.cut is Cut.GATE_UP:
        return list(torch.arange(2 * dims.mlp_size).chunk(2))
    if entry.cut is Cut.QKV:
        rows = _rows_per_group(dims)
        grouped = torch.arange(dims.num_kv_heads * sum(rows)).view(-1, sum(rows))
        return [part.reshape(-1) for part in grouped.split(rows, dim=1)]
    return None


def hf_shape(name: str, dims: ModelDims) -> tuple[int, ...]:
    """The shape that a Hugging Face tensor of this name has."""
    hidden, queries = dims.hidden_size, dims.num_heads * dims.head_dim
    pairs = dims.num_kv_heads * dims.head_dim
    module, kind = name.rsplit(".", 1)
    matrices = {
        "embed_tokens": (dims.vocab_size, hidden),
        "lm_head": (dims.vocab_size, hidden),
        "q_proj": (queries, hidden),
        "k_proj": (pairs, hidden),
        "v_proj": (pairs, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (dims.mlp_size, hidden),
        "up_proj": (dims.mlp_size, hidden),
        "down_proj": (hidden, dims.mlp_size),
        "q_norm": (dims.head_dim,),
        "k_norm": (dims.head_dim,),
    }
    shape = matrices.get(module.rsplit(".", 1)[-1], (hidden,))
    return shape[:1] if kind == "bias" else shape


def padded_vocab(vocab_size: int, tensor_parallel: int) -> int:
    """The next multiple of the tensor ranks."""
    return -(-vocab_size // tensor_parallel) * tensor_parallel


def _rows_per_group(dims: ModelDims) -> list[int]:
    per_group = dims.num_heads // dims.num_kv_heads
    return [per_group * dims.head_dim, dims.head_dim, dims.head_dim]
