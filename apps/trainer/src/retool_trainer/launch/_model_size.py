"""The sizes of a model that memory and parallel layout depend on, without loading it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_trainer.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A dense decoder's sizes."""

    num_layers: int
    hidden: int
    mlp: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary: int
    tied_embeddings: bool
    source: str
    """Where the numbers come from, for a person."""

    @property
    def num_layer_parameters(self) -> int:
        """Of one layer; norms are left out (under 0.01 %)."""
        attention = self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + 3 * self.hidden * self.mlp

    @property
    def num_embedding_parameters(self) -> int:
        """Of the embedding, and of the head where it is not the same matrix."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def num_parameters(self) -> int:
        """All of it."""
        return self.num_layers * self.num_layer_parameters + self.num_embedding_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the whole model in 16 bits: keys and values of every layer."""
        return 2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim


# So that a plan can be made before the model is fetched; `doctor` reads the folder itself.
_KNOWN = {
    "qwen3-4b": {
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    }
}


class UnknownModelError(Exception):
    """The sizes cannot be found; the message says where they were looked for."""


def model_size(model: ModelConfig, *, vocabulary: int = 256) -> ModelSize:
    """Read the sizes from the shape, from the folder's config.json, or from the known models.

    Args:
        model: The configuration's section.
        vocabulary: For a shape, whose tokenizer is only trained in the prepare stage.

    Raises:
        UnknownModelError: The folder is not there and its name is not a known model's.
    """
    if model.shape is not None:
        shape = model.shape
        return ModelSize(
            num_layers=shape.num_layers,
            hidden=shape.hidden_size,
            mlp=shape.mlp_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocabulary=vocabulary,
            tied_embeddings=shape.tied_embeddings,
            source="model.shape",
        )
    folder = Path(model.path or "")
    file = folder / "config.json"
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return _from_fields(fields, str(file))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UnknownModelError(f"{file} does not give the model's sizes: {error!r}") from error
    for name, fields in _KNOWN.items():
        if folder.name.lower().startswith(name):
            return _from_fields(fields, f"known sizes of {name}; {file} is not there yet")
    raise UnknownModelError(
        f"{file} is not there, and {folder.name!r} is not a known model ({', '.join(_KNOWN)}); "
        "run `fetch` first"
    )


def _from_fields(fields: dict[str, Any], source: str) -> ModelSize:
    heads = int(fields["num_attention_heads"])
    return ModelSize(
        num_layers=int(fields["num_hidden_layers"]),
        hidden=int(fields["hidden_size"]),
        mlp=int(fields["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=int(fields.get("num_key_value_heads", heads)),
        head_dim=int(fields.get("head_dim") or int(fields["hidden_size"]) // heads),
        vocabulary=int(fields["vocab_size"]),
        tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
        source=source,
    )
