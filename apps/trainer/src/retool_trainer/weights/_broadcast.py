"""Send the policy's weights to running engines by broadcast: gloo, nccl or hccl, one class."""

# pyright: reportPrivateImportUsage=false
# torch.distributed documents its stores without listing them in __all__.

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from retool_trainer import direct_http
from retool_trainer.errors import RunFailedError

from .engine_side import retool_broadcast as wire


class WeightSyncError(RunFailedError):
    """Weights did not reach every engine; the engines must not be used before a complete sync."""


class WeightReceiver(Protocol):
    """The calls that one engine answers; all processes of the engine act on each."""

    @property
    def num_processes(self) -> int:
        """How many processes join the group, e.g. the tensor-parallel size."""
        ...

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Join the group; returns when all of the engine's processes have."""
        ...

    def start_weight_update(self) -> None:
        """Prepare for new weights."""
        ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive one bucket; returns when it is loaded."""
        ...

    def finish_weight_update(self, version: int) -> None:
        """All buckets were sent: make them usable."""
        ...


@dataclass(frozen=True, kw_only=True)
class HttpReceiver:
    """A vLLM server (0.23 to 0.32) with `--weight-transfer-config '{"backend": "retool"}'`."""

    url: str
    num_processes: int = 1
    timeout_s: float = 300.0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """POST /init_weight_transfer_engine."""
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """POST /start_weight_update; the weights are a checkpoint's (the default since 0.23)."""
        self._post("start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """POST /update_weights."""
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, version: int) -> None:
        """POST /finish_weight_update; 0.32 keeps the version, 0.23 ignores it."""
        self._post("finish_weight_update", {"weight_version": str(version)})

    def _post(self, call: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/{call}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with direct_http.opener.open(request, timeout=self.timeout_s) as response:
                response.read()
        except urllib.error.HTTPError as error:
            reply = error.read(2000).decode(errors="replace")
            raise WeightSyncError(
                f"engine {self.url} answered {error.code} to {call}: {reply}"
            ) from error
        except OSError as error:
            raise WeightSyncError(f"engine {self.url} did not answer {call}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What one sync moved."""

    num_tensors: int
    num_buckets: int
    num_bytes: int
    wall_time_s: float


class BroadcastSender:
    """Policy rank 0's end. `connect` once, `send` after every update, `close` at the end.

    The engines are to be paused around `send` by whoever drives them: the sender moves weights and
    knows nothing of requests. After an error the group is unusable; close it and make a new one.
    """

    def __init__(
        self,
        receivers: Sequence[WeightReceiver],
        *,
        backend: str,
        host: str = "127.0.0.1",
        port: int | None = None,
        bucket_mib: int = 256,
        timeout_s: float = 300.0,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            receivers: One per engine.
            backend: `Platform.collective_backend`.
            host: This process's address as the engines see it.
            port: Of the rendezvous; None takes a free one.
            bucket_mib: Tensors travel together up to this size.
            timeout_s: Longest wait for any one step.
        """
        if not receivers:
            raise ValueError("no receivers: give one per engine")
        self._receivers = list(receivers)
        self._backend = backend
        self._host = host
        self._port = port or 0
        self._bucket_bytes = bucket_mib * 2**20
        self._timeout_s = timeout_s
        self._group: dist.ProcessGroup | None = None
        self._store: dist.TCPStore | None = None
        self._threads: ThreadPoolExecutor | None = None

    def connect(self) -> None:
        """Open the group and wait until every engine process has joined.

        Raises:
            WeightSyncError: An engine refused or did not come.
        """
        if self._group is not None:
            raise WeightSyncError("connect() was called before; close() first")
        timeout = timedelta(seconds=self._timeout_s)
        self._store = dist.TCPStore(
            self._host, self._port, is_master=True, timeout=timeout, wait_for_workers=False
        )
        handshake = wire.Handshake(
            backend=self._backend,
            host=self._host,
            port=self._store.port,
            group=f"retool-weights-{uuid.uuid4().hex[:8]}",
            world_size=1 + sum(receiver.num_processes for receiver in self._receivers),
            timeout_s=self._timeout_s,
        )
        self._threads = ThreadPoolExecutor(len(self._receivers), thread_name_prefix="weights")
        calls: list[Future[None]] = []
        rank = 1
        for receiver in self._receivers:
            info = asdict(replace(handshake, rank_offset=rank))
            calls.append(self._threads.submit(receiver.init_weight_transfer_engine, info))
            rank += receiver.num_processes
        try:
            self._group = wire.join(handshake, 0, self._store)
            self._wait_for(calls)
        except RuntimeError as error:
            cause = next((c.exception() for c in calls if c.done() and c.exception()), None)
            raise WeightSyncError(
                f"the weight group over {self._backend} did not form within "
                f"{self._timeout_s:g} s: {cause or error}"
            ) from error

    def send(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Send all tensors under their HF names, then let the engines finish the update.

        Args:
            weights: Whole tensors on this process's device. Taken one bucket at a time, so a
                generator that gathers them holds no more than a bucket.
            version: Number of policy updates that the weights contain.

        Raises:
            WeightSyncError: Some engine did not take all of it.
        """
        if self._group is None:
            raise WeightSyncError("send() before connect()")
        start_s = time.monotonic()
        self._everywhere("start_weight_update")
        num_tensors = num_buckets = num_bytes = 0
        for bucket in wire.buckets(weights, self._bucket_bytes):
            flat = wire.flatten(bucket)
            calls = self._submit("update_weights", wire.describe(bucket))
            self._broadcast(flat, calls)
            self._wait_for(calls)
            num_tensors += len(bucket)
            num_buckets += 1
            num_bytes += sum(tensor.nbytes for _, tensor in bucket)
        self._everywhere("finish_weight_update", version)
        return SyncReport(
            num_tensors=num_tensors,
            num_buckets=num_buckets,
            num_bytes=num_bytes,
            wall_time_s=time.monotonic() - start_s,
        )

    def close(self) -> None:
        """Leave the group and stop the threads; may be called twice."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        if self._group is not None:
            wire.leave(self._group)
            self._group = None
        self._store = None

    def _broadcast(self, flat: Tensor, calls: Sequence[Future[None]]) -> None:
        """Broadcast, but do not wait for an engine that has already said it failed."""
        work = dist.broadcast(flat, src=0, group=self._group, async_op=True)
        if work is None:
            raise WeightSyncError("this process is not a member of the weight group")
        deadline = time.monotonic() + self._timeout_s
        while not work.is_completed():
            self._raise_failed(calls)
            if time.monotonic() > deadline:
                raise WeightSyncError(f"a broadcast took longer than {self._timeout_s:g} s")
            time.sleep(0.001)  # 256 MiB take 10 ms and more, so this costs nothing
        try:
            work.wait()
        except RuntimeError as error:
            self._raise_failed(calls)
            raise WeightSyncError(f"the broadcast over {self._backend} failed: {error}") from error
        if flat.device.type != "cpu":
            torch.accelerator.synchronize()

    def _everywhere(self, call: str, *arguments: Any) -> None:
        self._wait_for(self._submit(call, *arguments))

    def _submit(self, call: str, *arguments: Any) -> list[Future[None]]:
        if self._threads is None:
            raise WeightSyncError(f"{call} before connect()")
        return [
            self._threads.submit(getattr(receiver, call), *arguments)
            for receiver in self._receivers
        ]

    def _wait_for(self, calls: Sequence[Future[None]]) -> None:
        deadline = time.monotonic() + self._timeout_s
        for call in calls:
            try:
                call.result(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise WeightSyncError(
                    f"an engine did not answer within {self._timeout_s:g} s"
                ) from error

    def _raise_failed(self, calls: Sequence[Future[None]]) -> None:
        for call in calls:
            if call.done() and (error := call.exception()) is not None:
                raise WeightSyncError(f"an engine gave up during the sync: {error}") from error
