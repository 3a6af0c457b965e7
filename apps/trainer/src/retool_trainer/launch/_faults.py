"""Why a configuration cannot run, each in one sentence that ends with what to change."""

from __future__ import annotations

from collections.abc import Sequence

from retool_trainer.config import RunConfig
from retool_trainer.platform import Platform

from ._memory import MemoryEstimate
from ._model_size import ModelSize


def layout_faults(
    config: RunConfig, size: ModelSize | None, *, nodes: int, devices_per_node: int
) -> list[str]:
    """Parallel layouts that do not divide the model, the devices or the batch."""
    found: list[str] = []
    engine = config.engine
    serves = engine.kind == "vllm"
    if size is not None:
        found += _divisions(config.policy.tensor_parallel, "policy.tensor_parallel", size)
        if size.num_layers % config.policy.pipeline_parallel:
            found.append(
                f"policy.pipeline_parallel {config.policy.pipeline_parallel} does not divide the "
                f"model's {size.num_layers} layers; choose a divisor"
            )
        if serves:
            # vLLM gives ranks beyond the key/value heads copies of them, in equal numbers.
            copies = engine.tensor_parallel % size.num_kv_heads == 0
            found += _divisions(
                engine.tensor_parallel, "engine.tensor_parallel", size, copies_kv_heads=copies
            )
    # Cores are no devices that a rank owns: Ray shares them out by itself.
    if config.platform != "cpu":
        total = nodes * devices_per_node
        policy = config.policy.world_size
        engines = engine.replicas * engine.tensor_parallel if serves else 0
        needed = max(policy, engines) if engine.colocated else policy + engines
        if needed > total:
            found.append(
                f"the run needs {needed} devices (policy {policy}, engines "
                f"{engines}{', shared' if engine.colocated else ''}), but {nodes} node(s) x "
                f"{devices_per_node} are {total}; lower policy.data_parallel or engine.replicas, "
                "or add devices"
            )
        widths = [("policy.tensor_parallel", config.policy.tensor_parallel)]
        if serves:
            widths.append(("engine.tensor_parallel", engine.tensor_parallel))
        for key, width in widths if nodes > 1 else []:
            if devices_per_node % width:
                found.append(
                    f"{key} {width} does not divide the {devices_per_node} devices of a node, so a "
                    "tensor-parallel group would cross nodes; choose a divisor"
                )
    if config.rl is not None and "rl" in config.stages:
        samples = config.rl.prompts_per_step * config.rl.samples_per_prompt
        if samples < config.rl.minibatches:
            found.append(
                f"{samples} samples a step are too few for {config.rl.minibatches} minibatches; "
                "raise rl.prompts_per_step or lower rl.minibatches"
            )
        if not serves and config.platform != "cpu":
            found.append(
                "engine.kind embedded generates on the CPU, whatever the platform; set "
                "engine.kind: vllm"
            )
        if serves and config.limits.context_tokens > engine.max_model_len:
            found.append(
                f"limits.context_tokens {config.limits.context_tokens} exceeds "
                f"engine.max_model_len {engine.max_model_len}: the engine would refuse; make them "
                "equal"
            )
    if (
        serves
        and engine.colocated
        and config.rl is not None
        and (config.rl.schedule.kind != "synchronous")
    ):
        found.append(
            f"rl.schedule {config.rl.schedule.kind} with engine.colocated: the engine sleeps while "
            "the policy trains, so nothing can overlap; set synchronous, or place them apart"
        )
    if nodes > 1 and serves and engine.sync == "disk" and engine.sync_dir is None:
        found.append(
            "engine.sync: disk with several nodes needs engine.sync_dir, a folder that all of them "
            "see; set it, or engine.sync: broadcast"
        )
    return found


def _divisions(
    width: int, key: str, size: ModelSize, *, copies_kv_heads: bool = False
) -> list[str]:
    found: list[str] = []
    for count, what in (
        (size.num_heads, "attention heads"),
        (width if copies_kv_heads else size.num_kv_heads, "key/value heads"),
        (size.mlp, "MLP columns"),
    ):
        if count % width:
            found.append(
                f"{key} {width} does not divide the model's {count} {what}; choose a divisor"
            )
    return found


