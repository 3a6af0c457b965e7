"""The ranks of the policy, one Ray actor each, called together."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retool_trainer.config import OptimizerConfig, RunConfig
from retool_trainer.platform import get_platform

from ._calls import result

if TYPE_CHECKING:
    from retool_trainer.policy import Row, TokenLoss

_START_TIMEOUT_S = 900.0


class _PolicyRank:
    """The actor: one rank, whose policy the group calls by name of the method."""

    def __init__(self, rank: int, config: RunConfig, hf_folder: str) -> None:
        self._rank, self._config, self._hf_folder = rank, config, hf_folder
        self._policy: Any = None
        self._sender: Any = None
        self._reference: Any = None

    def rendezvous(self, port: int | None) -> tuple[str, int]:
        """Choose an address and a free port for the process group; called on rank 0."""
        import ray

        host = ray.util.get_node_ip_address() if self._config.ray.address else "127.0.0.1"
        if port:
            return host, port
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    def start(self, rendezvous: tuple[str, int]) -> None:
        """Join the process group at (address, port) and load the weights."""
        # Before the policy's module, which imports Megatron: the vendor's patches come first.
        get_platform(self._config.platform).import_vendor()
        from retool_trainer.policy import Policy

        policy = self._config.policy
        self._policy = Policy(
            Path(self._hf_folder),
            policy=policy,
            platform=self._config.platform,
            rank=self._rank,
            world_size=policy.world_size,
            master_addr=rendezvous[0],
            master_port=rendezvous[1],
            seed=self._config.seed,
        )

    def connect_engines(self, urls: Sequence[str], host: str) -> None:
        """Rank 0 opens the group over which weights are broadcast."""
        from retool_trainer.weights import BroadcastSender, HttpReceiver

        config = self._config
        if self._rank == 0:
            if self._sender is not None:
                self._sender.close()
            receivers = [
                HttpReceiver(url=url, num_processes=config.engine.tensor_parallel) for url in urls
            ]
            self._sender = BroadcastSender(
                receivers,
                backend=get_platform(config.platform).collective_backend,
                host=host,
                port=config.ports.weights,
            )
            self._sender.connect()

    def broadcast(self, weight_version: int) -> None:
        """Send the weights; gathering them is a collective, so every rank takes part."""
        weights = self._policy.weights()
        if self._rank == 0:
            self._sender.send(weights, weight_version)
        else:
            for _ in weights:
                pass

    def keep_reference(self) -> None:
        """Keep a copy of the weights as they are now."""
        from retool_trainer.policy import Reference

        self._reference = Reference(self._policy.model)

    def reference_logprobs(self, rows: list[Row], temperature: float) -> Any:
        """Log-probabilities under the kept weights."""
        with self._reference.in_place():
            return self.logprobs(rows, temperature)

    def logprobs(self, rows: list[Row], temperature: float) -> Any:
        """Log-probabilities of the sampled tokens only: with a large vocabulary all would cost."""
        return self._policy.logprobs(rows, temperature, masked_only=True)

    def call(self, method: str, *args: Any) -> Any:
        """Call the policy's method of this name."""
        return getattr(self._policy, method)(*args)

    def process_id(self) -> int:
        """For tests that kill a rank."""
        return os.getpid()


class PolicyGroup:
    """The policy as the driver sees it; every method is one call to all ranks.

    On a cluster the ranks have another working directory, so paths are sent whole.
    """

    def __init__(
        self, config: RunConfig, hf_folder: Path, options: Sequence[Mapping[str, Any]]
    ) -> None:
        """Start the ranks; they load in the background, and the first call waits for them.

        Args:
            config: The run.
            hf_folder: The weights to start from.
            options: Of each rank's actor, from `place`.
        """
        import ray

        platform = get_platform(config.platform)
        environment = {item.name: item.value for item in platform.environment("policy", config)}
        actor: Any = ray.remote(_PolicyRank)
        self._ranks: list[Any] = [
            actor.options(**option, runtime_env={"env_vars": environment}).remote(
                rank, config, str(hf_folder.absolute())
            )
            for rank, option in enumerate(options)
        ]
        # Nobody waits here: Ray hands the place on to the ranks once rank 0 has chosen it.
        self._rendezvous = self._ranks[0].rendezvous.remote(config.ports.policy)
        self._started: list[Any] | None = [
            rank.start.remote(self._rendezvous) for rank in self._ranks
        ]

    def _await_start(self) -> None:
        if self._started is not None:
            started, self._started = self._started, None
            result(started, what="start of the policy", timeout_s=_START_TIMEOUT_S)

    def _call(self, method: str, *args: Any) -> list[Any]:
        import ray

        self._await_start()
        shared = [ray.put(value) if isinstance(value, list) else value for value in args]
        return result(
            [rank.call.remote(method, *shared) for rank in self._ranks], what=f"policy.{method}"
        )

    def set_optimizer(self, config: OptimizerConfig, total_steps: int) -> None:
        """Start a stage with a fresh optimizer and schedule."""
        self._call("set_optimizer", config, total_steps)

    def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[np.ndarray]:
        """Log-probabilities of the sampled tokens, aligned with the rows' ids; 0.0 elsewhere."""
        return self._score("logprobs", rows, temperature)

    def keep_reference(self) -> None:
        """Keep the weights as they are now as the reference of the KL term."""
        self._await_start()
        result([rank.keep_reference.remote() for rank in self._ranks], what="reference")

    def reference_logprobs(self, rows: Sequence[Row], temperature: float) -> list[np.ndarray]:
        """As `logprobs`, under the reference."""
        return self._score("reference_logprobs", rows, temperature)

    def _score(self, method: str, rows: Sequence[Row], temperature: float) -> list[np.ndarray]:
        import ray

        self._await_start()
        shared = ray.put(list(rows))
        calls = [getattr(rank, method).remote(shared, temperature) for rank in self._ranks]
        return result(calls, what=f"policy.{method}")[0]

    def step(
        self, rows: Sequence[Row], loss: TokenLoss, temperature: float = 1.0
    ) -> dict[str, float]:
        """One optimizer step on the whole batch."""
        return self._call("step", list(rows), loss, temperature)[0]

    def connect_engines(self, urls: Sequence[str]) -> None:
        """Open the group over which weights are broadcast."""
        self._await_start()
        host, _ = result(self._rendezvous, what="policy rank 0")
        result(
            [rank.connect_engines.remote(list(urls), host) for rank in self._ranks],
            what="connection of the engines",
            timeout_s=_START_TIMEOUT_S,
        )

    def broadcast(self, weight_version: int) -> None:
        """Send the weights to the connected engines."""
        result(
            [rank.broadcast.remote(weight_version) for rank in self._ranks], what="weight broadcast"
        )

    def export_hf(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        self._call("export_hf", folder.absolute())

    def save(self, folder: Path) -> None:
        """Write model, optimizer, schedule and random state."""
        self._call("save", folder.absolute())

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        self._call("load", folder.absolute())

    def process_ids(self) -> list[int]:
        """Of the ranks."""
        return result([rank.process_id.remote() for rank in self._ranks], what="policy")

    def close(self) -> None:
        """End the ranks."""
        import ray

        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []
