"""Ray for the length of a run: a local cluster of its own, or one that is already there."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from retool_trainer.config import RunConfig
from retool_trainer.errors import RunRefusedError
from retool_trainer.platform import get_platform

# One object store for batches and trajectories of a laptop run; Ray's default is 30 % of memory.
_LOCAL_OBJECT_STORE_BYTES = 256 * 2**20
_CONNECT_TIMEOUT_S = 10.0
# Ray gives its own agents a fixed time to start, which a busy machine can exceed.
_START_ATTEMPTS = 3


class ClusterError(RunRefusedError):
    """Ray could not be had; the message says why and what to do."""


def check_cluster(config: RunConfig) -> None:
    """Find out in a second what would end a run in its first minute.

    Raises:
        ClusterError: Too little free memory, or nobody answers at `ray.address`.
    """
    _check_memory(config)
    if config.ray.address:
        _check_address(config.ray.address)


@contextmanager
def cluster(config: RunConfig) -> Iterator[None]:
    """Start or join Ray, and leave nothing of it behind; SIGTERM then ends a run like Ctrl-C.

    Raises:
        ClusterError: Ray did not start.
    """
    # Started through `uv run`, Ray would make each worker an environment of its own.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A worker that ends would kill the guards of its servers, who end the servers when it is gone.
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "0")
    # When one rank died, the others' lost connections are no news, least of all as tracebacks.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if config.ray.address and _has_ray_token():
        # `ray start` wants a token where this user has one, but the driver would not send it.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    # It says that Ray's token authentication is on, as it is by default.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    arguments = _init_arguments(config)
    for attempt in range(_START_ATTEMPTS):
        try:
            ray.init(**arguments)
            break
        except Exception as error:
            ray.shutdown()
            if attempt + 1 < _START_ATTEMPTS and not config.ray.address:
                continue
            where = config.ray.address or "a local Ray"
            first_line = (str(error).strip() or repr(error)).splitlines()[0]
            raise ClusterError(
                f"could not start or reach {where}: {type(error).__name__}: {first_line}; "
                "check ray.address, free ports and /dev/shm"
            ) from error
    # Ray's own handler would end the process without closing anything. As Ctrl-C: a scheduler that
    # takes the machine away sends SIGTERM, and what was started is ended in order.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        ray.shutdown()


def _has_ray_token() -> bool:
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").exists()


def _init_arguments(config: RunConfig) -> dict[str, Any]:
    platform = get_platform(config.platform)
    environment = {item.name: item.value for item in platform.environment("driver", config)}
    common: dict[str, Any] = {
        "runtime_env": {"env_vars": environment},
        "logging_level": logging.WARNING,
        "log_to_driver": False,
    }
    if config.ray.address:
        return {"address": config.ray.address, **common}
    return {
        "address": "local",
        "num_cpus": config.ray.num_cpus or _cpus_needed(config),
        **platform.ray_init_arguments(config.devices_per_node),
        "include_dashboard": False,
        "object_store_memory": _LOCAL_OBJECT_STORE_BYTES,
        **common,
    }


def _cpus_needed(config: RunConfig) -> int:
    """Ray counts CPUs as places for actors, not as cores: one for each actor of the run."""
    return config.policy.world_size + config.engine.replicas + 2


def _check_address(address: str) -> None:
    """Ray itself tries for minutes before it says that nobody is there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise ClusterError(
            f"ray.address {address!r} is not of the form HOST:PORT; null starts a local Ray"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray answers at ray.address {address} ({error}); start one there with "
            "`ray start --head`, or set ray.address=null for a local one"
        ) from error


def _check_memory(config: RunConfig) -> None:
    free_gib = psutil.virtual_memory().available / 2**30
    if free_gib < config.ray.min_free_memory_gib:
        raise ClusterError(
            f"{free_gib:.1f} GiB of memory are free, ray.min_free_memory_gib asks for "
            f"{config.ray.min_free_memory_gib:g}; close something or lower the key"
        )