def port_faults(config: RunConfig) -> list[str]:
    """Two services of ours on one port of a host."""
    ports = config.ports
    ranges: list[tuple[str, range]] = [
        ("ports.ray", range(ports.ray, ports.ray + 1)),
        ("ports.dashboard", range(ports.dashboard, ports.dashboard + 1)),
    ]
    if ports.policy is not None:
        ranges.append(("ports.policy", range(ports.policy, ports.policy + 1)))
    if ports.engine is not None:
        ranges.append(("ports.engine", range(ports.engine, ports.engine + config.engine.replicas)))
    if ports.weights is not None:
        ranges.append(("ports.weights", range(ports.weights, ports.weights + 1)))
    if config.platform == "npu":
        for key, text in (("hccl_host", ports.hccl_host), ("hccl_device", ports.hccl_device)):
            first, last = (int(part) for part in text.split("-"))
            ranges.append((f"ports.{key}", range(first, last + 1)))
            if 16666 in ranges[-1][1]:
                found = (
                    f"ports.{key} {text} contains 16666, HCCL's own default, which other jobs of "
                    "the host use; choose another range"
                )
                return [found]
    found_all: list[str] = []
    for i, (name, span) in enumerate(ranges):
        if not span or span[-1] > 65_535:
            found_all.append(f"{name} {span.start}-{span.stop - 1} is no range of ports")
        for other_name, other in ranges[i + 1 :]:
            common = range(max(span.start, other.start), min(span.stop, other.stop))
            if common:
                found_all.append(
                    f"{name} and {other_name} both use port {common.start}; move one of them"
                )
    return found_all


def memory_faults(
    config: RunConfig, estimates: Sequence[MemoryEstimate], kv_cache_tokens: int
) -> list[str]:
    """Estimates beyond their limit, with the key that helps most."""
    found: list[str] = []
    for estimate in estimates:
        if estimate.fits:
            continue
        largest = max(estimate.items, key=lambda item: item.gib)
        found.append(
            f"{estimate.where} needs {estimate.total_gib:.1f} GiB of {estimate.limit_gib:g} GiB; "
            f"the largest part is {largest.name} with {largest.gib:.1f} GiB: "
            f"{_remedy(largest.name)}"
        )
    serves = config.engine.kind == "vllm"
    known = config.hardware.device_memory_gib is not None
    if serves and known and estimates and kv_cache_tokens < config.engine.max_model_len:
        found.append(
            f"the engine's KV cache holds {kv_cache_tokens} tokens, less than one sequence of "
            f"engine.max_model_len {config.engine.max_model_len}; raise engine.memory_fraction or "
            "engine.tensor_parallel"
        )
    return found


def _remedy(item: str) -> str:
    return {
        "activations": "lower policy.tokens_per_microbatch or set policy.recompute: true",
        "logits": "lower policy.tokens_per_microbatch or raise policy.tensor_parallel",
        "optimizer": "set policy.distributed_optimizer: true or optimizer.cpu_offload: true",
        "weights": "raise policy.tensor_parallel",
        "gradients": "raise policy.tensor_parallel",
        "KV cache": "lower engine.memory_fraction",
        "sandbox": "lower sandbox.concurrency or sandbox.memory_mib",
        "processes": "use fewer ranks a node",
    }.get(item, "give it more room, or keep less (checkpoints.keep)")


def notes(config: RunConfig, platform: Platform, *, unused: int) -> tuple[str, ...]:
    """What can run, but a person may not expect; `unused` devices are nobody's."""
    found: list[str] = []
    limit, sft = config.policy.tokens_per_microbatch, config.sft
    if sft is not None and "sft" in config.stages and sft.max_tokens > limit:
        found.append(
            f"rows between {limit} (policy.tokens_per_microbatch) and {sft.max_tokens} tokens "
            "(sft.max_tokens) will be dropped"
        )
    if config.rl is not None and "rl" in config.stages:
        prompt = config.policy.tokens_per_microbatch - config.limits.response_tokens
        if prompt < config.limits.context_tokens - config.limits.response_tokens:
            found.append(
                f"a full response of {config.limits.response_tokens} tokens is trained on only if "
                f"its prompt has at most {max(prompt, 0)} (policy.tokens_per_microbatch)"
            )
    if platform.name != "cpu":
        if unused > 0:
            found.append(
                f"{unused} devices are used by nothing; raise policy.data_parallel or "
                "engine.replicas"
            )
        if config.hardware.device_memory_gib is None:
            found.append("hardware.device_memory_gib is not given, so nothing says whether it fits")
        found.append(
            f"launch-plan tested, not run on {'NPUs' if platform.name == 'npu' else 'GPUs'} by us; "
            "memory and times are estimates"
        )
    return tuple(found)
