"""Read a Hugging Face folder's tensors one by one, and write one with shards and an index."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from retool_trainer.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# 4 GiB: what a FAT or an old NFS can hold, and little enough to sit in host memory beside a model.
_SHARD_BYTES = 4 * 2**30
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")


class HfTensors:
    """The tensors of a folder's safetensors files; only what is asked for is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _tensor_files(folder)
        self._open_name: str | None = None
        self._open: Any = None

    @property
    def names(self) -> set[str]:
        """Of every tensor."""
        return set(self._files)

    def read(self, name: str) -> Tensor:
        """One tensor, on the host.

        Raises:
            CheckpointError: There is none of this name.
        """
        if name not in self._files:
            raise CheckpointError(f"{self._folder} has no tensor {name!r}")
        if self._open_name != self._files[name]:
            # One file at a time: a mapped shard that was read stays in the page cache only.
            self._open_name = self._files[name]
            self._open = safe_open(self._folder / self._open_name, framework="pt")
        return self._open.get_tensor(name)


def _tensor_files(folder: Path) -> dict[str, str]:
    index = folder / _INDEX
    if index.exists():
        files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        absent = sorted({name for name in files.values() if not (folder / name).exists()})
        if absent:
            raise CheckpointError(f"{index} names {', '.join(absent)}, which {folder} lacks")
        return files
    if not (folder / _SINGLE).exists():
        raise CheckpointError(
            f"{folder} has neither {_INDEX} nor {_SINGLE}; give a folder with safetensors weights"
        )
    with safe_open(folder / _SINGLE, framework="pt") as file:
        return dict.fromkeys(file.keys(), _SINGLE)


def write_hf(
    folder: Path,
    tensors: Iterator[tuple[str, Tensor]],
    *,
    config: Mapping[str, Any],
    copy_from: Path | None = None,
    shard_bytes: int = _SHARD_BYTES,
) -> None:
    """Write a folder that transformers loads; it appears under its name only when complete.

    Args:
        folder: The target; replaced if it exists.
        tensors: Hugging Face names and full tensors.
        config: For config.json, besides the dtype, which is that of the tensors.
        copy_from: A folder whose other small files (tokenizer, generation config) are copied.
        shard_bytes: Size of a weight file; one tensor is never cut.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    draft.mkdir()
    try:
        dtype = _write_shards(draft, tensors, shard_bytes)
        # transformers 4 calls it torch_dtype, transformers 5 reads both and writes dtype.
        renamed = {key: value for key, value in config.items() if key != "torch_dtype"}
        (draft / "config.json").write_text(json.dumps({**renamed, "dtype": dtype}, indent=2) + "\n")
        if copy_from is not None:
            _copy_side_files(copy_from, draft)
        replace_folder(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def replace_folder(draft: Path, folder: Path) -> None:
    """Give a finished draft its name; a folder of that name is removed only after the swap."""
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _write_shards(draft: Path, tensors: Iterator[tuple[str, Tensor]], shard_bytes: int) -> str:
    shards: list[list[str]] = []
    pending: dict[str, Tensor] = {}
    total = 0
    dtype = "float32"

    def flush() -> None:
        save_file(pending, draft / f"part-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    for name, tensor in tensors:
        host = tensor.detach().to("cpu").contiguous()
        size = host.numel() * host.element_size()
        if pending and sum(t.numel() * t.element_size() for t in pending.values()) + size > (
            shard_bytes
        ):
            flush()
        # A view would drag its whole storage into the file.
        pending[name] = host.clone() if host.untyped_storage().nbytes() != size else host
        total += size
        dtype = str(host.dtype).removeprefix("torch.")
    flush()
    if len(shards) == 1:
        (draft / "part-0").rename(draft / _SINGLE)
        return dtype
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (draft / f"part-{number}").rename(draft / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (draft / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return dtype


def _copy_side_files(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        weights = path.name.endswith((*_WEIGHT_SUFFIXES, ".index.json"))
        if path.is_file() and not weights and path.name != "config.json":
            shutil.copy2(path, target / path.name)
