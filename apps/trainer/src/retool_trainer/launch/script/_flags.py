"""What every flag of the retool launch scripts is called here, or why it is not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Convert = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The flag sets a key. `{stage}` is sft or rl, whichever the script is."""

    key: str
    convert: Convert = str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The flag takes part in a rule of `_convert`: layouts come from several flags together."""

    key: str
    convert: Convert = str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """There is nothing to set, and why."""

    why: str


def _yes(text: str) -> bool:
    del text
    return True


def _kl(text: str) -> str:
    return {"low_var_kl": "low_var", "k3": "low_var"}.get(text, text)


def _advantage(text: str) -> str:
    return text.replace("reinforce_plus_plus", "reinforce_pp")


_SHAPE = Gone(why="read from the checkpoint's config.json; a disagreement is an error")
_ALWAYS = Gone(why="always so")
_PLATFORM = Gone(why="decided by `platform`")

FLAGS: Mapping[str, Key | Layout | Gone] = {
    # checkpoints
    "--hf-checkpoint": Key(
        key="model.path", note="beside an SFT script: RL starts from what SFT makes"
    ),
    "--ref-load": Gone(why="the reference is the stage's first weights, loaded only if kl > 0"),
    "--load": Gone(why="`run` on a run folder continues it"),
    "--save": Gone(why="--run-dir of `run`; never the model's folder"),
    "--save-interval": Key(key="{stage}.checkpoint_every", convert=int),
    "--rotary-base": _SHAPE,
    "--megatron-to-hf-mode": Gone(why="weights stream between both formats; nothing to choose"),
    # data and rollout
    "--prompt-data": Layout(key="data.sets", note="sft.phases[0].data, or rl.problems"),
    "--input-key": Gone(why="retool-data recognises the record's shape"),
    "--label-key": Gone(why="retool-data recognises the record's shape"),
    "--tool-key": Gone(why="the tool's specification comes from the sandbox's registry"),
    "--metadata-key": Gone(why="retool-data recognises the record's shape"),
    "--apply-chat-template": Gone(why="`dialect` renders, for SFT, RL and evaluation alike"),
    "--rollout-shuffle": Gone(why="always shuffled, from `seed`; resume keeps the position"),
    "--reward-key": Gone(why="the reward's total; its parts are metrics"),
    "--rm-type": Layout(key="rl.reward.preset"),
    "--num-rollout": Key(key="rl.steps", convert=int),
    "--num-epoch": Layout(key="sft.phases[0].epochs", convert=float),
    "--rollout-batch-size": Layout(key="rl.prompts_per_step", convert=int, note="SFT: unused"),
    "--n-samples-per-prompt": Key(key="rl.samples_per_prompt", convert=int),
    "--rollout-max-response-len": Key(key="limits.response_tokens", convert=int),
    "--rollout-max-context-len": Key(key="limits.context_tokens", convert=int),
    "--rollout-max-prompt-len": Gone(why="a long prompt leaves its row too long; it is dropped"),
    "--rollout-temperature": Key(key="rl.temperature", convert=float),
    "--rollout-top-p": Key(key="rl.top_p", convert=float),
    "--rollout-top-k": Gone(why="truncated sampling biases the ratios; not offered"),
    "--rollout-stop": Gone(why="the dialect's own stop strings"),
    "--global-batch-size": Layout(
        key="sft.batch_size", convert=int, note="RL: rl.minibatches = samples / this"
    ),
    "--balance-data": _ALWAYS,
    "--over-sampling-batch-size": Key(
        key="rl.dynamic_sampling", convert=_yes, note="on; rl.max_extra_batches bounds it"
    ),
    "--dynamic-sampling-filter-path": Key(key="rl.dynamic_sampling", convert=_yes),
    "--partial-rollout": Key(
        key="rl.schedule.partial_rollouts", convert=_yes, note="with rl.schedule.kind: async"
    ),
    "--rollout-function-path": Gone(why="`stages` names what runs"),
    "--custom-generate-function-path": Gone(why="the multi-turn loop is retool-rollout's"),
    "--custom-rm-path": Layout(key="rl.reward.preset", note="`slime`, the same reward"),
    "--loss-type": Gone(why="tells SFT from RL: the sections `sft` and `rl`"),
    "--calculate-per-token-loss": Layout(key="rl.aggregation", note="token_mean; SFT always"),
    "--disable-compute-advantages-and-returns": Gone(why="SFT has none"),
    "--debug-train-only": Gone(why="SFT generates only for evaluation.sets"),
    # evaluation
    "--eval-interval": Key(key="rl.evaluate_every", convert=int),
    "--eval-prompt-data": Layout(key="evaluation.sets"),
    "--n-samples-per-eval-prompt": Layout(key="evaluation.sets[].samples", convert=int),
    "--eval-max-response-len": Layout(key="evaluation.sets[].response_tokens", convert=int),
    "--eval-top-p": Layout(key="evaluation.sets[].top_p", convert=float),
    "--eval-temperature": Layout(key="evaluation.sets[].temperature", convert=float),
    "--skip-eval-before-train": Gone(why="SFT and RL are always compared with where they began"),
    # parallel layout and memory
    "--tensor-model-parallel-size": Key(key="policy.tensor_parallel", convert=int),
    "--pipeline-model-parallel-size": Key(key="policy.pipeline_parallel", convert=int),
    "--context-parallel-size": Gone(why="rows of 16k tokens fit without; not offered"),
    "--expert-model-parallel-size": Gone(why="dense models only"),
    "--expert-tensor-parallel-size": Gone(why="dense models only"),
    "--sequence-parallel": Gone(why="full recomputation leaves it nothing to save at these sizes"),
    "--recompute-granularity": Key(key="policy.recompute", convert=_yes, note="full"),
    "--recompute-method": Gone(why="policy.recompute is uniform"),
    "--recompute-num-layers": Gone(why="policy.recompute takes one layer at a time"),
    "--use-dynamic-batch-size": _ALWAYS,
    "--micro-batch-size": Gone(why="batches go by tokens: policy.tokens_per_microbatch"),
    "--max-tokens-per-gpu": Key(
        key="policy.tokens_per_microbatch", convert=int, note="SFT: sft.max_tokens too"
    ),
    "--log-probs-chunk-size": Gone(why="chosen from the vocabulary"),
    "--use-distributed-optimizer": Key(key="policy.distributed_optimizer", convert=_yes),
    "--actor-num-nodes": Layout(key="nodes", convert=int),
    "--actor-num-gpus-per-node": Layout(
        key="policy.data_parallel", convert=int, note="of the RL script; SFT uses the same ranks"
    ),
    "--rollout-num-gpus": Layout(key="engine.replicas", convert=int),
    "--rollout-num-gpus-per-engine": Key(key="engine.tensor_parallel", convert=int),
    "--colocate": Layout(key="engine.colocated"),
    "--num-gpus-per-node": Key(key="devices_per_node", convert=int),
    # algorithm
    "--advantage-estimator": Key(key="rl.advantage", convert=_advantage, note="gspo: rl.loss"),
    "--use-kl-loss": Gone(why="rl.kl.where: loss is the default"),
    "--kl-loss-coef": Key(key="rl.kl.coefficient", convert=float),
    "--kl-coef": Layout(key="rl.kl.coefficient", convert=float, note="rl.kl.where: reward"),
    "--kl-loss-type": Key(key="rl.kl.estimator", convert=_kl),
    "--entropy-coef": Key(key="rl.entropy_coefficient", convert=float),
    "--eps-clip": Key(key="rl.clip_low", convert=float),
    "--eps-clip-high": Key(key="rl.clip_high", convert=float),
    "--eps-clip-c": Key(key="rl.dual_clip", convert=float),
    "--use-tis": Key(key="rl.correction.kind", convert=lambda _: "tis"),
    "--tis-clip": Key(key="rl.correction.cap", convert=float),
    # optimizer
    "--optimizer": Key(key="{stage}.optimizer.name"),
    "--lr": Key(key="{stage}.optimizer.learning_rate", convert=float),
    "--lr-decay-style": Key(key="{stage}.optimizer.schedule"),
    "--min-lr": Layout(key="{stage}.optimizer.min_learning_rate_ratio", convert=float),
    "--lr-warmup-fraction": Key(key="{stage}.optimizer.warmup_ratio", convert=float),
    "--lr-warmup-iters": Key(key="{stage}.optimizer.warmup_steps", convert=int),
    "--weight-decay": Key(key="{stage}.optimizer.weight_decay", convert=float),
    "--adam-beta1": Layout(key="{stage}.optimizer.betas", convert=float),
    "--adam-beta2": Layout(key="{stage}.optimizer.betas", convert=float),
    "--adam-eps": Key(key="{stage}.optimizer.epsilon", convert=float),
    "--clip-grad": Key(key="{stage}.optimizer.clip_grad_norm", convert=float),
    "--optimizer-cpu-offload": Key(key="{stage}.optimizer.cpu_offload", convert=_yes),
    "--overlap-cpu-optimizer-d2h-h2d": Gone(why="part of optimizer.cpu_offload"),
    "--use-precision-aware-optimizer": Gone(why="part of optimizer.cpu_offload"),
    # engine
    "--sglang-mem-fraction-static": Key(key="engine.memory_fraction", convert=float),
    "--vllm-gpu-memory-utilization": Key(key="engine.memory_fraction", convert=float),
    "--vllm-max-model-len": Key(key="engine.max_model_len", convert=int),
    "--vllm-max-num-seqs": Key(key="engine.max_concurrency", convert=int),
    "--vllm-enforce-eager": Layout(key="engine.args", note="as it is"),
    # numerics that are fixed here
    "--attention-dropout": _ALWAYS,
    "--hidden-dropout": _ALWAYS,
    "--accumulate-allreduce-grads-in-fp32": _ALWAYS,
    "--attention-softmax-in-fp32": _ALWAYS,
    "--attention-backend": _PLATFORM,
    "--bf16": Key(key="policy.dtype", convert=lambda _: "bfloat16"),
    "--use-flash-attn": _PLATFORM,
    "--no-gradient-accumulation-fusion": _PLATFORM,
    "--no-rope-fusion": _PLATFORM,
    "--no-bias-swiglu-fusion": _PLATFORM,
    "--no-masked-softmax-fusion": _PLATFORM,
    "--transformer-impl": _PLATFORM,
    # the model's shape, from scripts/models/qwen3-4B.sh
    **dict.fromkeys(
        (
            "--swiglu",
            "--num-layers",
            "--hidden-size",
            "--ffn-hidden-size",
            "--num-attention-heads",
            "--group-query-attention",
            "--num-query-groups",
            "--kv-channels",
            "--qk-layernorm",
            "--normalization",
            "--norm-epsilon",
            "--use-rotary-position-embeddings",
            "--disable-bias-linear",
            "--add-qkv-bias",
            "--vocab-size",
            "--untie-embeddings-and-output-weights",
            "--make-vocab-size-divisible-by",
        ),
        _SHAPE,
    ),
    # tracking
    "--use-wandb": Gone(why="naming a project is enough"),
    "--wandb-project": Key(key="tracking.wandb_project"),
    "--wandb-group": Gone(why="`name`"),
    "--wandb-key": Gone(why="WANDB_API_KEY in the environment; a config is no place for secrets"),
    "--use-tensorboard": Key(key="tracking.tensorboard", convert=_yes),
}

FILES: Mapping[str, str] = {
    "retool_qwen3_4b_sft.sh": "configs/qwen3-4b-*.yaml, section `sft`",
    "retool_qwen3_4b_rl.sh": "configs/qwen3-4b-*.yaml, section `rl`",
    "generate_with_retool.py": "retool-rollout's loop and dialects; retool-reward's preset `slime`",
    "tool_sandbox.py": "retool-sandbox; its limits are the section `sandbox`",
    "sft_data_processing.py": "gone: retool-data reads JoeYing/ReTool-SFT as it is",
    "convert_hf_to_torch_dist.py": "gone: weights stream from safetensors; rope theta is read",
    "convert_torch_dist_to_hf.py": "gone: each stage ends with a Hugging Face folder",
    "scripts/models/qwen3-4B.sh": "gone: the shape is read from config.json",
    "pkill -9 python, ray stop": "gone: a run ends what it started, and nothing else",
}
"""Files and habits of the example -> what takes their place."""
