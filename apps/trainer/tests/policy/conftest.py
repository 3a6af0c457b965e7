"""Rank processes for the tests of one file, and tiny models of each family."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retool_trainer.config import ModelShape
from retool_trainer.policy import make_random_hf

_WORKER = Path(__file__).with_name("rank_worker.py")
_ANSWER_TIMEOUT_S = 240.0

VOCAB_SIZE = 101
"""Odd, so that two tensor ranks need a padded vocabulary."""


class RankError(Exception):
    """A scenario ended with an error in a rank; `name` is the error's type there."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Ranks:
    """Processes that play scenarios; each imports torch and Megatron once."""

    def __init__(self, folder: Path) -> None:
        self._listener = Listener(str(folder / "ranks.sock"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []

    def run(self, hf: Path, *actions: tuple[str, dict[str, Any]], **policy: Any) -> list[Any]:
        """What rank 0's actions returned, in order."""
        world_size = (
            policy.get("data_parallel", 1)
            * policy.get("tensor_parallel", 1)
            * policy.get("pipeline_parallel", 1)
        )
        return self.run_ranks(hf, *actions, world_size=world_size, **policy)[0]

    def command(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command of the command line."""
        self._start(1)
        self._connections[0].send({"command": [str(argument) for argument in arguments]})
        return self._answers(1)[0][0]

    def run_ranks(
        self, hf: Path, *actions: tuple[str, dict[str, Any]], world_size: int, **policy: Any
    ) -> list[list[Any]]:
        """What every rank's actions returned."""
        self._start(world_size)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        scenario = {"hf": hf, "policy": policy, "actions": actions, "port": port}
        for rank, connection in enumerate(self._connections[:world_size]):
            connection.send({**scenario, "rank": rank, "world_size": world_size})
        return self._answers(world_size)

    def _answers(self, count: int) -> list[list[Any]]:
        answers: list[tuple[str, Any]] = []
        for connection in self._connections[:count]:
            if not connection.poll(_ANSWER_TIMEOUT_S):
                raise TimeoutError(f"a rank did not answer within {_ANSWER_TIMEOUT_S} s")
            answers.append(connection.recv())
        for kind, answer in answers:
            if kind != "ok":
                raise RankError(kind, answer)
        return [answer for _, answer in answers]

    def _start(self, count: int) -> None:
        while len(self._processes) < count:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
            command = [sys.executable, str(_WORKER), str(self._listener.address)]
            self._processes.append(subprocess.Popen(command, env=environment))
            self._connections.append(self._listener.accept())

    def close(self) -> None:
        for connection in self._connections:
            connection.send(None)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for connection in self._connections:
            connection.close()
        self._listener.close()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Not for the whole session: the gloo threads of all their scenarios poll, also when idle."""
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    try:
        yield ranks
    finally:
        ranks.close()


@pytest.fixture(scope="session")
def worker() -> ModuleType:
    """The worker's module, for the rows that it makes."""
    spec = importlib.util.spec_from_file_location("rank_worker", _WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MakeHf = Callable[..., Path]


@pytest.fixture(scope="session")
def make_hf(tmp_path_factory: pytest.TempPathFactory) -> MakeHf:
    """Make (once) a tiny random model; keyword arguments change its shape."""
    made: dict[str, Path] = {}

    def make(architecture: str = "qwen3", *, seed: int = 0, **shape: Any) -> Path:
        key = f"{architecture} {seed} {sorted(shape.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp("hf") / architecture
            sizes = {
                "hidden_size": 32,
                "num_layers": 2,
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 8,
                "mlp_size": 64,
                "tied_embeddings": architecture != "llama",
                **shape,
            }
            make_random_hf(ModelShape(architecture=architecture, **sizes), VOCAB_SIZE, folder, seed)
            _disturb(folder)
            (folder / "tokenizer.json").write_text("{}")
            made[key] = folder
        return made[key]

    return make


def _disturb(folder: Path) -> None:
    """Move norms off 1 and biases off 0, and weights away from near-silence."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        tensors[name] = tensor + (0.3 if tensor.dim() == 1 else 0.1) * noise
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
