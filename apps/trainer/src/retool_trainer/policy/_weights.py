"""Load Hugging Face weights into a rank's part of the model, and gather them back.

Only data-parallel rank 0 gathers; its tensor and pipeline ranks send to global rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from retool_trainer.config import PolicyConfig
from retool_trainer.errors import CheckpointError

from ._hf_config import ModelDims
from ._hf_files import HfTensors
from ._mapping import Entry, cut_for_rank, entries, hf_shape, join_ranks, on_stage, stage_of


@torch.no_grad()
def load_weights(
    model: torch.nn.Module, dims: ModelDims, policy: PolicyConfig, source: HfTensors
) -> None:
    """Fill every parameter of this rank, reading one Hugging Face tensor after the other.

    Raises:
        CheckpointError: A tensor is missing or has another shape than config.json says.
    """
    parameters = dict(model.named_parameters())
    stage = parallel_state.get_pipeline_model_parallel_rank()
    for entry in entries(dims):
        names = _names_here(entry, dims, policy, stage)
        for name in names:
            parameter = parameters.pop(name)
            local = cut_for_rank(
                entry,
                [source.read(hf_name) for hf_name in entry.hf],
                dims,
                rank=parallel_state.get_tensor_model_parallel_rank(),
                size=policy.tensor_parallel,
            )
            if local.shape != parameter.shape:
                raise CheckpointError(
                    f"{', '.join(entry.hf)} make a {tuple(local.shape)} of {name} on this rank, "
                    f"but config.json says {tuple(parameter.shape)}"
                )
            parameter.copy_(local)
    if parameters:
        raise CheckpointError(f"no tensor fills {', '.join(parameters)}")


def _names_here(entry: Entry, dims: ModelDims, policy: PolicyConfig, stage: int) -> list[str]:
    """The parameters on this stage that an entry fills; the tied embedding is on two stages."""
    stages = policy.pipeline_parallel
    names: list[str] = []
    if stage_of(entry, dims, stages) == stage:
        names.append(on_stage(entry, dims, stages))
    last = stages > 1 and stage == stages - 1
    if last and dims.tied_embeddings and entry.megatron.startswith("embedding."):
        names.append("output_layer.weight")
    return names


@torch.no_grad()
def gather_weights(
    model: torch.nn.Module, dims: ModelDims, policy: PolicyConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yield Hugging Face names and full tensors on rank 0; every rank must run it to its end.

    Other ranks yield nothing. The tensors of one step live until the next.
    """
    if parallel_state.get_data_parallel_rank() != 0:
        return
    parameters = dict(model.named_parameters())
    stage = parallel_state.get_pipeline_model_parallel_rank()
    tensor_rank = parallel_state.get_tensor_model_parallel_rank()
    group = parallel_state.get_tensor_model_parallel_group()
    pipeline: Any = parallel_state.get_pipeline_model_parallel_group()
    pipeline_ranks = dist.get_process_group_ranks(pipeline)
    local_like = next(iter(parameters.values()))
    for entry in entries(dims):
        owner = stage_of(entry, dims, policy.pipeline_parallel)
        whole: list[Tensor] = []
        if stage == owner:
            local = parameters[on_stage(entry, dims, policy.pipeline_parallel)].detach()
            parts = [local]
            if policy.tensor_parallel > 1:
                parts = [torch.empty_like(local) for _ in range(policy.tensor_parallel)]
                dist.all_gather(parts, local.contiguous(), group=group)
            if tensor_rank == 0:
                whole = join_ranks(entry, parts, dims)
        if tensor_rank != 0:
            continue
        if owner != 0 and stage == owner:
            for tensor in whole:
                dist.send(tensor.contiguous(), dst=pipeline_ranks[0])
        if stage == 0:
            if owner != 0:
                whole = [local_like.new_empty(hf_shape(name, dims)) for name in entry.hf]
                for tensor in whole:
                    dist.recv(tensor, src=pipeline_ranks[owner])
            yield from zip(entry.hf, whole, strict=True)
