"""The vLLM servers of a run: one Ray actor each, which starts, watches and ends its process."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retool_trainer.config import RunConfig
from retool_trainer.engines import VllmServer
from retool_trainer.platform import VllmLaunch, get_platform

from ._calls import WorkerError, result

_CALL_TIMEOUT_S = 300.0  # freeing and taking tens of GiB


class _EngineServerActor:
    """Owns one server process; the process ends with the actor, however the actor ends."""

    def __init__(self, config: RunConfig, index: int, log_file: str) -> None:
        self._config, self._index, self._log_file = config, index, Path(log_file)
        self._server: VllmServer | None = None
        self._port = 0

    def start(self, model: str) -> str:
        """Start the server on these weights and return its URL once it serves."""
        import ray

        config = self._config
        host = ray.util.get_node_ip_address() if config.ray.address else "127.0.0.1"
        if not self._port:
            self._port = (
                config.ports.engine + self._index if config.ports.engine else _free_port(host)
            )
        platform = get_platform(config.platform)
        command = platform.vllm_command(
            config.engine, VllmLaunch(model=model, host=host, port=self._port, seed=config.seed)
        )
        self._server = VllmServer(
            command,
            url=f"http://{host}:{self._port}",
            environment=platform.process_environment("engine", config, os.environ),
            log_file=self._log_file,
        )
        self._server.wait_until_healthy(config.engine.start_timeout_s)
        return self._server.url

    def is_healthy(self) -> bool:
        """The server answers."""
        assert self._server is not None
        return self._server.healthy()

    def ensure(self, model: str) -> bool:
        """Restart the server on these weights if it is not healthy; True if it was restarted."""
        assert self._server is not None
        if self._server.healthy():
            return False
        self._server.close()
        self.start(model)
        return True

    def call(self, path: str) -> None:
        """POST to the server, e.g. /sleep."""
        assert self._server is not None
        self._server.post(path, _CALL_TIMEOUT_S)

    def process_id(self) -> int:
        """For tests that kill the server."""
        assert self._server is not None
        return self._server.process_id

    def close(self) -> None:
        """End the server."""
        if self._server:
            self._server.close()


class EngineServers:
    """All replicas; empty for the embedded engine."""

    def __init__(
        self,
        config: RunConfig,
        model: Path,
        log_folder: Path,
        options: Sequence[Mapping[str, Any]],
    ) -> None:
        """Start the servers and wait until they serve.

        Args:
            config: The run.
            model: The weights to start from.
            log_folder: For what the servers print.
            options: Of each server's actor, from `place`.
        """
        import ray

        self._config = config
        self._actors: list[Any] = []
        self.urls: list[str] = []
        self.num_restarts = 0
        if config.engine.kind != "vllm":
            return
        actor: Any = ray.remote(_EngineServerActor)
        self._actors = [
            actor.options(**option).remote(
                config, index, str(log_folder.absolute() / f"vllm-{index}.log")
            )
            for index, option in enumerate(options)
        ]
        self.urls = result(
            [actor.start.remote(str(model.absolute())) for actor in self._actors],
            what="start of the vLLM servers",
            timeout_s=config.engine.start_timeout_s + 60,
        )

    def ensure(self, model: Path) -> int:
        """Restart what has died, on these weights; returns how many were restarted."""
        restarted = result(
            [actor.ensure.remote(str(model.absolute())) for actor in self._actors],
            what="health of the vLLM servers",
            timeout_s=self._config.engine.start_timeout_s + 60,
        )
        self.num_restarts += sum(restarted)
        return sum(restarted)

    def check(self) -> None:
        """Nothing, if every server answers.

        Raises:
            WorkerError: Names those that do not.
        """
        healthy = result(
            [actor.is_healthy.remote() for actor in self._actors],
            what="health of the vLLM servers",
            timeout_s=_CALL_TIMEOUT_S,
        )
        dead = [url for url, alive in zip(self.urls, healthy, strict=True) if not alive]
        if dead:
            raise WorkerError(f"no answer from the vLLM at {', '.join(dead)}; see RUN/logs/vllm-*")

    def sleep(self) -> None:
        """Give up the devices' memory: the weights come again with the next sync, so drop them."""
        self._call("/sleep?level=2")

    def wake(self, what: str) -> None:
        """Take the memory of `weights` or of `kv_cache` again; nothing happens if it is awake."""
        self._call(f"/wake_up?tags={what}")

    def _call(self, path: str) -> None:
        result(
            [actor.call.remote(path) for actor in self._actors],
            what=f"{path} of the vLLM servers",
            timeout_s=_CALL_TIMEOUT_S + 60,
        )

    def process_ids(self) -> list[int]:
        """Of the servers."""
        return result([actor.process_id.remote() for actor in self._actors], what="vLLM servers")

    def close(self) -> None:
        """End the servers."""
        import ray

        for actor in self._actors:
            with contextlib.suppress(WorkerError):  # it is dead, and its server died with it
                result(actor.close.remote(), what="end of a vLLM server", timeout_s=60.0)
            ray.kill(actor)
        self._actors = []


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
