"""Read the sizes of a dense decoder from a Hugging Face config.json, and refuse what we lack."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retool_trainer.errors import CheckpointError

_ARCHITECTURES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts."""

    kind: str
    """linear or llama3."""
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDims:
    """Every number that the model is built from; all of them come from the checkpoint."""

    architecture: str
    """qwen3, qwen2 or llama."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    max_positions: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    raw: dict[str, Any] = field(repr=False, compare=False)
    """The whole config.json, for export."""


def read_dims(folder: Path) -> ModelDims:
    """Read `folder`/config.json.

    Raises:
        CheckpointError: The file is missing, describes another architecture, or asks for
            something that the policy does not have (sliding windows, other biases, other
            rotary scalings, two different values of rope theta).
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no config.json: not a Hugging Face model") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    return parse_dims(raw, path)


def parse_dims(raw: dict[str, Any], path: Path) -> ModelDims:
    """Like `read_dims`, from the file's content; `path` is for messages."""
    architecture = raw.get("model_type")
    if architecture not in _ARCHITECTURES:
        raise CheckpointError(
            f"{path}: model_type {architecture!r} is not supported; supported are "
            f"{', '.join(_ARCHITECTURES)}"
        )
    _refuse(path, raw, architecture)
    num_heads = _positive(path, raw, "num_attention_heads")
    hidden_size = _positive(path, raw, "hidden_size")
    head_dim = raw.get("head_dim") or hidden_size // num_heads
    theta, scaling = _rope(path, raw)
    dims = ModelDims(
        architecture=architecture,
        vocab_size=_positive(path, raw, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=_positive(path, raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        mlp_size=_positive(path, raw, "intermediate_size"),
        norm_epsilon=float(_given(path, raw, "rms_norm_eps")),
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=_positive(path, raw, "max_position_embeddings"),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        raw=raw,
    )
    if dims.num_heads % dims.num_kv_heads:
        raise CheckpointError(
            f"{path}: num_attention_heads {dims.num_heads} is not a multiple of "
            f"num_key_value_heads {dims.num_kv_heads}"
        )
    return dims


def _refuse(path: Path, raw: dict[str, Any], architecture: str) -> None:
    """Name what the checkpoint wants and the policy does not have."""
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{path}: hidden_act {raw['hidden_act']!r}; only silu is supported")
    for key in ("attention_bias", "mlp_bias"):
        # Qwen2 always has biases on q, k and v and has no such key.
        if raw.get(key) and not (architecture == "qwen2" and key == "attention_bias"):
            raise CheckpointError(f"{path}: {key} is true; only Qwen2's q, k, v biases exist here")
    if raw.get("use_sliding_window"):
        raise CheckpointError(f"{path}: use_sliding_window is true; attention here is full")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"{path}: partial_rotary_factor {raw['partial_rotary_factor']}; only 1.0 is supported"
        )
    if raw.get("num_experts") or raw.get("num_local_experts"):
        raise CheckpointError(f"{path}: mixture-of-experts models are not supported")
    if raw.get("quantization_config"):
        raise CheckpointError(f"{path}: quantised weights cannot be trained; give a plain model")


def _rope(path: Path, raw: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling; transformers 5 keeps them in `rope_parameters`, older ones at the top."""
    parameters: dict[str, Any] = raw.get("rope_parameters") or {}
    if raw.get("rope_theta") is None:
        theta = float(_given(path, parameters, "rope_theta"))
    else:
        theta = float(raw["rope_theta"])
        other = parameters.get("rope_theta", theta)
        if float(other) != theta:
            raise CheckpointError(
                f"{path}: rope_theta is {theta:g} but rope_parameters.rope_theta is {other:g}; "
                "correct the file"
            )
    scaling: dict[str, Any] = raw.get("rope_scaling") or parameters
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind=kind, factor=float(_given(path, scaling, "factor")))
    if kind == "llama3":
        return theta, RopeScaling(
            kind=kind,
            factor=float(_given(path, scaling, "factor")),
            low_freq_factor=float(_given(path, scaling, "low_freq_factor")),
            high_freq_factor=float(_given(path, scaling, "high_freq_factor")),
            original_max_positions=_positive(path, scaling, "original_max_position_embeddings"),
        )
    raise CheckpointError(
        f"{path}: rope scaling {kind!r} is not supported; supported are default, linear, llama3"
    )


def _positive(path: Path, raw: dict[str, Any], key: str) -> int:
    value = _given(path, raw, key)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{path}: {key} must be a positive integer, got {value!r}")
    return value


def _given(path: Path, values: dict[str, Any], key: str) -> Any:
    if values.get(key) is None:
        raise CheckpointError(f"{path} does not say {key}; the policy assumes no defaults")
    return values[key]
