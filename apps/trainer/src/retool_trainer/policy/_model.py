"""Build the Megatron-core model of a checkpoint: packed rows in, log-probabilities out.

Shapes: N tokens of all rows of a microbatch, M predictions wanted of it, E hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from retool_trainer.config import PolicyConfig
from retool_trainer.errors import CheckpointError
from retool_trainer.platform import Platform

from ._attention import pack, rotary_attention
from ._hf_config import ModelDims
from ._logprobs import vocab_parallel_logprobs
from ._mapping import padded_vocab
from ._microbatches import Microbatch
from ._rotary import rotary_frequencies

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Logits (predictions x vocabulary of this rank) that exist at once: 2**28 are 1 GiB in float32,
# 1766 predictions of a vocabulary of 152,000. A laptop model's whole microbatch fits.
_LOGITS_AT_ONCE = 2**28


class PackedGpt(GPTModel):
    """Megatron's GPT over packed rows; the last stage returns predictions, not logits."""

    def __init__(self, dims: ModelDims, platform: Platform, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._dims = dims
        # Not a buffer: those follow the model to bfloat16, in which positions are wrong.
        self._frequencies = rotary_frequencies(dims, platform.device())

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, microbatch: Microbatch, *, temperature: float
    ) -> Any:
        """Run this pipeline stage.

        Returns:
            The hidden states [N, 1, E], or on the last stage (logprobs_M, entropy_M).
        """
        hidden = None
        if self.pre_process:
            hidden = self.embedding(input_ids=microbatch.ids_N[None], position_ids=None)
        rows = pack(microbatch, self._frequencies, self.config.params_dtype)
        hidden = self.decoder(
            hidden_states=hidden,
            attention_mask=None,
            packed_seq_params=rows,
        )
        if not self.post_process:
            return hidden
        chosen = hidden.index_select(0, microbatch.predictors_M)
        step = max(
            1, _LOGITS_AT_ONCE // (self.vocab_size // self.config.tensor_model_parallel_size)
        )
        if len(microbatch.targets_M) <= step:
            return self._predict(chosen, microbatch.targets_M, temperature)
        # Recomputed in the backward pass, so that one chunk's softmax is alive at a time.
        chunks = [
            checkpoint(self._predict, part, targets, temperature, use_reentrant=False)
            for part, targets in zip(
                chosen.split(step), microbatch.targets_M.split(step), strict=True
            )
        ]
        return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))

    def logits(self, microbatch: Microbatch) -> Tensor:
        """The float32 logits of every token of a one-stage model, [N, vocabulary]."""
        rows = pack(microbatch, self._frequencies, self.config.params_dtype)
        hidden = self.decoder(
            hidden_states=self.embedding(input_ids=microbatch.ids_N[None], position_ids=None),
            attention_mask=None,
            packed_seq_params=rows,
        )
        whole, _ = self.output_layer(hidden, weight=self._head(), runtime_gather_output=True)
        return whole[:, 0, : self._dims.vocab_size].float()

    def _predict(self, hidden_M1E: Tensor, targets_M: Tensor, temperature: float) -> Any:
        logits, _ = self.output_layer(hidden_M1E, weight=self._head())
        logits_MV = logits[:, 0]
        if temperature != 1.0:
            logits_MV = logits_MV / temperature
        return vocab_parallel_logprobs(
            logits_MV,
            targets_M,
            vocab_size=self._dims.vocab_size,
            group=self.pg_collection.tp,
        )

    def _head(self) -> Tensor | None:
        if not self.share_embeddings_and_output_weights:
            return None
        return self.shared_embedding_or_output_weight()


def check_layout(dims: ModelDims, policy: PolicyConfig) -> None:
    """Refuse a parallel layout that does not divide the model.

    Raises:
        CheckpointError: Names the size and the layout.
    """
    tensor, pipeline = policy.tensor_parallel, policy.pipeline_parallel
    for name, size in (
        ("num_key_value_heads", dims.num_kv_heads),
        ("num_attention_heads", dims.num_heads),
        ("intermediate_size", dims.mlp_size),
    ):
        if size % tensor:
            raise CheckpointError(
                f"policy.tensor_parallel {tensor} does not divide the model's {name} {size}"
            )
    if dims.num_layers % pipeline:
        raise CheckpointError(
            f"policy.pipeline_parallel {pipeline} does not divide the model's num_hidden_layers "
            f"{dims.num_layers}"
        )


def build_model(dims: ModelDims, policy: PolicyConfig, platform: Platform) -> PackedGpt:
    """Build this rank's part with uninitialised weights; parallel state must exist."""
    config = _transformer_config(dims, policy, platform)
    spec = get_gpt_layer_local_spec(qk_layernorm=dims.qk_norm, normalization="RMSNorm")
    layer: Any = spec.submodules
    layer.self_attention.submodules.core_attention = ModuleSpec(
        module=rotary_attention(platform.core_attention())
    )
    model = PackedGpt(
        dims,
        platform,
        config=config,
        transformer_layer_spec=spec,
        vocab_size=padded_vocab(dims.vocab_size, policy.tensor_parallel),
        max_sequence_length=dims.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=dims.tied_embeddings,
        # Rotary embedding is part of the attention here.
        position_embedding_type="none",
    )
    _mark_cut_parameters(model)
    return model.to(device=platform.device(), dtype=config.params_dtype)


def _mark_cut_parameters(model: PackedGpt) -> None:
    """Tell Megatron which parameters each tensor rank has a part of, as drawing weights would.

    Without the mark the gradient norm counts only rank 0's part of them.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and not hasattr(parameter, "tensor_model_parallel"):
            columns = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
            set_tensor_model_parallel_attributes(
                parameter, is_parallel=True, dim=1 if columns else 0, stride=1
            )


def _transformer_config(
    dims: ModelDims, policy: PolicyConfig, platform: Platform
) -> TransformerConfig:
    dtype = _DTYPES[policy.dtype]
    recompute: dict[str, Any] = {}
    if policy.recompute:
        recompute = {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    return TransformerConfig(
        num_layers=dims.num_layers,
        hidden_size=dims.hidden_size,
        num_attention_heads=dims.num_heads,
        num_query_groups=dims.num_kv_heads,
        kv_channels=dims.head_dim,
        ffn_hidden_size=dims.mlp_size,
        gated_linear_unit=True,
        activation_func=F.silu,
        normalization="RMSNorm",
        layernorm_epsilon=dims.norm_epsilon,
        qk_layernorm=dims.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=dims.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=policy.tensor_parallel,
        pipeline_model_parallel_size=policy.pipeline_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Weights come from a checkpoint; drawing them first would be waste.
        perform_initialization=False,
        # A loss is a sum with weights of our own; Megatron must not divide it by anything.
        calculate_per_token_loss=True,
        variable_seq_lengths=True,
        # Of no effect without experts, but the default contradicts variable lengths.
        moe_token_dispatcher_type="alltoall",
        cuda_graph_scope=[],
        **recompute,
        **platform.transformer_settings(),
    )
