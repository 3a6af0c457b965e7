"""Build the Megatron optimizer of a stage over a model, and take a step with it."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer.optimizer import (
    Float16OptimizerWithFloat16Params,
    FP32Optimizer,
    MegatronOptimizer,
)
from torch import Tensor

from retool_trainer.config import OptimizerConfig, PolicyConfig
from retool_trainer.errors import PolicyError

from ._hf_config import ModelDims
from ._mapping import entries, fused_rows, on_stage, stage_of
from ._muon import MuonAndAdamW


def build_optimizer(
    config: OptimizerConfig, policy: PolicyConfig, dims: ModelDims, model: DistributedDataParallel
) -> MegatronOptimizer:
    """A fresh optimizer: no momentum, step 0.

    Raises:
        PolicyError: The optimizer does not work with this parallel layout.
    """
    settings = MegatronOptimizerConfig(
        optimizer="adam",
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.epsilon,
        clip_grad=config.clip_grad_norm,
        bf16=policy.dtype == "bfloat16",
        params_dtype=torch.bfloat16 if policy.dtype == "bfloat16" else torch.float32,
        use_distributed_optimizer=policy.distributed_optimizer,
        optimizer_cpu_offload=config.cpu_offload,
        optimizer_offload_fraction=1.0 if config.cpu_offload else 0.0,
        # Without it Megatron keeps the fp32 master weights on the device all the same.
        use_precision_aware_optimizer=config.cpu_offload,
    )
    if config.name == "muon":
        return _muon(config, policy, dims, model, settings)
    chained: Any = get_megatron_optimizer(settings, [model])
    optimizer: MegatronOptimizer = chained.chained_optimizers[0]
    for group in optimizer.param_groups:
        group["base_lr"] = config.learning_rate
    _initialize_adam(optimizer.optimizer)
    return optimizer


def _initialize_adam(optimizer: Any) -> None:
    """Create the state now: Megatron cannot save or load an optimizer before its first step."""
    if not isinstance(optimizer, torch.optim.AdamW):
        return
    for group in optimizer.param_groups:
        for param in group["params"]:
            optimizer.state[param] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(param),
                "exp_avg_sq": torch.zeros_like(param),
            }


def set_learning_rates(optimizer: MegatronOptimizer, factor: float) -> None:
    """Scale every group's learning rate from its base."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def optimizer_step(optimizer: MegatronOptimizer, clip_grad_norm: float) -> float:
    """Clip and apply the gradients; returns their norm before clipping.

    Raises:
        PolicyError: The norm is not finite. No weight was touched.
    """
    optimizer.prepare_grads()
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        raise PolicyError(
            f"the gradient norm is {norm}; the weights are as before the step. Look for rows with "
            "non-finite advantages or log-probabilities, or lower the learning rate"
        )
    optimizer.clip_grad_norm(clip_grad_norm)
    optimizer.step_with_ready_grads()
    return norm


def _muon(
    config: OptimizerConfig,
    policy: PolicyConfig,
    dims: ModelDims,
    model: DistributedDataParallel,
    settings: MegatronOptimizerConfig,
) -> MegatronOptimizer:
    for name, off in (
        ("policy.tensor_parallel > 1", policy.tensor_parallel == 1),
        ("policy.distributed_optimizer", not policy.distributed_optimizer),
        ("optimizer.cpu_offload", not config.cpu_offload),
    ):
        if not off:
            raise PolicyError(
                f"optimizer.name muon does not work with {name}: it needs whole matrices on one "
                "rank; use adam"
            )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    stages = policy.pipeline_parallel
    fused = {
        on_stage(entry, dims, stages): fused_rows(entry, dims)
        for entry in entries(dims)
        if stage_of(entry, dims, stages) == stage
    }
    hidden: list[Tensor] = []
    rows: list[list[Tensor] | None] = []
    rest: list[Tensor] = []
    vectors: list[Tensor] = []
    for name, param in model.module.named_parameters():
        if param.dim() < 2:
            vectors.append(param)
        elif ".layers." in name:
            hidden.append(param)
            indices = fused[name]
            rows.append(indices and [index.to(param.device) for index in indices])
        else:
            rest.append(param)
    groups = [
        _group(hidden, config.muon_learning_rate, config.weight_decay, muon=True, decays=True),
        _group(rest, config.learning_rate, config.weight_decay, muon=False, decays=True),
        _group(vectors, config.learning_rate, config.weight_decay, muon=False, decays=False),
    ]
    torch_optimizer = MuonAndAdamW(
        [group for group in groups if group["params"]],
        rows,
        betas=config.betas,
        epsilon=config.epsilon,
    )

    def initialize(optimizer: Any, config: Any = None) -> None:
        del config
        optimizer.initialize_state()

    # None: bfloat16 needs no gradient scaler, whatever Megatron's annotation says.
    no_scaler: Any = None
    optimizer: Any = (
        Float16OptimizerWithFloat16Params(torch_optimizer, settings, no_scaler, initialize)
        if settings.bf16
        else FP32Optimizer(torch_optimizer, settings, initialize)
    )
    optimizer.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    optimizer.tp_group = parallel_state.get_tensor_model_parallel_group()
    return optimizer


def _group(
    params: list[Tensor], rate: float, weight_decay: float, *, muon: bool, decays: bool
) -> dict[str, Any]:
    return {
        "params": params,
        "muon": muon,
        "lr": rate,
        "base_lr": rate,
        "weight_decay": weight_decay if decays else 0.0,
        # Megatron recognises a group in a checkpoint by these four.
        "wd_mult": 1.0 if decays else 0.0,
        "lr_mult": 2.0 if muon else 1.0,
        "is_expert_parallel": False,
        "is_decoupled_lr": False,
    }
