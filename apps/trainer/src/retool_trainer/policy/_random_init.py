"""Make a Hugging Face folder with random weights, for runs that start from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retool_trainer.config import ModelShape

from ._hf_config import parse_dims
from ._hf_files import write_hf
from ._mapping import entries, hf_shape

# The default of every architecture here.
_STD = 0.02
_NORM_EPSILON = 1e-6
_CLASSES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}


def make_random_hf(shape: ModelShape, vocab_size: int, folder: Path, seed: int) -> None:
    """Write config.json and model.safetensors of a float32 model with random weights.

    Matrices are normal with deviation 0.02, norms 1, biases 0. No token is a padding token to the
    model: Hugging Face would give it a zero row, and a norm divides that by almost nothing once the
    token is sampled.

    Args:
        shape: Sizes and architecture.
        vocab_size: Entries of the tokenizer.
        folder: The target, replaced if it exists.
        seed: The same seed makes the same file.
    """
    config = _config(shape, vocab_size)
    dims = parse_dims(config, folder / "config.json")
    generator = torch.Generator().manual_seed(seed)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for entry in entries(dims):
            for name in entry.hf:
                yield name, _random(name, hf_shape(name, dims), generator)

    write_hf(folder, tensors(), config=config)


def _config(shape: ModelShape, vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": [_CLASSES[shape.architecture]],
        "model_type": shape.architecture,
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": shape.architecture == "qwen2",
        "attention_dropout": 0.0,
        "max_position_embeddings": shape.max_positions,
        "initializer_range": _STD,
        "rms_norm_eps": _NORM_EPSILON,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "tie_word_embeddings": shape.tied_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "use_cache": True,
    }


def _random(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(size)
    if name.endswith(".bias"):
        return torch.zeros(size)
    return torch.empty(size).normal_(0.0, _STD, generator=generator)
