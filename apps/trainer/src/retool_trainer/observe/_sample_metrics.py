"""Sum up the trajectories of a step as metrics."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ._records import SampleRecord

_POLICY_STATS = {
    "policy_loss": "policy/loss",
    "ratio": "policy/ratio",
    "clip_fraction": "policy/clip_fraction",
    "approx_kl": "policy/approx_kl",
    "kl": "policy/kl",
    "entropy": "policy/entropy",
    "correction_weight": "policy/correction_weight",
    "correction_bound": "policy/correction_bound",
    "engine_logprob_gap": "engine/logprob_gap_mean",
}


def policy_metrics(stats: Mapping[str, float]) -> dict[str, float]:
    """Name the means of a `TokenLoss`'s stats as metrics."""
    return {_POLICY_STATS[name]: value for name, value in stats.items()}


def sample_metrics(records: Sequence[SampleRecord], *, step: int | None = None) -> dict[str, float]:
    """Return rewards, accuracy, tool use, turns, stops and log-probability gaps of a step.

    Args:
        records: The trajectories that were drawn, trained on or not. Counts and rewards are of all;
            advantages are of those in the batch. What there was nothing to measure of (no call, no
            graded sample) is left out.
        step: The number of updates that the policy has seen, for staleness; None leaves that out.
    """
    metrics: dict[str, float] = {
        "samples/total": len(records),
        "samples/trained": sum(record.trained for record in records),
        "samples/aborted": sum(record.status == "aborted" for record in records),
        "samples/ungraded": sum(record.reward is None for record in records),
        "tokens/sampled": sum(record.num_sampled for record in records),
        "tokens/total": sum(len(record.ids) for record in records),
    }
    if not records:
        return metrics
    metrics |= _reward_metrics(records) | _group_metrics(records) | _behaviour_metrics(records)
    gaps = [
        abs(engine - policy)
        for record in records
        if record.policy_logprobs is not None
        for on, engine, policy in zip(
            record.mask, record.engine_logprobs, record.policy_logprobs, strict=True
        )
        if on
    ]
    if gaps:
        metrics["engine/logprob_gap_mean"] = statistics.fmean(gaps)
        metrics["engine/logprob_gap_max"] = max(gaps)
    ages = [
        step - version
        for record in records
        if step is not None
        for version in record.weight_versions
        if version is not None
    ]
    if ages:
        metrics["schedule/staleness_mean"] = statistics.fmean(ages)
        metrics["schedule/staleness_max"] = max(ages)
    return metrics


def _reward_metrics(records: Sequence[SampleRecord]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    rewards = [record.reward for record in records if record.reward is not None]
    if rewards:
        metrics["reward/mean"] = statistics.fmean(rewards)
        metrics["reward/std"] = statistics.pstdev(rewards)
    components: defaultdict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.reward is not None:
            for name, value in record.reward_components.items():
                components[name].append(value)
    # A component that only some samples have is 0 for the others, so the parts sum to the mean.
    for name, values in sorted(components.items()):
        metrics[f"reward/component/{name}"] = sum(values) / len(rewards)
    verdicts = [record.correct for record in records if record.correct is not None]
    if verdicts:
        metrics["accuracy"] = statistics.fmean(verdicts)
    advantages = [record.advantage for record in records if record.advantage is not None]
    if advantages:
        metrics["advantage/mean"] = statistics.fmean(advantages)
        metrics["advantage/std"] = statistics.pstdev(advantages)
    return metrics


def _group_metrics(records: Sequence[SampleRecord]) -> dict[str, float]:
    rewards: defaultdict[int, set[float]] = defaultdict(set)
    verdicts: defaultdict[int, set[bool]] = defaultdict(set)
    for record in records:
        rewards[record.group] |= set() if record.reward is None else {record.reward}
        verdicts[record.group] |= set() if record.correct is None else {record.correct}
    return {
        "groups/total": len(rewards),
        "groups/flat": sum(len(values) < 2 for values in rewards.values()),
        "groups/all_right": sum(values == {True} for values in verdicts.values()),
        "groups/all_wrong": sum(values == {False} for values in verdicts.values()),
    }


def _behaviour_metrics(records: Sequence[SampleRecord]) -> dict[str, float]:
    calls = [call for record in records for call in record.calls]
    responses = [len(record.ids) - record.prompt_length for record in records]
    metrics: dict[str, float] = {
        "turns/mean": statistics.fmean(record.num_turns for record in records),
        "turns/max": max(record.num_turns for record in records),
        "tool/use": statistics.fmean(bool(record.calls) for record in records),
        "tool/calls": len(calls) / len(records),
        "truncated": statistics.fmean(record.status == "truncated" for record in records),
        "response/tokens_mean": statistics.fmean(responses),
        "response/tokens_max": max(responses),
    }
    if calls:
        metrics["tool/ok"] = statistics.fmean(call.ok for call in calls)
        metrics["tool/wall_time_s"] = statistics.fmean(call.wall_time_s for call in calls)
        metrics |= _shares("tool/outcome", (call.outcome for call in calls))
    metrics |= _shares("stop", (record.stop_reason for record in records))
    return metrics | _shares("status", (record.status for record in records))


def _shares(prefix: str, names: Iterable[str]) -> dict[str, float]:
    counts = Counter(names)
    return {f"{prefix}/{name}": count / counts.total() for name, count in sorted(counts.items())}
