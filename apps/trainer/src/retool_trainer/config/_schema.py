"""Every key of a run's configuration, its meaning, its unit and its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PositiveInt = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Url = Annotated[str, Field(pattern=r"^https?://[^/\s]")]
# It becomes a part of metric keys and of folder names.
Name = Annotated[str, Field(pattern=r"^[^/\s]+$")]


class Section(BaseModel):
    """A part of the configuration: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelShape(Section):
    """A dense decoder made from random weights, for runs that start from nothing."""

    architecture: Literal["qwen3", "qwen2", "llama"] = "qwen3"
    hidden_size: PositiveInt = 128
    num_layers: PositiveInt = 4
    num_heads: PositiveInt = 4
    num_kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 32
    mlp_size: PositiveInt = 384
    rope_theta: Positive = 10_000.0
    tied_embeddings: bool = True
    max_positions: PositiveInt = 512


class ModelConfig(Section):
    """Where the first weights come from: a Hugging Face folder, or a shape filled at random."""

    path: str | None = None
    shape: ModelShape | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if (self.path is None) == (self.shape is None):
            raise ValueError(
                "give exactly one of model.path (a Hugging Face folder) and model.shape"
            )
        return self


class ArithmeticConfig(Section):
    """The quickstart's problems and demonstrations, generated in the prepare stage."""

    num_train_problems: PositiveInt = 4096
    num_heldout_problems: PositiveInt = 256
    heldout_seed: int = 20_261_201
    """A seed of its own: no tuning has seen the problems that it draws."""
    num_copy_rows: PositiveInt = 2048
    num_clean_rows: PositiveInt = 2048
    num_mixed_rows: PositiveInt = 2048


class DataConfig(Section):
    """Names for the data files that stages refer to."""

    arithmetic: ArithmeticConfig | None = None
    """Generates the sets copy, clean, mixed (demonstrations), train and heldout (problems)."""
    sets: dict[str, str] = Field(default_factory=dict[str, str])
    """Name -> file (JSONL or Parquet in any shape that retool-data recognises)."""


class OptimizerConfig(Section):
    """Optimizer and learning-rate schedule of one stage."""

    name: Literal["adam", "muon"] = "adam"
    """muon: Muon on hidden matrices, AdamW on embeddings, norms and the head."""
    learning_rate: Positive = 1e-6
    """Of AdamW."""
    muon_learning_rate: Positive = 0.02
    min_learning_rate_ratio: NonNegative = 1.0
    """The schedule ends at this fraction of the learning rate."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of all steps; used when warmup_steps is 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    clip_grad_norm: Positive = 1.0
    cpu_offload: bool = False
    """Keep the optimizer state in host memory (Megatron's precision-aware optimizer, which needs
    policy.distributed_optimizer); for cuda and npu, where it was not run on hardware yet."""


class PolicyConfig(Section):
    """The Megatron-core policy: its parallel layout and memory knobs."""

    data_parallel: PositiveInt = 1
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of forward and backward; master weights and optimizer state are always fp32."""
    tokens_per_microbatch: PositiveInt = 16_384
    """Tokens of one forward pass on one rank; a longer row is dropped and counted."""
    recompute: bool = False
    """Full activation recomputation, uniform, one layer at a time."""
    distributed_optimizer: bool = False
    num_threads: PositiveInt | None = None
    """Torch threads of one rank on CPU; the default shares the cores among the ranks."""

    @property
    def world_size(self) -> int:
        """Number of policy ranks."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel


class EngineConfig(Section):
    """What generates: the embedded torch engine, or vLLM servers."""

    kind: Literal["embedded", "vllm"] = "embedded"
    replicas: PositiveInt = 1
    tensor_parallel: PositiveInt = 1
    max_concurrency: PositiveInt = 128
    """Sequences decoded at once (embedded: rows of the KV cache)."""
    max_model_len: PositiveInt = 512
    dtype: Literal["float32", "bfloat16"] = "float32"
    python: str | None = None
    """vllm: the interpreter that has vLLM (scripts/make_vllm_cpu.sh makes one); null: this one."""
    args: list[str] = Field(default_factory=list[str])
    """vllm: further arguments of the server, as on its command line."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    start_timeout_s: Positive = 600.0
    sync: Literal["disk", "broadcast"] = "disk"
    sync_dir: str | None = None
    """disk: a folder that all nodes share; null is the memory file system of this host."""
    colocated: bool = False
    """Policy and engine share devices; the engine sleeps while the policy trains."""
    probe_tolerance: Positive = 1e-4
    """Largest |logprob of engine - logprob of policy| on the probe after a sync."""


