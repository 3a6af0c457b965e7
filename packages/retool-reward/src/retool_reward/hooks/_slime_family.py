"""The hook that vime and slime share: their samples, arguments and groups are the same."""

import asyncio
import statistics
from collections.abc import Sequence
from typing import Any

from retool_reward._harness import as_result, recorded_turns, score
from retool_reward._own_text import spans_of_tokens
from retool_reward._shape import Sample, shape_group
from retool_reward._types import Answer


def _status(sample: Any) -> str:
    """Return completed, truncated, aborted or failed; a sample still pending is aborted."""
    status = getattr(sample.status, "value", sample.status)
    return "aborted" if status in (None, "pending") else str(status)


def _record(sample: Any) -> Any:
    """Return what the rollout recorded; retool-rollout's hook keeps it under `retool`."""
    metadata: dict[str, Any] = getattr(sample, "metadata", None) or {}
    return metadata.get("retool", metadata)


def _turns(sample: Any, preset: str) -> int:
    """Return the tool turns that the preset counts; slime's own counts every call."""
    if preset == "slime" and hasattr(sample, "tool_call_count"):
        return int(sample.tool_call_count)
    return recorded_turns(_record(sample))


def _answer(sample: Any, args: Any) -> Answer:
    """Return the policy's own text: as recorded, or by mask and decoder, or by tags."""
    own = _record(sample).get("own_text")
    if isinstance(own, str):
        return own
    mask = getattr(sample, "loss_mask", None)
    tokens = getattr(sample, "tokens", None)
    decode = getattr(args, "reward_decode", None)
    if decode is None or not mask or not tokens:
        return str(sample.response)
    return spans_of_tokens(list(tokens)[-len(mask) :], list(mask), decode)


def _grade_one(args: Any, sample: Any) -> dict[str, Any]:
    preset = getattr(args, "reward_preset", "retool")
    found, reward = score(
        _answer(sample, args),
        "" if sample.label is None else sample.label,
        tool_turns=_turns(sample, preset),
        status=_status(sample),
        preset=preset,
        truncated=getattr(args, "reward_truncated", "grade"),
    )
    result = as_result(found, reward)
    if reward.total is None:
        _drop(sample)
        result["score"] = 0.0  # a number, because the frameworks sum scores; the sample is masked
    return result


def _drop(sample: Any) -> None:
    """Keep a sample without a verdict out of the loss; vime and slime read this flag."""
    sample.remove_sample = True


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """Score a sample, or a list of them (`--group-rm`), as {"score", "acc", "pred", ...}.

    `sample.metadata` (or its part `retool`, which retool-rollout writes) holds the record: tool
    turns are `calls`, `outcomes` or `num_tool_calls_ok`; the policy's words are `own_text`.
    Optional arguments: `reward_preset`, `reward_truncated`, and `reward_decode` (ids to text: the
    loss mask then says who spoke). Without a record of the words, tags say it.
    """
    if isinstance(sample, Sequence):
        one_by_one = (asyncio.to_thread(_grade_one, args, each) for each in sample)  # pyright: ignore[reportUnknownVariableType]
        return list(await asyncio.gather(*one_by_one))
    return await asyncio.to_thread(_grade_one, args, sample)


def post_process_rewards(
    args: Any, samples: Sequence[Any], **kwargs: Any
) -> tuple[list[float], list[float]]:
    """Return raw and group-normalised rewards, in order (`--custom-reward-post-process-path`).

    Groups are the samples of one `group_index`. With preset `success_gated` the group's rewards are
    made here, because only here it is known who else was right. A dropped sample gets 0.0 and does
    not count. Advantages are centred per group, and divided by the standard deviation if
    `args.grpo_std_normalization`.
    """
    preset = getattr(args, "reward_preset", "retool")
    raw = [0.0] * len(samples)
    normalised = [0.0] * len(samples)
    groups: dict[Any, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(getattr(sample, "group_index", None), []).append(index)
    for members in groups.values():
        kept = [index for index in members if not getattr(samples[index], "remove_sample", False)]
        if not kept:
            continue
        if preset == "success_gated":
            rewards = _regroup(args, [samples[index] for index in kept])
        else:
            rewards = [_score_of(samples[index], args) for index in kept]
        mean = statistics.fmean(rewards)
        by_std = len(rewards) > 1 and getattr(args, "grpo_std_normalization", True)
        spread = statistics.stdev(rewards) if by_std else 0.0
        for index, reward in zip(kept, rewards, strict=True):
            raw[index] = reward
            normalised[index] = (reward - mean) / (spread + 1e-6 if by_std else 1.0)
    return raw, normalised


def _score_of(sample: Any, args: Any) -> float:
    reward = sample.reward
    if isinstance(reward, dict):
        reward = reward[getattr(args, "reward_key", None) or "score"]  # pyright: ignore[reportUnknownVariableType]
    return float(reward)  # pyright: ignore[reportUnknownArgumentType]


def _regroup(args: Any, samples: Sequence[Any]) -> list[float]:
    group = [
        Sample(
            correct=sample.reward["acc"],
            tool_turns=recorded_turns(_record(sample)),
            status=_status(sample),
        )
        for sample in samples
    ]
    truncated = getattr(args, "reward_truncated", "grade")
    rewards = shape_group(group, "success_gated", truncated=truncated)
    return [reward.total or 0.0 for reward in rewards]
