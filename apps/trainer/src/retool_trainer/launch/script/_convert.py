"""Put the flags of one or two launch scripts together as one configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._flags import FLAGS, Gone, Key
from ._parse import flags_of


class ImportArgsError(Exception):
    """A flag's value makes no sense; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The configuration as a tree for YAML, and what became of each flag."""

    tree: dict[str, Any]
    gone: Mapping[str, str]
    """Flag -> why there is nothing to set."""
    unknown: tuple[str, ...]
    """Flags that nothing is known about; look at each."""


@dataclass
class _Script:
    stage: str
    flags: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def value(self, flag: str, default: Any, convert: Any = int) -> Any:
        return self.one(flag, convert) if flag in self.flags else default

    def one(self, flag: str, convert: Any) -> Any:
        """The flag's first value; a switch has none, and its rule does not look at it."""
        values = self.flags[flag]
        try:
            return convert(values[0] if values else "")
        except ValueError as error:
            raise ImportArgsError(f"{flag} {' '.join(values)}: {error}") from error

    def count(self, flag: str, default: int) -> int:
        """A number that others are divided by."""
        number: int = self.value(flag, default)
        if number < 1:
            raise ImportArgsError(f"{flag} {number}: it has to be 1 or more")
        return number


def convert(texts: Sequence[str], *, name: str = "imported") -> Converted:
    """Convert an SFT script, an RL script, or one of each.

    Args:
        texts: The scripts' contents.
        name: For the configuration.

    Raises:
        ImportArgsError: Two scripts of one stage, a value that makes no sense, or no script at all.
    """
    scripts = [_read(text) for text in texts]
    stages = sorted((script.stage for script in scripts), key=["sft", "rl"].index)
    if len(set(stages)) != len(stages):
        raise ImportArgsError(f"two scripts for the stage {stages[0]}; give one of each")
    scripts.sort(key=lambda script: ["sft", "rl"].index(script.stage))
    tree: dict[str, Any] = {"name": name, "stages": stages}
    npu = any(re.search(r"ASCEND|HCCL|\bnpu|NPU", text) for text in texts)  # not in --input-key
    tree["platform"] = "npu" if npu else "cuda"
    # Both examples train and serve in bf16, and have no flag that says so.
    _put(tree, "policy.dtype", "bfloat16")
    if "rl" in stages:
        _put(tree, "engine.kind", "vllm")
        _put(tree, "engine.dtype", "bfloat16")
    gone: dict[str, str] = {}
    unknown: dict[str, None] = {}
    for script in scripts:
        for flag in script.flags:
            rule = FLAGS.get(flag)
            if rule is None:
                unknown[" ".join([flag, *script.flags[flag]])] = None
            elif isinstance(rule, Gone):
                gone[flag] = rule.why
            elif isinstance(rule, Key):
                if flag in {"--hf-checkpoint", "--save-interval"}:
                    continue  # below, as the other script matters
                if script.stage == "sft" and rule.key.startswith("rl."):
                    gone.setdefault(flag, "SFT has none; RL's are read from an RL script")
                    continue
                value = script.one(flag, rule.convert)
                _put(tree, rule.key.format(stage=script.stage), value)
        _optimizer(tree, script)
        _checkpoint(tree, script, with_sft="sft" in stages)
        if script.stage == "sft":
            _sft(tree, script)
        else:
            _rl(tree, script)
            _evaluation(tree, script)
    _layout(tree, {script.stage: script for script in scripts})
    rl = tree.get("rl", {})
    if rl.get("advantage") == "gspo":
        rl |= {"advantage": "grpo", "loss": "gspo"}
    if rl.get("schedule", {}).get("partial_rollouts"):
        rl["schedule"]["kind"] = "async"  # the kind that interrupts trajectories
    if "model" not in tree:
        raise ImportArgsError("no --hf-checkpoint in any argument array or call of train.py")
    return Converted(tree=tree, gone=gone, unknown=tuple(unknown))


def _read(text: str) -> _Script:
    try:
        flags = dict(flags_of(text))  # the last one wins, as in argparse
    except ValueError as error:
        raise ImportArgsError(f"not a shell script: {error}") from error
    stage = "sft" if flags.get("--loss-type") == ["sft_loss"] else "rl"
    return _Script(stage=stage, flags=flags)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value


def _checkpoint(tree: dict[str, Any], script: _Script, *, with_sft: bool) -> None:
    if script.has("--save-interval"):
        _put(tree, f"{script.stage}.checkpoint_every", script.value("--save-interval", 20))
    path = script.value("--hf-checkpoint", None, str)
    # With an SFT script before it, RL starts from what SFT makes, whatever path the script has.
    if path and not (script.stage == "rl" and with_sft):
        _put(tree, "model.path", path)


def _optimizer(tree: dict[str, Any], script: _Script) -> None:
    stage = script.stage
    rate = script.value("--lr", None, float)
    floor = script.value("--min-lr", None, float)
    if rate and floor is not None:
        _put(tree, f"{stage}.optimizer.min_learning_rate_ratio", round(floor / rate, 6))
    if script.has("--adam-beta1") or script.has("--adam-beta2"):
        first = script.value("--adam-beta1", 0.9, float)
        second = script.value("--adam-beta2", 0.999, float)
        _put(tree, f"{stage}.optimizer.betas", [first, second])


