"""A dense decoder with a KV cache, for generation inside a Python process.

Qwen3, Qwen2 and Llama shapes, read from a Hugging Face folder. Inference only; the policy that
trains is Megatron's, and both are compared after every weight update.

Shape suffixes: B rows, C new tokens of each row, T cached tokens, H query heads, K key/value heads,
G = H / K, D head size, E hidden size, V vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from retool_trainer.errors import CheckpointError

_KNOWN_TYPES = {"qwen3", "qwen2", "llama"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What `config.json` of a checkpoint says about its shape."""

    model_type: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_epsilon: float
    tied_embeddings: bool
    vocab_size: int

    @classmethod
    def read(cls, folder: Path) -> DecoderShape:
        """Read a checkpoint's shape.

        Raises:
            CheckpointError: An architecture, or a kind of position scaling, that this decoder
                lacks.
        """
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = config["model_type"]
        if model_type not in _KNOWN_TYPES:
            raise CheckpointError(
                f"{folder}: the embedded engine knows {', '.join(sorted(_KNOWN_TYPES))}, "
                f"not {model_type!r}; use engine.kind=vllm"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise CheckpointError(
                f"{folder}: the embedded engine has no {rope['rope_type']!r} position scaling; "
                "use engine.kind=vllm"
            )
        theta = rope.get("rope_theta", config.get("rope_theta"))
        if theta is None:
            raise CheckpointError(
                f"{folder}/config.json names no rope_theta; add the model's own value"
            )
        return cls(
            model_type=model_type,
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim")
            or config["hidden_size"] // config["num_attention_heads"],
            rope_theta=float(theta),
            norm_epsilon=config["rms_norm_eps"],
            tied_embeddings=config.get("tie_word_embeddings", False),
            vocab_size=config["vocab_size"],
        )


@dataclass(slots=True)
class _Layer:
    norm_in_E: Tensor
    qkv_weight: Tensor
    qkv_bias: Tensor | None
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    out_weight: Tensor
    norm_mlp_E: Tensor
    gate_up_weight: Tensor
    down_weight: Tensor


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read every tensor of the folder's safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.safetensors file")
    tensors: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                tensors[name] = shard.get_tensor(name)
    return tensors


class Decoder:
    """Weights and KV cache of `num_rows` sequences of at most `max_tokens` tokens each."""

    def __init__(
        self, folder: Path, *, num_rows: int, max_tokens: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.shape = DecoderShape.read(folder)
        self._dtype = dtype
        shape = self.shape
        cache = (shape.num_layers, num_rows, shape.num_kv_heads, max_tokens, shape.head_dim)
        self._keys = torch.zeros(cache, dtype=dtype)
        self._values = torch.zeros(cache, dtype=dtype)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles_TD = torch.outer(torch.arange(max_tokens).float(), shape.rope_theta**-half)
        angles_TD = torch.cat((angles_TD, angles_TD), dim=-1)
        self._cos_TD, self._sin_TD = angles_TD.cos().to(dtype), angles_TD.sin().to(dtype)
        self.load(folder)

    def load(self, folder: Path) -> None:
        """Replace the weights by those of a folder of the same shape."""
        shape = DecoderShape.read(folder)
        if shape != self.shape:
            raise ValueError(f"{folder} has shape {shape}, the engine was built for {self.shape}")
        tensors = {name: tensor.to(self._dtype) for name, tensor in read_tensors(folder).items()}
        self._embedding_VE = tensors["model.embed_tokens.weight"]
        self._final_norm_E = tensors["model.norm.weight"]
        self._head_VE = self._embedding_VE if shape.tied_embeddings else tensors["lm_head.weight"]
        self._layers = [
            _layer(tensors, f"model.layers.{index}.") for index in range(shape.num_layers)
        ]

    def copy_row(self, source: int, target: int, num_tokens: int) -> None:
        """Copy a row's cache over another's."""
        self._keys[:, target, :, :num_tokens] = self._keys[:, source, :, :num_tokens]
        self._values[:, target, :, :num_tokens] = self._values[:, source, :, :num_tokens]

    @torch.inference_mode()
    def forward(
        self, ids_BC: Tensor, start_B: Tensor, last_B: Tensor, rows: Tensor | None
    ) -> Tensor:
        """Append tokens to rows of the cache.

        Args:
            ids_BC: New tokens; a shorter row is padded at its end.
            start_B: Number of tokens that each row has cached already.
            last_B: Index in C of each row's last real token.
            rows: Row of the cache of each batch row; None means the first B rows in order.

        Returns:
            logits_BV after each row's last token, in fp32.
        """
        shape = self.shape
        num_rows, width = ids_BC.shape
        K, G, D = shape.num_kv_heads, shape.num_heads // shape.num_kv_heads, shape.head_dim
        positions_BC = start_B[:, None] + torch.arange(width)
        # Padding past the end of the cache is written to its last place, which the row never reads
        # before it is written for real.
        positions_BC = positions_BC.clamp_max(self._cos_TD.shape[0] - 1)
        num_cached = int(positions_BC.max()) + 1
        cos, sin = self._cos_TD[positions_BC][:, :, None], self._sin_TD[positions_BC][:, :, None]
        visible_BCT = torch.arange(num_cached) <= positions_BC[:, :, None]
        mask = torch.zeros(visible_BCT.shape, dtype=self._dtype).masked_fill_(
            ~visible_BCT, -torch.inf
        )
        # Query heads of one group are laid out as further queries, so keys are never repeated.
        mask = mask[:, None, None].expand(num_rows, 1, G, width, num_cached)
        mask = mask.reshape(num_rows, 1, G * width, num_cached)
        cache_rows = torch.arange(num_rows) if rows is None else rows
        hidden = F.embedding(ids_BC, self._embedding_VE)
        for index, layer in enumerate(self._layers):
            normed = _rms_norm(hidden, layer.norm_in_E, shape.norm_epsilon)
            qkv = F.linear(normed, layer.qkv_weight, layer.qkv_bias)
            q, k, v = (
                part.view(num_rows, width, -1, D)
                for part in qkv.split((K * G * D, K * D, K * D), -1)
            )
            if layer.q_norm_D is not None and layer.k_norm_D is not None:
                q = _rms_norm(q, layer.q_norm_D, shape.norm_epsilon)
                k = _rms_norm(k, layer.k_norm_D, shape.norm_epsilon)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            keys, values = self._keys[index], self._values[index]
            keys[cache_rows[:, None], :, positions_BC] = k
            values[cache_rows[:, None], :, positions_BC] = v
            if rows is None:
                cached_k, cached_v = (
                    keys[:num_rows, :, :num_cached],
                    values[:num_rows, :, :num_cached],
                )
            else:
                cached_k, cached_v = keys[rows, :, :num_cached], values[rows, :, :num_cached]
            q = q.view(num_rows, width, K, G, D).permute(0, 2, 3, 1, 4)
            attended = F.scaled_dot_product_attention(
                q.reshape(num_rows, K, G * width, D), cached_k, cached_v, attn_mask=mask
            )
            attended = attended.view(num_rows, K, G, width, D).permute(0, 3, 1, 2, 4)
            hidden = hidden + F.linear(attended.reshape(num_rows, width, -1), layer.out_weight)
            normed = _rms_norm(hidden, layer.norm_mlp_E, shape.norm_epsilon)
            gate, up = F.linear(normed, layer.gate_up_weight).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down_weight)
        last_BE = hidden[torch.arange(num_rows), last_B]
        last_BE = _rms_norm(last_BE, self._final_norm_E, shape.norm_epsilon)
        return F.linear(last_BE, self._head_VE).float()


def _layer(tensors: dict[str, Tensor], prefix: str) -> _Layer:
    def joined(kind: str, *names: str) -> Tensor:
        return torch.cat([tensors[f"{prefix}{name}.{kind}"] for name in names])

    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    has_bias = f"{prefix}self_attn.q_proj.bias" in tensors
    return _Layer(
        norm_in_E=tensors[f"{prefix}input_layernorm.weight"],
        qkv_weight=joined("weight", *projections),
        qkv_bias=joined("bias", *projections) if has_bias else None,
        q_norm_D=tensors.get(f"{prefix}self_attn.q_norm.weight"),
        k_norm_D=tensors.get(f"{prefix}self_attn.k_norm.weight"),
        out_weight=tensors[f"{prefix}self_attn.o_proj.weight"],
        norm_mlp_E=tensors[f"{prefix}post_attention_layernorm.weight"],
        gate_up_weight=joined("weight", "mlp.gate_proj", "mlp.up_proj"),
        down_weight=tensors[f"{prefix}mlp.down_proj.weight"],
    )


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
