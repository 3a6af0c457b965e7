"""Move named tensors from one sender to many receivers with torch.distributed's broadcast.

The same lines run over gloo, nccl and hccl; the backend is a word in the handshake. Tensors travel
in buckets: one flat byte buffer, and a list of (name, dtype, shape) that travels by another way.
"""

# pyright: reportPrivateImportUsage=false
# torch.distributed documents its stores without listing them in __all__.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """What every member of the group has to know."""

    backend: str
    """gloo, nccl or hccl."""
    host: str
    port: int
    group: str
    """A name of its own for every group, so that two groups can share a store's host."""
    world_size: int
    rank_offset: int = 0
    """The rank of an engine's first process; the sender is rank 0."""
    timeout_s: float = 300.0


def join(handshake: Handshake, rank: int, store: dist.Store | None = None) -> dist.ProcessGroup:
    """Join a group beside the process's default one, which may exist or not.

    torch offers no public way to make a group across processes that share no default group, so this
    uses the function that `init_process_group` and `new_group` use (torch 2.10 to 2.13).

    Args:
        handshake: The same for all members but for `rank_offset`.
        rank: This process's rank, 0 to world_size - 1.
        store: The sender's own store; None connects to it.
    """
    timeout = timedelta(seconds=handshake.timeout_s)
    if store is None:
        store = dist.TCPStore(handshake.host, handshake.port, is_master=False, timeout=timeout)
    store.set_timeout(timeout)
    group, _ = distributed_c10d._new_process_group_helper(
        handshake.world_size,
        rank,
        [],
        dist.Backend(handshake.backend),
        dist.PrefixStore(handshake.group, store),
        # Also a part of the store's keys, so it is the same for all; hence one member a process.
        group_name=handshake.group,  # pyright: ignore[reportArgumentType]
        timeout=timeout,
    )
    # `broadcast` and `destroy_process_group` translate ranks through this table.
    distributed_c10d._world.pg_group_ranks[group] = {r: r for r in range(handshake.world_size)}
    return group  # pyright: ignore[reportReturnType]


def leave(group: dist.ProcessGroup) -> None:
    """Free the group's connections."""
    dist.destroy_process_group(group)


def buckets(
    weights: Iterable[tuple[str, Tensor]], bucket_bytes: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """Group tensors so that each bucket has at most `bucket_bytes`, or one larger tensor."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket


def describe(bucket: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
    """The part of a bucket that is not bytes, as plain values for JSON."""
    return {
        "names": [name for name, _ in bucket],
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
        "shapes": [list(tensor.shape) for _, tensor in bucket],
    }


def flatten(bucket: Sequence[tuple[str, Tensor]]) -> Tensor:
    """The bytes of a bucket, each tensor at a multiple of 16 bytes."""
    offsets, total = _layout([tensor.nbytes for _, tensor in bucket])
    flat = torch.zeros(total, dtype=torch.uint8, device=bucket[0][1].device)
    for (_, tensor), offset in zip(bucket, offsets, strict=True):
        data = tensor.detach().contiguous().flatten().view(torch.uint8)
        flat[offset : offset + tensor.nbytes].copy_(data)
    return flat


def unflatten(
    flat: Tensor | None, names: list[str], dtypes: list[str], shapes: list[list[int]], device: Any
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Views into `flat` (None makes a new buffer) where the tensors described lie.

    Returns:
        The buffer, and (name, tensor) in the order given; the tensors share the buffer's memory.
    """
    kinds = [getattr(torch, dtype) for dtype in dtypes]
    sizes = [
        torch.Size(shape).numel() * kind.itemsize for shape, kind in zip(shapes, kinds, strict=True)
    ]
    offsets, total = _layout(sizes)
    if flat is None:
        flat = torch.empty(total, dtype=torch.uint8, device=device)
    views = [
        (name, flat[offset : offset + size].view(kind).view(shape))
        for name, kind, shape, offset, size in zip(
            names, kinds, shapes, offsets, sizes, strict=True
        )
    ]
    return flat, views


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets: list[int] = []
    total = 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // 16) * 16  # views of a wider dtype need an aligned start
    return offsets, total


class Receiver:
    """An engine process's end: join once, then receive bucket after bucket."""

    def __init__(self, handshake: Handshake, local_rank: int, device: Any) -> None:
        """Join as rank `handshake.rank_offset + local_rank`; waits for the sender."""
        self._device = device
        self._group: dist.ProcessGroup | None = join(handshake, handshake.rank_offset + local_rank)

    def receive(
        self, names: list[str], dtypes: list[str], shapes: list[list[int]]
    ) -> list[tuple[str, Tensor]]:
        """One bucket; waits for the sender's broadcast, at most the group's timeout.

        Raises:
            RuntimeError: The receiver is closed, or the transfer failed or timed out.
        """
        if self._group is None:
            raise RuntimeError("this receiver is closed")
        flat, views = unflatten(None, names, dtypes, shapes, self._device)
        dist.broadcast(flat, src=0, group=self._group)
        return views

    def close(self) -> None:
        """Leave the group; may be called twice."""
        if self._group is not None:
            leave(self._group)
            self._group = None
