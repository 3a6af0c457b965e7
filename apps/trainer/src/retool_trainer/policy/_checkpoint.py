"""Save and load a policy through Megatron's dist_checkpointing; any layout can read any other's."""

from __future__ import annotations

import argparse
import random
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedStateDict
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

from retool_trainer.errors import CheckpointError

from ._hf_config import ModelDims
from ._hf_files import replace_folder
from ._muon import MuonAndAdamW

TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron-LM's file beside the checkpoints that names the newest: a number, or `release`."""
RELEASE = "release"
_MEGATRON_NAMES = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "mlp_size": "ffn_hidden_size",
    "norm_epsilon": "norm_epsilon",
    "rope_theta": "rotary_base",
    "max_positions": "max_position_embeddings",
    "qkv_bias": "add_qkv_bias",
    "qk_norm": "qk_layernorm",
}
# The optimizer's state is written by whole parameters, so that every layout can read it.
_OPTIMIZER_FORMAT = {"distrib_optim_sharding_type": "fully_reshardable"}


class _InProcess(TorchDistSaveShardedStrategy):
    """Megatron's torch_dist format, written by this process.

    Megatron writes through forked children and a spawned manager process: 5 to 16 s for a model of
    a megabyte, and a fork of a process that has threads. torch's own writer makes the same files.
    """

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: str | Path) -> None:
        grouped, _, _ = _replace_state_dict_keys_with_sharded_keys(
            sharded_state_dict, keep_only_main_replica=True
        )
        save_state_dict(
            mcore_to_pyt_state_dict(grouped, False),
            storage_writer=FileSystemWriter(checkpoint_dir),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )


def save_checkpoint(
    folder: Path,
    dims: ModelDims,
    model: DistributedDataParallel,
    optimizer: MegatronOptimizer | None,
    progress: dict[str, Any],
) -> None:
    """Write everything that training depends on; the folder appears only when complete.

    Args:
        folder: The target, the same on every rank and on storage that all of them see.
        dims: Kept in the checkpoint; loading compares them.
        model: Its parameters.
        optimizer: Its state; None leaves it out.
        progress: Plain values, equal on every rank.
    """
    draft = Path(_from_rank_0(str(folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}"))))
    if dist.get_rank() == 0:
        draft.mkdir(parents=True)
    dist.barrier()
    try:
        state = _sharded_state(model, optimizer, is_loading=False)
        state["common"] = {
            "dims": _comparable(dims),
            "progress": progress,
            "layout": _model_parallel_layout(),
            "optimizer": _kind(optimizer),
        }
        # What Megatron-LM looks for.
        state["args"] = megatron_args(dims)
        state["checkpoint_version"] = 3.0
        state["iteration"] = progress.get("step", 0)
        dist_checkpointing.save(state, str(draft), sharded_strategy=_InProcess("torch_dist", 1))
        dist.barrier()
        if dist.get_rank() == 0:
            replace_folder(draft, folder)
        dist.barrier()
    except BaseException:
        if dist.get_rank() == 0:
            shutil.rmtree(draft, ignore_errors=True)
        raise


def load_checkpoint(
    folder: Path,
    dims: ModelDims,
    model: DistributedDataParallel,
    optimizer: MegatronOptimizer | None,
) -> dict[str, Any]:
    """Fill model, optimizer and random generators from a checkpoint of any layout.

    Returns:
        The `progress` it was saved with.

    Raises:
        CheckpointError: There is no complete checkpoint, or it is of another model.
    """
    folder = find_checkpoint(folder)
    saved: Any = dist_checkpointing.load_common_state_dict(str(folder))
    common = saved.get("common", {})
    compare_dims(folder, common.get("dims") or dims_of_megatron(folder, saved.get("args")), dims)
    if optimizer is not None and common.get("optimizer") != _kind(optimizer):
        raise CheckpointError(
            f"{folder} has the state of {common.get('optimizer', 'no optimizer')}, but this stage "
            f"uses {_kind(optimizer)}; set optimizer.name and policy.distributed_optimizer as they "
            "were"
        )
    state = _sharded_state(model, optimizer, is_loading=True)
    same_layout = common.get("layout") == _model_parallel_layout()
    if not same_layout:
        # The generators belong to (pipeline, tensor) ranks, which are others now. Nothing in a step
        # draws from them: the models here have no dropout.
        del state["random"]
    loaded: Any = dist_checkpointing.load(state, str(folder))
    model.module.load_state_dict(loaded["model"], strict=True)
    if optimizer is not None:
        _load_optimizer(optimizer, loaded["optimizer"])
    if same_layout:
        _set_random_states(loaded["random"])
    return common.get("progress", {})


def _load_optimizer(optimizer: MegatronOptimizer, state: dict[str, Any]) -> None:
    if not isinstance(optimizer, DistributedOptimizer):
        optimizer.load_state_dict(state)
        return
    # Megatron 0.16 forgets that torch's Adam keeps a `step` with every parameter: it looks for one
    # among the saved tensors, and it gives all parameters one shared step, which each of them then
    # increments. So the tensors are loaded without steps, and every parameter gets its own.
    tensors = state.pop("param_state")
    optimizer.load_state_dict(state)
    states: Any = optimizer.optimizer.state
    steps = {param: values.pop("step").clone() for param, values in states.items()}
    optimizer.load_parameter_state_from_fully_reshardable(tensors)
    for param, step in steps.items():
        states[param]["step"] = step


def find_checkpoint(folder: Path) -> Path:
    """The checkpoint in a folder: itself, or the one that Megatron-LM's tracker file names.

    Raises:
        CheckpointError: There is no complete one.
    """
    tracker = folder / TRACKER
    if tracker.exists():
        newest = tracker.read_text().strip()
        folder = folder / (newest if newest == RELEASE else f"iter_{int(newest):07d}")
    if not (folder / "metadata.json").exists():
        raise CheckpointError(f"{folder} is not a checkpoint: it has no metadata.json")
    return folder


def dims_of_megatron(folder: Path, args: Any) -> dict[str, Any]:
    """What Megatron-LM's arguments in a checkpoint say about the model.

    Raises:
        CheckpointError: There are no arguments, so that nothing vouches for rope theta and others.
    """
    if args is None:
        raise CheckpointError(f"{folder} does not say of which model it is: no `args` in common.pt")
    given = vars(args)
    dims = {ours: given[theirs] for ours, theirs in _MEGATRON_NAMES.items() if theirs in given}
    for name in ("rope_theta", "norm_epsilon"):
        if name in dims:
            dims[name] = float(dims[name])
    if "untie_embeddings_and_output_weights" in given:
        dims["tied_embeddings"] = not given["untie_embeddings_and_output_weights"]
    return dims


def megatron_args(dims: ModelDims) -> argparse.Namespace:
    """The arguments that Megatron-LM would have saved with such a model."""
    values = {theirs: getattr(dims, ours) for ours, theirs in _MEGATRON_NAMES.items()}
    return argparse.Namespace(
        **values,
        untie_embeddings_and_output_weights=not dims.tied_embeddings,
        position_embedding_type="rope",
        normalization="RMSNorm",
        swiglu=True,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
    )


def compare_dims(folder: Path, saved: dict[str, Any], dims: ModelDims) -> None:
    """Refuse a checkpoint of another model, naming every number that differs."""
    expected = _comparable(dims)
    differing = [
        f"{name} is {saved[name]!r} in the checkpoint but {expected[name]!r} in the model"
        for name in expected
        if name in saved and saved[name] != expected[name]
    ]
    if differing:
        raise CheckpointError(f"{folder} is of another model: {'; '.join(differing)}")


def _comparable(dims: ModelDims) -> dict[str, Any]:
    return {name: value for name, value in asdict(dims).items() if name != "raw"}


def _sharded_state(
    model: DistributedDataParallel, optimizer: MegatronOptimizer | None, *, is_loading: bool
) -> dict[str, Any]:
    module: Any = model.module
    sharded_model = module.sharded_state_dict()
    state: dict[str, Any] = {"model": sharded_model, "random": _random_states()}
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(
            sharded_model, is_loading=is_loading, metadata=_OPTIMIZER_FORMAT
        )
    return state


def _kind(optimizer: MegatronOptimizer | None) -> str:
    """Which optimizer's state it is; that of the distributed one is laid out differently."""
    if optimizer is None:
        return "no optimizer"
    name = "muon" if isinstance(optimizer.optimizer, MuonAndAdamW) else "adam"
    return f"{name}, distributed" if isinstance(optimizer, DistributedOptimizer) else name


def _model_parallel_layout() -> tuple[int, int]:
    return (
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )


def _random_states() -> ShardedObject:
    """The generators of pipeline and tensor rank; data-parallel ranks are replicas."""
    pipeline = parallel_state.get_pipeline_model_parallel_rank()
    tensor = parallel_state.get_tensor_model_parallel_rank()
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    return ShardedObject(
        "random",
        states,
        _model_parallel_layout(),
        (pipeline, tensor),
        replica_id=parallel_state.get_data_parallel_rank(),
    )


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])


def _from_rank_0(value: str) -> str:
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
