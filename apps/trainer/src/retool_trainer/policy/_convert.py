"""Convert weights between Hugging Face folders and Megatron's torch_dist checkpoints.

Every number of the model comes from config.json, so nobody types a rotary base; a checkpoint that
was made with another one is refused.
"""

from __future__ import annotations

import math
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retool_trainer.config import PolicyConfig
from retool_trainer.errors import CheckpointError

from ._hf_config import read_dims
from ._hf_files import HfTensors
from ._mapping import entries, hf_shape
from ._policy import Policy

_TRACKER, _RELEASE = "latest_checkpointed_iteration.txt", "release"
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What was written."""

    format: Literal["huggingface", "megatron"]
    target: Path
    num_parameters: int
    """A tied embedding counts once."""
    dtype: str


def convert(source: Path, target: Path, *, hf: Path | None, dtype: Dtype | None) -> Converted:
    """Convert in the direction that the source asks for.

    Args:
        source: A Hugging Face folder, or a Megatron checkpoint (or the folder of one, with the
            tracker file).
        target: Must not exist. A Megatron target gets the layout of Megatron-LM: a folder `release`
            and the tracker file that names it.
        hf: From Megatron only: the Hugging Face folder that config.json and the tokenizer come
            from. It needs no weights.
        dtype: Of the result; None keeps that of a Hugging Face source and writes bfloat16 from
            Megatron.

    Raises:
        CheckpointError: The source is neither, is of another model than config.json says, or the
            target exists.
    """
    if target.exists():
        raise CheckpointError(f"{target} exists; choose a target that does not, or remove it")
    if (source / "config.json").exists():
        return _to_megatron(source, target, dtype or _dtype_of(source))
    if not any((source / name).exists() for name in ("metadata.json", _TRACKER)):
        raise CheckpointError(
            f"{source} is neither a Hugging Face folder (no config.json) nor a Megatron checkpoint "
            f"(no metadata.json, no {_TRACKER})"
        )
    if hf is None:
        raise CheckpointError(
            f"{source} is a Megatron checkpoint, which has no config.json: name the Hugging Face "
            "folder of its model with --hf"
        )
    policy = _open(hf, dtype or "bfloat16", with_weights=False)
    try:
        policy.load(source)
        policy.export_hf(target)
    finally:
        policy.close()
    return _report("huggingface", hf, target, dtype or "bfloat16")


def _to_megatron(source: Path, target: Path, dtype: Dtype) -> Converted:
    policy = _open(source, dtype, with_weights=True)
    target.mkdir(parents=True)
    try:
        policy.save(target / _RELEASE)
        (target / _TRACKER).write_text(f"{_RELEASE}\n")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        policy.close()
    return _report("megatron", source, target, dtype)


def _open(hf: Path, dtype: Dtype, *, with_weights: bool) -> Policy:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Policy(
        hf,
        policy=PolicyConfig(dtype=dtype),
        platform="cpu",
        rank=0,
        world_size=1,
        master_addr="127.0.0.1",
        master_port=port,
        seed=0,
        with_weights=with_weights,
    )


def _dtype_of(folder: Path) -> Dtype:
    dims, tensors = read_dims(folder), HfTensors(folder)
    first = next(entries(dims)).hf[0]
    # Half precision becomes bfloat16, which every layout trains in.
    return "float32" if tensors.read(first).element_size() == 4 else "bfloat16"


def _report(
    kind: Literal["huggingface", "megatron"], hf: Path, target: Path, dtype: str
) -> Converted:
    dims = read_dims(hf)
    shapes = [hf_shape(name, dims) for entry in entries(dims) for name in entry.hf]
    return Converted(
        format=kind,
        target=target,
        num_parameters=sum(math.prod(shape) for shape in shapes),
        dtype=dtype,
    )