def _named_set(tree: dict[str, Any], file: str, name: str | None = None) -> str:
    """Give a data file a name in data.sets."""
    path = Path(file.partition("@")[0])  # vime: file@[0:100] takes a slice
    generic = re.fullmatch(r"(train|test|data)(-\d+-of-\d+)?", path.stem)
    parents = [p for p in path.parent.parts if p not in {"data", "/"}]
    label = name or (parents[-1] if generic and parents else path.stem)
    _put(tree, f"data.sets.{label.replace('.', '-')}", str(path))
    return label.replace(".", "-")


def _sft(tree: dict[str, Any], script: _Script) -> None:
    file = script.value("--prompt-data", "DATA", str)
    epochs = script.value("--num-epoch", 1.0, float)
    _put(tree, "sft.phases", [{"data": _named_set(tree, file), "epochs": epochs}])
    if script.has("--global-batch-size"):
        _put(tree, "sft.batch_size", script.value("--global-batch-size", 128))
    if script.has("--max-tokens-per-gpu"):
        _put(tree, "sft.max_tokens", script.value("--max-tokens-per-gpu", 9216))


def _rl(tree: dict[str, Any], script: _Script) -> None:
    _put(tree, "rl.problems", _named_set(tree, script.value("--prompt-data", "DATA", str)))
    prompts = script.value("--rollout-batch-size", 32)
    _put(tree, "rl.prompts_per_step", prompts)
    samples = prompts * script.value("--n-samples-per-prompt", 8)
    batch = script.count("--global-batch-size", samples)
    if samples % batch:
        raise ImportArgsError(f"--global-batch-size {batch} does not divide {samples} samples")
    _put(tree, "rl.minibatches", samples // batch)
    aggregation = "token_mean" if script.has("--calculate-per-token-loss") else "sequence_mean"
    _put(tree, "rl.aggregation", aggregation)
    reward = "slime" if script.has("--custom-rm-path") else "outcome"
    _put(tree, "rl.reward.preset", reward)
    if script.has("--kl-coef"):
        _put(tree, "rl.kl.coefficient", script.value("--kl-coef", 0.0, float))
        _put(tree, "rl.kl.where", "reward")
    if script.has("--vllm-enforce-eager"):
        _put(tree, "engine.args", ["--enforce-eager"])


def _evaluation(tree: dict[str, Any], script: _Script) -> None:
    pairs = script.flags.get("--eval-prompt-data", [])
    response = script.value("--eval-max-response-len", None)
    sets = [
        {
            "name": name,
            "data": _named_set(tree, file),
            "samples": script.value("--n-samples-per-eval-prompt", 1),
            "temperature": script.value("--eval-temperature", 1.0, float),
            "top_p": script.value("--eval-top-p", 1.0, float),
            **({"response_tokens": response} if response else {}),
        }
        for name, file in zip(pairs[::2], pairs[1::2], strict=False)
    ]
    if sets:
        _put(tree, "evaluation.sets", sets)
    # The examples let a context be the prompt plus the response; 1024 tokens are for the prompt.
    longest = max(script.value("--rollout-max-response-len", 8192), response or 0)
    context = tree.get("limits", {}).get("context_tokens") or longest + 1024
    _put(tree, "limits.context_tokens", context)
    engine = tree.setdefault("engine", {})
    engine.setdefault("max_model_len", context)
    # The examples have no limit per turn: the response's.
    _put(tree, "limits.tokens_per_turn", script.value("--rollout-max-response-len", 8192))


def _layout(tree: dict[str, Any], scripts: Mapping[str, _Script]) -> None:
    policy = tree["policy"]
    for script in scripts.values():
        for flag in (
            "--tensor-model-parallel-size",
            "--pipeline-model-parallel-size",
            "--rollout-num-gpus-per-engine",
        ):
            script.count(flag, 1)
    width = policy.get("tensor_parallel", 1) * policy.get("pipeline_parallel", 1)
    parallel: dict[str, int] = {}
    for stage, script in scripts.items():
        nodes = script.count("--actor-num-nodes", 1)
        actors = nodes * script.count("--actor-num-gpus-per-node", 8)
        if actors % width:
            raise ImportArgsError(
                f"the {stage} script's {actors} actor devices are no multiple of TP x PP = {width}"
            )
        parallel[stage] = actors // width
        tree["nodes"] = max(tree.get("nodes", 1), nodes)
        devices = actors
        if stage == "rl":
            colocated = script.has("--colocate")
            rollout = actors if colocated else script.value("--rollout-num-gpus", actors)
            width_of_engine = tree["engine"].get("tensor_parallel", 1)
            _put(tree, "engine.replicas", max(1, rollout // width_of_engine))
            _put(tree, "engine.colocated", colocated)
            devices = actors if colocated else actors + rollout
        tree["devices_per_node"] = max(tree.get("devices_per_node", 0), devices // nodes)
    policy["data_parallel"] = parallel.get("rl", parallel.get("sft", 1))
