"""Place policy ranks and engines on Ray, each on devices of its own, or on shared ones."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from retool_trainer.config import RunConfig
from retool_trainer.platform import Platform, PlatformError, get_platform


class PlacementError(PlatformError):
    """Ray cannot give the run its devices; the message says what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Options for the actors of a run: pass them to `Actor.options(**...)`."""

    policy: tuple[dict[str, Any], ...]
    """One per rank. Ray shows the rank its device and no other."""
    engines: tuple[dict[str, Any], ...]
    """One per vLLM server; empty if there is none."""
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    """Of each bundle: the node, and the ids of its devices."""


@contextmanager
def place(config: RunConfig, *, timeout_s: float = 60.0) -> Iterator[Placement]:
    """Reserve the devices of a run; they are free again when the context ends.

    A bundle holds one tensor-parallel group, so no group crosses nodes. Apart, policy and engines
    have bundles of their own. Colocated, policy ranks hold the devices of a bundle and an engine is
    an actor without devices in the same bundle, told which ones they are.

    Raises:
        PlacementError: The cluster has too few devices, or they are taken.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    platform = get_platform(config.platform)
    engines = config.engine.replicas if config.engine.kind == "vllm" else 0
    ranks = config.policy.world_size
    if platform.device_type == "cpu":
        # Cores are not owned: the ranks share them, and the system schedules.
        options = {"num_cpus": 1}
        yield Placement(policy=(options,) * ranks, engines=(options,) * engines, devices=())
        return
    widths = bundle_widths(config)
    _check_devices(platform, sum(widths))
    group = placement_group([platform.ray_bundle(width) for width in widths], strategy="PACK")
    try:
        if not group.wait(timeout_s):
            raise PlacementError(
                f"Ray did not free {sum(widths)} {platform.ray_resource}s within {timeout_s:g} s; "
                f"available now: {ray.available_resources().get(platform.ray_resource, 0):g}"
            )

        def inside(bundle: int) -> PlacementGroupSchedulingStrategy:
            return PlacementGroupSchedulingStrategy(
                group,
                placement_group_bundle_index=bundle,
                placement_group_capture_child_tasks=False,
            )

        probe = ray.remote(_device_ids)
        devices = ray.get(
            [
                probe.options(
                    **platform.ray_options(width), scheduling_strategy=inside(index)
                ).remote(platform.ray_resource)
                for index, width in enumerate(widths)
            ],
            timeout=timeout_s,
        )
        policy = tuple(
            {
                **platform.ray_options(1),
                "scheduling_strategy": inside(rank // widths[0]),
            }
            for rank in range(ranks)
        )
        yield Placement(
            policy=policy,
            engines=tuple(
                _engine_options(platform, config, index, widths, devices, inside)
                for index in range(engines)
            ),
            devices=tuple((node, tuple(ids)) for node, ids in devices),
        )
    finally:
        remove_placement_group(group)


def bundle_widths(config: RunConfig) -> list[int]:
    """Devices of each bundle: the policy's groups, then, unless they share, the engines'.

    Raises:
        PlacementError: Colocated layouts that do not tile the same devices.
    """
    engines = config.engine.replicas if config.engine.kind == "vllm" else 0
    policy, engine = config.policy.tensor_parallel, config.engine.tensor_parallel
    groups = config.policy.world_size // policy
    if not engines or not config.engine.colocated:
        return [policy] * groups + [engine] * engines
    width = max(policy, engine)
    if width % min(policy, engine) or config.policy.world_size % width:
        raise PlacementError(
            f"colocated policy TP{policy} x {groups} and engines TP{engine} do not tile the same "
            "devices; make one a multiple of the other"
        )
    needed = max(config.policy.world_size, engines * engine)
    if needed != config.policy.world_size:
        raise PlacementError(
            f"{engines} colocated engines of {engine} devices need {needed}, the policy has "
            f"{config.policy.world_size}; lower engine.replicas or raise policy.data_parallel"
        )
    return [width] * (config.policy.world_size // width)


def _engine_options(
    platform: Platform,
    config: RunConfig,
    index: int,
    widths: list[int],
    devices: list[tuple[str, list[str]]],
    inside: Any,
) -> dict[str, Any]:
    width = config.engine.tensor_parallel
    if not config.engine.colocated:
        bundle = len(widths) - config.engine.replicas + index
        return {**platform.ray_options(width), "scheduling_strategy": inside(bundle)}
    bundle, offset = divmod(index * width, widths[0])
    ids = devices[bundle][1][offset : offset + width]
    variable = platform.visible_devices_variable
    assert variable is not None
    return {
        "num_cpus": 0,
        "scheduling_strategy": inside(bundle),
        # The ranks hold the devices; Ray shows none to an actor that asked for none.
        "runtime_env": {"env_vars": {variable: ",".join(ids)}},
    }


def _check_devices(platform: Platform, needed: int) -> None:
    """Ray waits for ever for what a cluster does not have."""
    import ray

    there = ray.cluster_resources().get(platform.ray_resource, 0)
    if there < needed:
        start = shlex.join(platform.ray_start_arguments(needed))
        raise PlacementError(
            f"the run needs {needed} {platform.ray_resource}s, Ray has {there:g}; start it with "
            f"`ray start ... {start}`, or lower data_parallel or engine.replicas"
        )


def _device_ids(resource: str) -> tuple[str, list[str]]:
    """Run inside a bundle: where it is, and which devices it has."""
    import ray

    context = ray.get_runtime_context()
    ids = context.get_accelerator_ids().get(resource, [])
    if not ids:
        raise RuntimeError(
            f"Ray assigned no {resource} ids in process {os.getpid()}; this Ray does not treat "
            f"{resource} as devices (need ray >= 2.60)"
        )
    return context.get_node_id(), sorted(ids, key=int)
