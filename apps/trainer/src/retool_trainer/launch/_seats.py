"""Which device of which node every rank and engine gets: the order that Ray's placement follows."""

from __future__ import annotations

from dataclasses import dataclass

from retool_trainer.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process, or one shard of an engine, on one device."""

    stage: str
    who: str
    """`policy 3`, or `engine 1 shard 2`."""
    node: int
    device: int
    """Index on the node; on an A3 two devices are one card (card = device // 2)."""


def seats(config: RunConfig, *, nodes: int, devices_per_node: int) -> tuple[Seat, ...]:
    """Policy ranks from the first device on, engines after them, or on the same when colocated.

    Consecutive ranks are tensor-parallel peers, so a TP group stays on neighbouring devices. Seats
    beyond the last device are left out; `layout_faults` says that they are missing.
    """
    found: list[Seat] = []

    def sit(stage: str, who: str, index: int) -> None:
        if index < nodes * devices_per_node:
            node, device = divmod(index, devices_per_node)
            found.append(Seat(stage=stage, who=who, node=node, device=device))

    for stage in config.stages:
        for rank in range(config.policy.world_size):
            sit(stage, f"policy {rank}", rank)
        if config.engine.kind != "vllm":
            continue
        # Engines also run during SFT, idle: they evaluate before it and after it.
        first = 0 if config.engine.colocated else config.policy.world_size
        width = config.engine.tensor_parallel
        for engine in range(config.engine.replicas):
            for shard in range(width):
                sit(stage, f"engine {engine} shard {shard}", first + engine * width + shard)
    return tuple(found)
