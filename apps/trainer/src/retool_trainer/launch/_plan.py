"""Say exactly what a configuration would start, where, and whether it can; touches no hardware."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retool_trainer.config import PolicyConfig, PortsConfig, RunConfig
from retool_trainer.platform import Platform, Setting, VllmLaunch, get_platform

from ._faults import layout_faults, memory_faults, notes, port_faults
from ._memory import (
    MemoryEstimate,
    disk_estimate,
    engine_items,
    host_estimate,
    policy_items,
)
from ._model_size import ModelSize, UnknownModelError, model_size
from ._placement import PlacementError, bundle_widths
from ._seats import Seat, seats
from ._times import StepTime, step_times


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """One engine."""

    name: str
    command: tuple[str, ...]
    """Empty for the embedded engine, which is no process of another program."""
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage: how many ranks in which layout, and what a step takes in."""

    name: str
    layout: str
    budget: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that `plan` shows; `faults` is empty if the run can start."""

    config_name: str
    platform: str
    nodes: int
    devices_per_node: int
    model: ModelSize | None
    stages: tuple[StagePlan, ...]
    seats: tuple[Seat, ...]
    ray_commands: tuple[str, ...]
    ray_bundles: tuple[Mapping[str, float], ...]
    """Of the placement group; empty on CPU, where nothing is reserved."""
    environment: Mapping[str, tuple[Setting, ...]]
    """By role: driver, policy, engine."""
    engines: tuple[EnginePlan, ...]
    memory: tuple[MemoryEstimate, ...]
    kv_cache_tokens: int
    times: tuple[StepTime, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...]


def make_plan(
    config: RunConfig,
    *,
    config_file: str = "CONFIG",
    overrides: Sequence[str] = (),
    nodes: int | None = None,
    devices: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Plan:
    """Plan a run.

    Args:
        config: The run.
        config_file: Its path, for the commands shown.
        overrides: The `key=value`s that it was read with, for the commands shown.
        nodes: Instead of config.nodes.
        devices: Devices of a node, instead of config.devices_per_node.
        environment: What the processes would inherit, e.g. `os.environ`; None is empty.
    """
    platform = get_platform(config.platform)
    words = [*overrides]
    if nodes is not None and nodes != config.nodes:
        words.append(f"nodes={nodes}")
    if devices is not None and devices != config.devices_per_node:
        words.append(f"devices_per_node={devices}")
    nodes = nodes or config.nodes
    needed = policy_devices(config)
    devices = devices or config.devices_per_node or -(-needed // nodes)
    faults: list[str] = []
    try:
        size = model_size(config.model)
    except UnknownModelError as error:
        size = None
        faults.append(str(error))
    bundles: tuple[Mapping[str, float], ...] = ()
    if config.platform != "cpu":
        try:
            bundles = tuple(platform.ray_bundle(width) for width in bundle_widths(config))
        except PlacementError as error:
            faults.append(str(error))
    taken = seats(config, nodes=nodes, devices_per_node=devices)
    faults += layout_faults(config, size, nodes=nodes, devices_per_node=devices)
    faults += port_faults(config)
    faults += platform.faults(config, environment or {})
    estimates: tuple[MemoryEstimate, ...] = ()
    kv_tokens = 0
    if size is not None:
        estimates, kv_tokens = _memory(config, size, devices)
        faults += memory_faults(config, estimates, kv_tokens)
    return Plan(
        config_name=config.name,
        platform=config.platform,
        nodes=nodes,
        devices_per_node=devices,
        model=size,
        stages=_stages(config),
        seats=taken,
        ray_commands=_ray_commands(
            platform, config, shlex.join([config_file, *words]), nodes, devices
        ),
        ray_bundles=bundles,
        environment={
            "driver": platform.environment("driver", config),
            "policy": platform.environment("policy", config),
            "engine": _engine_environment(platform, config) if _serves(config) else (),
        },
        engines=_engines(platform, config, taken, nodes),
        memory=estimates,
        kv_cache_tokens=kv_tokens,
        times=step_times(config, size) if size is not None else (),
        notes=notes(config, platform, unused=nodes * devices - needed),
        faults=tuple(faults),
    )


def policy_devices(config: RunConfig) -> int:
    """Devices of policy and engines, which may share them."""
    engines = config.engine.replicas * config.engine.tensor_parallel if _serves(config) else 0
    policy = config.policy.world_size
    return max(policy, engines) if config.engine.colocated else policy + engines


def _serves(config: RunConfig) -> bool:
    return config.engine.kind == "vllm"


def _trains_sft(config: RunConfig) -> bool:
    return "sft" in config.stages


def _memory(
    config: RunConfig, size: ModelSize, devices: int
) -> tuple[tuple[MemoryEstimate, ...], int]:
    limit = config.hardware.device_memory_gib
    found: list[MemoryEstimate] = []
    kv_tokens = 0
    if config.sft is not None and _trains_sft(config):
        items = policy_items(size, config.policy, config.sft.optimizer)
        found.append(MemoryEstimate(where="device in sft", items=items, limit_gib=limit))
    if config.rl is not None and "rl" in config.stages:
        policy = policy_items(size, config.policy, config.rl.optimizer)
        if not _serves(config):
            found.append(MemoryEstimate(where="device in rl", items=policy, limit_gib=limit))
        else:
            engine, kv_tokens = engine_items(size, config)
            if config.engine.colocated:
                # The engine sleeps while the policy trains, so its cache and the policy's
                # activations are never there at once; what stays is weights and optimizer.
                resident = tuple(i for i in policy if i.name not in {"activations", "logits"})
                found += [
                    MemoryEstimate(where="device in rl, training", items=policy, limit_gib=limit),
                    MemoryEstimate(
                        where="device in rl, generating", items=resident + engine, limit_gib=limit
                    ),
                ]
            else:
                found += [
                    MemoryEstimate(where="policy device in rl", items=policy, limit_gib=limit),
                    MemoryEstimate(where="engine device in rl", items=engine, limit_gib=limit),
                ]
    ranks = min(devices, config.policy.world_size)
    return (*found, host_estimate(size, config, ranks), disk_estimate(size, config)), kv_tokens


def _stages(config: RunConfig) -> tuple[StagePlan, ...]:
    found: list[StagePlan] = []
    if config.sft is not None and _trains_sft(config):
        phases = ", ".join(
            f"{phase.data} "
            + (f"{phase.steps} steps" if phase.steps else f"{phase.epochs:g} epochs")
            for phase in config.sft.phases
        )
        found.append(
            StagePlan(
                name="sft",
                layout=_layout(config.policy),
                budget=f"{phases}; batches of {config.sft.batch_size} rows of up to "
                f"{config.sft.max_tokens} tokens; "
                f"{config.policy.tokens_per_microbatch} tokens a microbatch",
            )
        )
    if config.rl is not None and "rl" in config.stages:
        rl, engine = config.rl, config.engine
        engines = (
            f"{engine.replicas} vLLM x TP{engine.tensor_parallel}"
            + (" on the same devices" if engine.colocated else "")
            if engine.kind == "vllm"
            else f"{engine.replicas} embedded"
        )
        found.append(
            StagePlan(
                name="rl",
                layout=f"{_layout(config.policy)}; {engines}",
                budget=f"{rl.steps} steps of {rl.prompts_per_step} problems x "
                f"{rl.samples_per_prompt} samples in {rl.minibatches} update(s); responses of up "
                f"to {config.limits.response_tokens} tokens in a context of "
                f"{config.limits.context_tokens}",
            )
        )
    return tuple(found)


def _layout(policy: PolicyConfig) -> str:
    return (
        f"TP{policy.tensor_parallel} x PP{policy.pipeline_parallel} x DP{policy.data_parallel} "
        f"= {policy.world_size} rank(s), {policy.dtype}"
    )


def _ray_commands(
    platform: Platform, config: RunConfig, arguments: str, nodes: int, devices: int
) -> tuple[str, ...]:
    ports: PortsConfig = config.ports
    run = f"uv run apps/trainer run --config {arguments}"
    if nodes == 1:
        return (run,)
    told = shlex.join(platform.ray_start_arguments(devices))
    head = (
        f"ray start --head --port {ports.ray} --dashboard-host 127.0.0.1 "
        f"--dashboard-port {ports.dashboard} {told}"
    )
    worker = f"ray start --address NODE0:{ports.ray} {told}"
    return (
        f"node 0: {head}",
        *(f"node {node}: {worker}" for node in range(1, nodes)),
        f"node 0: {run} ray.address=NODE0:{ports.ray}",
    )


def _engines(
    platform: Platform, config: RunConfig, taken: Sequence[Seat], nodes: int
) -> tuple[EnginePlan, ...]:
    engine = config.engine
    if not _serves(config):
        return tuple(
            EnginePlan(name=f"engine {i}", command=(), url="")
            for i in range(engine.replicas if "rl" in config.stages else 0)
        )
    found: list[EnginePlan] = []
    start_from = config.rl.start_from if config.rl is not None else None
    model = start_from or config.model.path or "RUN/model"
    node_of = {seat.who.split()[1]: seat.node for seat in taken if seat.who.startswith("engine")}
    for index in range(engine.replicas):
        # Only known at the start.
        port = engine_port(config.ports, index) or "FREE"
        host = f"NODE{node_of.get(str(index), '')}" if nodes > 1 else "127.0.0.1"
        launch = VllmLaunch(model=model, host=host, port=port, seed=config.seed)
        command = platform.vllm_command(engine, launch)
        if engine.python is None:
            command[0] = "python"  # this interpreter, wherever it is
        found.append(
            EnginePlan(
                name=f"engine {index}",
                command=tuple(command),
                url=f"http://{host}:{port}",
            )
        )
    return tuple(found)


def engine_port(ports: PortsConfig, index: int) -> int | None:
    """The port of the index-th engine, or None where a free one is taken."""
    return None if ports.engine is None else ports.engine + index


def _engine_environment(platform: Platform, config: RunConfig) -> tuple[Setting, ...]:
    """The platform's, and engine.env over it. The path of this installation says nothing."""
    found = {
        s.name: Setting(name=s.name, value="retool_trainer/weights/engine_side", reason=s.reason)
        if s.name == "PYTHONPATH"
        else s
        for s in platform.environment("engine", config)
    }
    found |= {
        name: Setting(name=name, value=value, reason="engine.env of the config")
        for name, value in config.engine.env.items()
    }
    return tuple(found.values())
