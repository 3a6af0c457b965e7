"""Every number comes from config.json, and what the policy lacks is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retool_trainer.errors import CheckpointError
from retool_trainer.policy import read_dims
from retool_trainer.policy._rotary import rotary_frequencies

_GIVEN = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 500000.0,
}


def _read(folder: Path, **changes: Any) -> Any:
    content = {k: v for k, v in {**_GIVEN, **changes}.items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(content))
    return read_dims(folder)


def test_sizes_are_read(tmp_path: Path) -> None:
    dims = _read(tmp_path)
    assert (dims.head_dim, dims.rope_theta, dims.norm_epsilon) == (16, 5e5, 1e-5)
    assert (dims.tied_embeddings, dims.qkv_bias, dims.qk_norm) == (False, False, False)


def test_theta_is_found_where_transformers_5_keeps_it(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e6}
    assert _read(tmp_path, rope_theta=..., rope_parameters=parameters).rope_theta == 1e6


def test_two_different_thetas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"rope_theta is 500000 but rope_parameters.rope_th"):
        _read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"rope_theta": ...}, "does not say rope_theta"),
        ({"rms_norm_eps": ...}, "does not say rms_norm_eps"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "does not say low_freq_factor"),
        ({"num_attention_heads": 3}, "not a multiple of num_key_value_heads"),
        ({"vocab_size": -1}, "vocab_size must be a positive integer, got -1"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_the_policy_lacks_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _read(tmp_path, **changes)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_dims(tmp_path)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_rotary_frequencies_equal_those_of_transformers(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {**scaling, "rope_theta": 5e5}
    dims = _read(tmp_path, rope_theta=..., rope_parameters=parameters)
    sizes = {k: v for k, v in _GIVEN.items() if k not in {"model_type", "rope_theta"}}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=parameters)).inv_freq
    assert torch.allclose(rotary_frequencies(dims, "cpu"), theirs, rtol=1e-6)