class SandboxConfig(Section):
    """The Python tool."""

    tier: Literal["stdlib", "math", "science"] = "stdlib"
    isolation: Literal["require", "best_effort", "none"] = "require"
    concurrency: PositiveInt = 8
    stateful: bool = False
    """Variables persist over the calls of a trajectory."""
    wall_time_s: Positive = 10.0
    memory_mib: PositiveInt = 512
    urls: list[Url] = Field(default_factory=list[Url])
    """Addresses of running `retool-sandbox serve` services; empty runs programs on this machine."""


class LimitsConfig(Section):
    """Bounds of one trajectory."""

    max_turns: PositiveInt = 16
    max_calls: PositiveInt = 16
    tokens_per_turn: PositiveInt = 2048
    response_tokens: PositiveInt = 8192
    context_tokens: PositiveInt = 16_384
    observation_chars: PositiveInt = 4096
    wall_time_s: Positive = 600.0


class SftPhase(Section):
    """A stretch of supervised training on one data set."""

    data: str
    """A name from data.sets, or one that prepare generates."""
    steps: PositiveInt | None = None
    epochs: Positive | None = None

    @model_validator(mode="after")
    def _one_length(self) -> SftPhase:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        return self


class SftConfig(Section):
    """Supervised fine-tuning on trajectories."""

    phases: list[SftPhase] = Field(min_length=1)
    batch_size: PositiveInt = 32
    max_tokens: PositiveInt = 9216
    """Rows longer than this are dropped and counted, never cut."""
    heldout_fraction: Annotated[float, Field(ge=0, lt=0.5)] = 0.02
    checkpoint_every: PositiveInt = 60
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)


class KlConfig(Section):
    """Distance to the reference model; at coefficient 0 the reference is not even loaded."""

    coefficient: NonNegative = 0.0
    estimator: Literal["k1", "k2", "low_var"] = "low_var"
    where: Literal["loss", "reward"] = "loss"


class CorrectionConfig(Section):
    """Correction for the gap between the engine that sampled and the policy that trains."""

    kind: Literal["none", "tis", "mis"] = "none"
    """tis: the token ratio, truncated at `cap`. mis: tokens outside [1/cap, cap] are masked."""
    cap: Annotated[float, Field(gt=1)] = 2.0


class OverlongConfig(Section):
    """DAPO's soft length penalty; 0 tokens turns it off."""

    buffer_tokens: Annotated[int, Field(ge=0)] = 0
    penalty: NonNegative = 1.0


class RewardConfig(Section):
    """How a graded trajectory becomes a number (retool-reward's presets)."""

    preset: Literal["retool", "slime", "verl", "outcome", "success_gated"] = "retool"
    truncated: Literal["grade", "zero", "mask"] = "grade"
    overlong: OverlongConfig = OverlongConfig()
    grader_workers: PositiveInt = 1
    shuffle: bool = False
    """Control run: rewards are permuted within a step, so that they carry no information."""


class ScheduleConfig(Section):
    """Who waits for whom: drawing and training in turn, overlapped by a step, or free-running."""

    kind: Literal["synchronous", "one_step_off", "async"] = "synchronous"
    max_staleness: PositiveInt = 2
    """async: how many batches are drawn ahead, and so how many updates the oldest token that is
    trained on may be behind."""
    partial_rollouts: bool = False
    """async: a weight update interrupts trajectories, which continue from their tokens."""

    @model_validator(mode="after")
    def _partial_rollouts_are_asynchronous(self) -> ScheduleConfig:
        if self.partial_rollouts and self.kind != "async":
            raise ValueError(
                f"rl.schedule.partial_rollouts needs rl.schedule.kind=async, not {self.kind!r}: "
                "the other kinds never update weights while trajectories are under way"
            )
        return self


