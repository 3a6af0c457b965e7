"""Estimate the memory of a device, of a host and of the disk from the configuration alone.

Sums of what is known to be allocated, plus a stated reserve. An estimate, not a measurement: it is
meant to refuse what cannot fit, and to show what to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from retool_trainer.config import OptimizerConfig, PolicyConfig, RunConfig

from ._model_size import ModelSize

GIB = 2**30

# Context, communication buffers, workspace of the kernels and what the allocator cannot use.
_DEVICE_RESERVE_GIB = 4.0
# Interpreter, torch, Ray and pinned staging of a rank, or of an engine's worker; without a device
# there is nothing to stage (vLLM on CPU: 3.0 GiB in three processes).
_PROCESS_HOST_GIB = 4.0
_PROCESS_CPU_GIB = 1.5
# The policy takes the loss this many logits at a time; a test keeps it equal to policy._model's.
LOGITS_AT_ONCE = 2**28
# In float32 at the peak of the forward pass: logits, shifted, their exponentials and two products.
_LOGIT_TEMPORARIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """One line of an estimate."""

    name: str
    gib: float
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Lines that add up, against a limit where one is known."""

    where: str
    items: tuple[MemoryItem, ...]
    limit_gib: float | None

    @property
    def total_gib(self) -> float:
        """The sum of the lines."""
        return sum(item.gib for item in self.items)

    @property
    def fits(self) -> bool:
        """False only where a limit is known and passed."""
        return self.limit_gib is None or self.total_gib <= self.limit_gib


