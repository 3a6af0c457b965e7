"""The table of every metric: its key, its unit and its meaning.

`metrics.jsonl` has one JSON object per step: `stage` ("sft", "rl" or "evaluate"), `step` (from 1;
an evaluation before any step has 0), for an evaluation `of` ("baseline", "sft" or "rl": the stage
whose weights it measures), and the metrics below. A key that is not in the table is refused, so
that keys stay stable; `<name>` stands for one part of a key. null is a value that is not finite.
"""

from __future__ import annotations

import re
from functools import cache

METRIC_KEYS: dict[str, tuple[str, str]] = {
    # key: (unit, meaning)
    "loss": ("nats", "what the update minimised, mean over minibatches"),
    "loss/heldout": ("nats", "SFT: loss on rows kept out of training"),
    "grad_norm": ("", "norm of the gradient before clipping, mean over minibatches"),
    "learning_rate": ("", "of the last update of the step"),
    "epoch": ("epochs", "passes over the data so far"),
    "updates": ("", "optimizer updates in the step"),
    "tokens/sampled": ("tokens", "sampled by the policy in the step"),
    "tokens/trained": ("tokens", "with a weight in the loss"),
    "tokens/total": ("tokens", "in the batch: prompt, sampled and tool output, without padding"),
    "rows/trained": ("rows", "in the batch"),
    "rows/dropped_long": ("rows", "longer than a microbatch, left out by rule"),
    "throughput/tokens_per_s": ("tokens/s", "RL: sampled, SFT: trained; over the whole step"),
    "throughput/rollout_tokens_per_s": ("tokens/s", "sampled, while the rollout ran"),
    "throughput/train_tokens_per_s": ("tokens/s", "in the batch, while the policy trained"),
    "throughput/samples_per_s": ("samples/s", "over the whole step"),
    "time/step_s": ("s", "the whole step"),
    "time/<phase>_s": ("s", "one phase: rollout (with grading), logprobs, train, sync"),
    "reward/mean": ("", "of the graded samples, shaped"),
    "reward/std": ("", "the same samples' standard deviation"),
    "reward/component/<name>": ("", "mean of one part of the reward"),
    "accuracy": ("share", "of graded samples with a right answer; no shaping"),
    "samples/total": ("samples", "trajectories that were drawn"),
    "samples/trained": ("samples", "of them in the batch"),
    "samples/aborted": ("samples", "our side failed: not scored, not trained on"),
    "samples/ungraded": ("samples", "without a reward: aborted, masked, or gold not understood"),
    "groups/total": ("groups", "problems whose trajectories were drawn"),
    "groups/flat": ("groups", "without spread in reward"),
    "groups/all_right": ("groups", "every graded answer right"),
    "groups/all_wrong": ("groups", "every graded answer wrong"),
    "groups/dropped": ("groups", "left out of the batch by a filter"),
    "groups/extra_batches": ("batches", "drawn on top by dynamic sampling"),
    "turns/mean": ("turns", "per trajectory"),
    "turns/max": ("turns", "the longest trajectory"),
    "tool/use": ("share", "of trajectories with at least one call"),
    "tool/calls": ("calls", "per trajectory"),
    "tool/ok": ("share", "of calls that executed successfully"),
    "tool/outcome/<outcome>": ("share", "of calls that ended so"),
    "tool/wall_time_s": ("s", "mean of a call"),
    "stop/<reason>": ("share", "of trajectories that ended for this reason"),
    "status/<status>": ("share", "of trajectories with this status"),
    "truncated": ("share", "of trajectories cut by a limit"),
    "response/tokens_mean": ("tokens", "after the prompt, tool output included"),
    "response/tokens_max": ("tokens", "the longest response"),
    "advantage/mean": ("", "over the batch's samples"),
    "advantage/std": ("", "over the batch's samples"),
    "policy/loss": ("", "the policy term of the loss alone"),
    "policy/entropy": ("nats", "of the policy's next-token distribution at sampled tokens"),
    "policy/ratio": ("", "policy / old policy; of the sequence under GSPO"),
    "policy/clip_fraction": ("share", "of sampled tokens at the bound of the ratio"),
    "policy/approx_kl": ("nats", "per token, old policy to policy (low_var)"),
    "policy/kl": ("nats", "per token, policy to reference"),
    "policy/correction_weight": ("", "rollout correction's mean weight"),
    "policy/correction_bound": ("share", "of tokens truncated (tis) or masked (mis)"),
    "engine/logprob_gap_mean": ("nats", "|engine - policy| at sampled tokens, before the update"),
    "engine/logprob_gap_max": ("nats", "the largest one"),
    "engine/probe_gap": ("nats", "largest |engine - policy| on the probe after the sync"),
    "engine/weight_version": ("", "updates that the engine's weights have seen"),
    "engine/restarts": ("", "vLLM servers restarted since the workers started"),
    "schedule/queue": ("batches", "finished and waiting for the trainer at the step's start"),
    "schedule/staleness_mean": ("updates", "age of the sampled tokens' weights"),
    "schedule/staleness_max": ("updates", "of the oldest token"),
    "schedule/stall_s": ("s", "the trainer waited for trajectories"),
    "memory/<process>_mib": ("MiB", "resident: driver"),
    "eval/<set>/accuracy": ("share", "avg@n: mean over problems of the share of right answers"),
    "eval/<set>/accuracy_low": ("share", "lower end of its 95 % interval (clustered Wilson)"),
    "eval/<set>/accuracy_high": ("share", "upper end"),
    "eval/<set>/pass_at_<k>": ("share", "unbiased pass@k"),
    "eval/<set>/pass_at_<k>_low": ("share", "lower end of its 95 % interval"),
    "eval/<set>/pass_at_<k>_high": ("share", "upper end"),
    "eval/<set>/samples": ("samples", "graded"),
    "eval/<set>/problems": ("problems", "with a graded sample"),
    "eval/<set>/ungraded": ("samples", "aborted, or gold not understood"),
    "eval/<set>/reward": ("", "mean shaped reward"),
    "eval/<set>/tool_use": ("share", "of trajectories with at least one call"),
    "eval/<set>/tool_errors": ("share", "of calls that did not execute successfully"),
    "eval/<set>/turns": ("turns", "per trajectory"),
    "eval/<set>/truncated": ("share", "of trajectories"),
    "eval/<set>/response_tokens": ("tokens", "mean after the prompt"),
}


_PART = r"[^/\s]+"


def metrics_table() -> str:
    """Return the table as Markdown."""
    rows = [f"| `{key}` | {unit} | {meaning} |" for key, (unit, meaning) in METRIC_KEYS.items()]
    return "\n".join(["| key | unit | meaning |", "| --- | --- | --- |", *rows]) + "\n"


@cache
def metric_pattern(key: str) -> str | None:
    """Return the table's key that `key` is an instance of, or None."""
    if key in METRIC_KEYS:
        return key
    for pattern in METRIC_KEYS:
        regex = "".join(
            _PART if part.startswith("<") else re.escape(part)
            for part in re.split(r"(<\w+>)", pattern)
        )
        if "<" in pattern and re.fullmatch(regex, key):
            return pattern
    return None