class RlConfig(Section):
    """Reinforcement learning from the tool-using policy's own trajectories."""

    problems: str
    steps: PositiveInt = 40
    prompts_per_step: PositiveInt = 16
    samples_per_prompt: Annotated[int, Field(gt=1)] = 8
    minibatches: PositiveInt = 1
    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] = "grpo"
    loss: Literal["clip", "gspo", "cispo"] = "clip"
    clip_low: Positive = 0.2
    clip_high: Positive = 0.28
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregation: Literal["token_mean", "sequence_mean", "constant_length"] = "token_mean"
    entropy_coefficient: NonNegative = 0.0
    kl: KlConfig = KlConfig()
    correction: CorrectionConfig = CorrectionConfig()
    reward: RewardConfig = RewardConfig()
    dynamic_sampling: bool = False
    """DAPO: keep drawing until prompts_per_step groups have both right and wrong answers."""
    max_extra_batches: PositiveInt = 4
    """dynamic_sampling: at most this many further batches of prompts in one step."""
    drop_flat_groups: bool = True
    """Groups without spread in reward carry no signal and are left out of the loss. Set it to false
    with `advantage: reinforce_pp`, which compares with the whole batch and learns from them."""
    schedule: ScheduleConfig = ScheduleConfig()
    evaluate_every: Annotated[int, Field(ge=0)] = 0
    checkpoint_every: PositiveInt = 10
    optimizer: OptimizerConfig = OptimizerConfig()
    rollout_only: bool = False
    """Debugging: draw, grade and store trajectories, and never update the policy."""
    replay: str | None = None
    """Debugging: the folder of a run whose stored trajectories are trained on; nothing is drawn."""
    start_from: str | None = None
    """The Hugging Face folder whose weights RL starts from; giving it skips SFT."""

    @model_validator(mode="after")
    def _dual_clip_belongs_to_clip(self) -> RlConfig:
        if self.dual_clip is not None and self.loss != "clip":
            raise ValueError(f"rl.dual_clip is a bound of rl.loss=clip, not of {self.loss!r}")
        return self


class EvaluationSet(Section):
    """One set of problems to measure on."""

    name: Name
    data: str
    samples: PositiveInt = 1
    temperature: NonNegative = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    response_tokens: PositiveInt | None = None
    during_training: bool = True
    """Measured also every rl.evaluate_every steps, not only between the stages."""


class EvaluationConfig(Section):
    """What is measured before, between and after the stages."""

    sets: list[EvaluationSet] = Field(default_factory=list[EvaluationSet])

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationConfig:
        names = [chosen.name for chosen in self.sets]
        if len(set(names)) != len(names):
            raise ValueError(f"evaluation.sets has one name twice: {', '.join(names)}")
        return self


class CheckpointConfig(Section):
    """How many checkpoints of a stage stay on disk."""

    keep: PositiveInt = 2


class RayConfig(Section):
    """The cluster: null starts a local one that ends with the run."""

    address: str | None = None
    num_cpus: PositiveInt | None = None
    min_free_memory_gib: NonNegative = 3.0
    """A run is refused, rather than killed half way, when the driver's host has less."""


class PortsConfig(Section):
    """Ports on a cluster, where firewalls and neighbours matter; `plan` refuses a clash."""

    ray: PositiveInt = 6379
    dashboard: PositiveInt = 8265
    policy: PositiveInt | None = None
    """Rendezvous of the policy's process group; null takes a free one."""
    engine: PositiveInt | None = None
    """Of the first vLLM server, the next ones follow; null takes free ones."""
    weights: PositiveInt | None = None
    """Rendezvous of weight broadcast; null takes a free one."""
    hccl_host: Annotated[str, Field(pattern=r"^\d+-\d+$")] = "60000-60050"
    """npu: a range, because the one default port is shared by all services of a host."""
    hccl_device: Annotated[str, Field(pattern=r"^\d+-\d+$")] = "61000-61050"


class HardwareConfig(Section):
    """What one node offers: `plan` counts against it, `doctor` compares it with what is there.

    The two rates are assumptions, for the wall time that `plan` estimates; replace them by what
    the first steps of a run print.
    """

    device: str = "cpu"
    """For people: "Atlas A2 (910B, 64 GiB)"."""
    device_memory_gib: Positive | None = None
    host_memory_gib: Positive | None = None
    disk_gib: Positive | None = None
    """Free space for the run folder."""
    train_tflops: Positive | None = None
    """Sustained by one device in training, so peak x utilisation."""
    decode_tokens_per_s: Positive | None = None
    """Of one engine replica at full concurrency."""


