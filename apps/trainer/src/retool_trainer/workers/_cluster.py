"""Ray for the length of a run: a local cluster of its own, or one that is already there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from retool_trainer.config import RunConfig
from retool_trainer.platform import get_platform

# One object store for batches and trajectories of a laptop run; Ray's default is 30 % of memory.
_LOCAL_OBJECT_STORE_BYTES = 256 * 2**20


class ClusterError(Exception):
    """Ray could not be had; the message says why and what to do."""


@contextmanager
def cluster(config: RunConfig) -> Iterator[None]:
    """Start or join Ray, and leave nothing of it behind.

    Raises:
        ClusterError: Too little free memory, or Ray did not start.
    """
    _check_memory(config)
    # Started through `uv run`, Ray would make each worker an environment of its own.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    platform = get_platform(config.platform)
    environment = {item.name: item.value for item in platform.environment("driver", config)}
    try:
        if config.ray.address:
            ray.init(
                address=config.ray.address,
                runtime_env={"env_vars": environment},
                logging_level=logging.WARNING,
                log_to_driver=False,
            )
        else:
            ray.init(
                address="local",
                num_cpus=config.ray.num_cpus or _cpus_needed(config),
                include_dashboard=False,
                object_store_memory=_LOCAL_OBJECT_STORE_BYTES,
                runtime_env={"env_vars": environment},
                logging_level=logging.WARNING,
                log_to_driver=False,
            )
    except Exception as error:
        where = config.ray.address or "a local Ray"
        first_line = (str(error).strip() or repr(error)).splitlines()[0]
        raise ClusterError(
            f"could not start or reach {where}: {type(error).__name__}: {first_line}; "
            "check ray.address, free ports and /dev/shm"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _cpus_needed(config: RunConfig) -> int:
    """Ray counts CPUs as places for actors, not as cores: one for each actor that the run starts."""
    return config.policy.world_size + config.engine.replicas + 2


def _check_memory(config: RunConfig) -> None:
    free_gib = psutil.virtual_memory().available / 2**30
    if free_gib < config.ray.min_free_memory_gib:
        raise ClusterError(
            f"{free_gib:.1f} GiB of memory are free, ray.min_free_memory_gib asks for "
            f"{config.ray.min_free_memory_gib:g}; close something or lower the key"
        )
