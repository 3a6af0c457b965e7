"""Weights travel over real gloo to processes that see only the engine side's folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from retool_trainer import weights as weights_package
from retool_trainer.weights import BroadcastSender, SyncReport, WeightSyncError
from retool_trainer.weights.engine_side import retool_broadcast as wire

ENGINE_SIDE = Path(weights_package.__file__).parent / "engine_side"

# One engine process: reads a call per line on stdin, answers a line per call, prints what it holds.
ENGINE = textwrap.dedent(
    """
    import json, sys
    import torch
    from retool_broadcast import Handshake, Receiver
    held, receiver = {}, None
    for line in sys.stdin:
        call, value = json.loads(line)
        if call == "init_weight_transfer_engine":
            receiver = Receiver(Handshake(**value), int(sys.argv[1]), "cpu")
            answer = None
        elif call == "update_weights":
            held.update({n: t.clone() for n, t in receiver.receive(**value)})
            answer = None
        elif call == "sums":
            answer = {
                n: [str(t.dtype), list(t.shape), float(t.double().sum())] for n, t in held.items()
            }
        else:
            answer = None
        print(json.dumps(answer), flush=True)
    """
)


class ProcessEngine:
    """An engine of `num_processes` real processes, driven over their stdin."""

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        environment = {**os.environ, "PYTHONPATH": str(ENGINE_SIDE), "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", ENGINE, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(num_processes)
        ]

    def call(self, name: str, value: Any = None) -> list[Any]:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([name, value]) + "\n")
            process.stdin.flush()
        answers: list[Any] = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the engine process is gone")
            answers.append(json.loads(line))
        return answers

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self.call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.call("update_weights", update_info)

    def finish_weight_update(self, version: int) -> None:
        self.call("finish_weight_update", version)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(timeout=10)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


@pytest.fixture
def engines() -> Iterator[list[ProcessEngine]]:
    running = [ProcessEngine(2), ProcessEngine(1)]
    yield running
    for engine in running:
        engine.stop()


def _weights() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        ("embed", torch.randn(40, 8, generator=generator)),
        ("norm", torch.randn(3, generator=generator, dtype=torch.float64)),
        ("half", torch.randn(5, 7, generator=generator).bfloat16()),
        ("view", torch.randn(6, 4, generator=generator).t()),
        ("big", torch.randn(700, 500, generator=generator)),
    ]


def test_every_process_of_every_engine_holds_what_was_sent(engines: list[ProcessEngine]) -> None:
    sender = BroadcastSender(engines, backend="gloo", bucket_mib=1, timeout_s=60)
    try:
        sender.connect()
        sender.send(_weights(), version=1)
        changed = [(name, tensor * 2) for name, tensor in _weights()]
        report: SyncReport = sender.send(iter(changed), version=2)
        expected = {
            name: [str(t.dtype), list(t.shape), pytest.approx(float(t.double().sum()))]
            for name, t in changed
        }
        for engine in engines:
            for sums in engine.call("sums"):
                assert sums == expected
        assert (report.num_tensors, report.num_buckets) == (5, 2)
        assert report.num_bytes == sum(t.nbytes for _, t in changed)
    finally:
        sender.close()


def test_an_engine_that_dies_stops_the_sync() -> None:
    engine = ProcessEngine(1)
    sender = BroadcastSender([engine], backend="gloo", timeout_s=60)
    try:
        sender.connect()
        engine.processes[0].kill()
        engine.processes[0].wait(timeout=10)
        with pytest.raises((WeightSyncError, RuntimeError, OSError)):
            sender.send(_weights(), version=1)
    finally:
        sender.close()
        engine.stop()


def test_an_engine_that_never_comes_is_a_clear_error_after_the_deadline() -> None:
    class Absent:
        num_processes = 1

        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
            raise WeightSyncError("engine http://127.0.0.1:1 did not answer")

        def start_weight_update(self) -> None: ...
        def update_weights(self, update_info: dict[str, Any]) -> None: ...
        def finish_weight_update(self, version: int) -> None: ...

    sender = BroadcastSender([Absent()], backend="gloo", timeout_s=3)
    try:
        with pytest.raises(WeightSyncError, match="did not answer"):
            sender.connect()
    finally:
        sender.close()


def test_sending_before_connecting_is_refused() -> None:
    with pytest.raises(ValueError, match="no receivers"):
        BroadcastSender([], backend="gloo")


def test_the_group_leaves_no_port_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    engine = ProcessEngine(1)
    sender = BroadcastSender([engine], backend="gloo", port=port, timeout_s=60)
    try:
        sender.connect()
    finally:
        sender.close()
        engine.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    limit=st.integers(1, 400),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int8]),
)
def test_buckets_hold_everything_once_in_order_and_round_trip(
    sizes: list[int], limit: int, dtype: torch.dtype
) -> None:
    tensors = [(f"t{i}", torch.arange(size).to(dtype)) for i, size in enumerate(sizes)]
    out: list[tuple[str, Tensor]] = []
    for bucket in wire.buckets(tensors, limit):
        total = sum(tensor.nbytes for _, tensor in bucket)
        assert total <= limit or len(bucket) == 1
        _, views = wire.unflatten(wire.flatten(bucket), **wire.describe(bucket), device="cpu")
        out += views
    assert [name for name, _ in out] == [name for name, _ in tensors]
    for (_, got), (_, sent) in zip(out, tensors, strict=True):
        assert torch.equal(got, sent)
        assert got.dtype == sent.dtype