class FetchItem(Section):
    """A repository of the Hugging Face hub, and the folder that it goes to."""

    repo: str
    kind: Literal["model", "dataset"] = "model"
    revision: str = "main"
    """A commit; `fetch` prints the one it resolved, so that it can be pinned."""
    folder: str
    include: list[str] = Field(default_factory=list[str])
    """Patterns of the files wanted; empty takes all."""


class TrackingConfig(Section):
    """Where metrics go besides metrics.jsonl and the console."""

    tensorboard: bool = False
    wandb_project: str | None = None


class RunConfig(Section):
    """A whole run."""

    name: str = "run"
    seed: int = 0
    platform: Literal["cpu", "cuda", "npu"] = "cpu"
    devices_per_node: PositiveInt | None = None
    nodes: PositiveInt = 1
    stages: Annotated[list[Literal["sft", "rl"]], Field(min_length=1)] = ["sft", "rl"]
    dialect: Literal["hermes", "retool", "seed"] = "hermes"
    system_prompt: str | None = None
    offer_tools: bool = True
    """Put the tool's specification into the prompt; a tiny model learns it from SFT instead."""
    model: ModelConfig
    data: DataConfig = DataConfig()
    sft: SftConfig | None = None
    rl: RlConfig | None = None
    policy: PolicyConfig = PolicyConfig()
    engine: EngineConfig = EngineConfig()
    sandbox: SandboxConfig = SandboxConfig()
    limits: LimitsConfig = LimitsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    ray: RayConfig = RayConfig()
    ports: PortsConfig = PortsConfig()
    hardware: HardwareConfig = HardwareConfig()
    fetch: list[FetchItem] = Field(default_factory=list[FetchItem])
    """What `fetch` downloads before a run."""
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("engine", mode="before")
    @classmethod
    def _engine_by_name(cls, value: Any) -> Any:
        """`engine: vllm` is short for `engine: {kind: vllm}`."""
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _start_from_skips_sft(cls, tree: Any) -> Any:
        """`rl.start_from` alone skips SFT; no second key has to agree with it."""
        if isinstance(tree, dict) and "stages" not in tree:
            rl = tree.get("rl")
            if isinstance(rl, dict) and rl.get("start_from"):
                return {**tree, "stages": ["rl"]}
        return tree

    @model_validator(mode="after")
    def _stages_are_described(self) -> RunConfig:
        if "sft" in self.stages and self.rl is not None and self.rl.start_from:
            raise ValueError("rl.start_from skips SFT, but stages names it; remove one of the two")
        for stage in self.stages:
            if getattr(self, stage) is None:
                raise ValueError(f"stages names {stage!r}, but there is no section {stage!r}")
        if self.engine.kind == "embedded" and self.engine.sync == "broadcast":
            raise ValueError(
                "engine.sync=broadcast is for engine.kind=vllm; embedded reads a folder"
            )
        if self.engine.kind == "embedded" and self.engine.replicas > 1:
            raise ValueError(
                f"engine.replicas {self.engine.replicas} is for engine.kind=vllm; the embedded "
                "engine is one"
            )
        if self.rl is not None:
            buffer = self.rl.reward.overlong.buffer_tokens
            if buffer > self.limits.response_tokens:
                raise ValueError(
                    f"rl.reward.overlong.buffer_tokens {buffer} exceeds limits.response_tokens "
                    f"{self.limits.response_tokens}, of which it is the last part"
                )
        offloaded = any(stage and stage.optimizer.cpu_offload for stage in (self.sft, self.rl))
        if offloaded and not self.policy.distributed_optimizer:
            raise ValueError(
                "optimizer.cpu_offload works with policy.distributed_optimizer: true only; set it, "
                "also for one rank"
            )
        if self.stages == ["rl", "sft"]:
            raise ValueError("stages must be in the order sft, rl")
        if len(set(self.stages)) != len(self.stages):
            raise ValueError(f"stages names a stage twice: {self.stages}")
        return self