def rank_parameters(size: ModelSize, policy: PolicyConfig) -> int:
    """Parameters of the fullest rank: its layers, and the embedding on the first or last stage."""
    layers = -(-size.num_layers // policy.pipeline_parallel) * size.num_layer_parameters
    embedding = size.num_embedding_parameters
    if policy.pipeline_parallel > 1 and not size.tied_embeddings:
        embedding //= 2  # first and last stage have one matrix each
    return (layers + embedding) // policy.tensor_parallel


def policy_items(
    size: ModelSize, policy: PolicyConfig, optimizer: OptimizerConfig
) -> tuple[MemoryItem, ...]:
    """What one policy rank allocates on its device.

    Activations follow from the tensors a layer keeps for its backward pass with fused attention
    (compare Korthikanti et al. 2022, arXiv 2205.05198, section 4, without the score matrix).
    """
    parameters = rank_parameters(size, policy)
    width = 4 if policy.dtype == "float32" else 2
    tp = policy.tensor_parallel
    tokens = policy.tokens_per_microbatch
    layers = -(-size.num_layers // policy.pipeline_parallel)

    per_token_whole = 4 * size.hidden  # inputs of two norms and of two residual additions
    per_token_split = 2 * (size.num_heads + size.num_kv_heads) * size.head_dim + 3 * size.mlp
    layer_bytes = width * tokens * (per_token_whole + per_token_split / tp)
    if policy.recompute:
        activations = width * tokens * size.hidden * layers + layer_bytes
        how = f"{tokens} tokens x {size.hidden} x {layers} layer inputs + one layer recomputed"
    else:
        activations = layer_bytes * layers
        how = f"{tokens} tokens x {layers} layers"
    predictions = min(tokens, LOGITS_AT_ONCE * tp // size.vocabulary)
    logits = predictions * size.vocabulary / tp * (width + 4 * _LOGIT_TEMPORARIES)
    items = [
        _item("weights", width * parameters, f"{parameters / 1e6:.1f} M x {width} bytes"),
        _item("gradients", 4 * parameters, "fp32 accumulation"),
        _item("activations", activations, how),
        _item("logits", logits, f"{predictions} predictions at once x {size.vocabulary} / TP{tp}"),
        MemoryItem(name="reserve", gib=_DEVICE_RESERVE_GIB, formula="context, buffers, gaps"),
    ]
    state, formula = optimizer_bytes(size, policy)
    if not optimizer.cpu_offload:
        items.insert(2, _item("optimizer", state, formula))
    return tuple(items)


def optimizer_bytes(size: ModelSize, policy: PolicyConfig) -> tuple[float, str]:
    """Bytes of one rank's optimizer state: Adam's moments, and the fp32 master of bf16 weights."""
    per_parameter = 8 if policy.dtype == "float32" else 12
    share = policy.data_parallel if policy.distributed_optimizer else 1
    formula = f"{per_parameter} bytes a parameter / {share}"
    return per_parameter * rank_parameters(size, policy) / share, formula


def engine_items(size: ModelSize, config: RunConfig) -> tuple[tuple[MemoryItem, ...], int]:
    """What one engine process takes of its device, and the tokens its KV cache then holds.

    vLLM fills `memory_fraction` of the device: what weights and one forward pass leave is KV cache.
    """
    engine, device_gib = config.engine, config.hardware.device_memory_gib
    width = 4 if engine.dtype == "float32" else 2
    weights = width * size.num_parameters / engine.tensor_parallel
    overhead_gib = 2.0  # activations of a batch, captured graphs
    # A rank holds at least one KV head, also where there are more ranks than heads.
    heads = max(1, -(-size.num_kv_heads // engine.tensor_parallel))
    token_bytes = size.kv_bytes_per_token / 2 * width * heads / size.num_kv_heads
    if device_gib is None:
        pool_gib = token_bytes * engine.max_model_len * engine.max_concurrency / GIB
    else:
        pool_gib = max(0.0, engine.memory_fraction * device_gib - weights / GIB - overhead_gib)
    tokens = int(pool_gib * GIB / token_bytes)
    items = (
        _item("engine weights", weights, f"{engine.dtype} / TP{engine.tensor_parallel}"),
        MemoryItem(name="engine batch", gib=overhead_gib, formula="activations, graphs"),
        MemoryItem(
            name="KV cache",
            gib=pool_gib,
            formula=f"{tokens} tokens x {token_bytes / 1024:.0f} KiB = "
            f"{tokens / engine.max_model_len:.0f} sequences of {engine.max_model_len}",
        ),
    )
    return items, tokens


def host_estimate(size: ModelSize, config: RunConfig, ranks_per_node: int) -> MemoryEstimate:
    """Host memory of the fullest node, which also runs the driver."""
    policy, engine = config.policy, config.engine
    # vLLM has a worker for each device and a core besides.
    servers = engine.replicas * (engine.tensor_parallel + 1) if engine.kind == "vllm" else 0
    each_gib = _PROCESS_CPU_GIB if config.platform == "cpu" else _PROCESS_HOST_GIB
    items = [
        MemoryItem(
            name="processes",
            gib=each_gib * (ranks_per_node + servers + 1),
            formula=f"ranks: {ranks_per_node}, of engines: {servers}, driver: 1",
        )
    ]
    offloads = any(
        stage is not None and stage.optimizer.cpu_offload for stage in (config.sft, config.rl)
    )
    if offloads:
        state, formula = optimizer_bytes(size, policy)
        items.append(_item("optimizer", state * ranks_per_node, f"offloaded: {formula}, all ranks"))
    if engine.sync == "disk" and engine.sync_dir is None and "rl" in config.stages:
        width = 4 if policy.dtype == "float32" else 2
        items.append(
            _item(
                "weight sync",
                2 * width * size.num_parameters,
                f"two versions in /dev/shm, {policy.dtype}",
            )
        )
    programs = config.sandbox.concurrency * config.sandbox.memory_mib / 1024
    items.append(
        MemoryItem(
            name="sandbox",
            gib=programs,
            formula=f"{config.sandbox.concurrency} programs x {config.sandbox.memory_mib} MiB, "
            "if all take their limit",
        )
    )
    return MemoryEstimate(
        where="host of node 0", items=tuple(items), limit_gib=config.hardware.host_memory_gib
    )


def disk_estimate(size: ModelSize, config: RunConfig) -> MemoryEstimate:
    """Disk below the run folder, the fetched model included."""
    keep = config.checkpoints.keep
    width = 4 if config.policy.dtype == "float32" else 2
    # Weights and Adam's two moments, with bf16 weights also their fp32 master.
    state = 12 if config.policy.dtype == "float32" else 14
    items = [_item("model", width * size.num_parameters, "the fetched or first weights")]
    for stage in config.stages:
        # One more than is kept: a new checkpoint is complete before an old one goes.
        items.append(
            _item(
                f"{stage} checkpoints",
                (keep + 1) * state * size.num_parameters,
                f"{keep} kept + 1 being written, {state} bytes a parameter",
            )
        )
        items.append(_item(f"{stage} export", width * size.num_parameters, "a Hugging Face folder"))
    if config.rl is not None and "rl" in config.stages:
        samples = config.rl.steps * config.rl.prompts_per_step * config.rl.samples_per_prompt
        # ids, mask, two logprobs and text of a token, as Parquet compresses them.
        trajectories = samples * config.limits.response_tokens * 0.5 * 10
        items.append(_item("trajectories", trajectories, f"{samples} samples, 10 bytes a token"))
    return MemoryEstimate(where="disk", items=tuple(items), limit_gib=config.hardware.disk_gib)


def _item(name: str, size_bytes: float, formula: str) -> MemoryItem:
    return MemoryItem(name=name, gib=size_bytes / GIB, formula=formula)
