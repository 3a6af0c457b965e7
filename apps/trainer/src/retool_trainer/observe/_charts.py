"""Turn the lines of `metrics.jsonl` into the report's charts and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ._keys import METRIC_KEYS, metric_pattern

Line = Mapping[str, Any]

# More points than pixels only make the page heavy.
_MAX_POINTS = 1000


class _Chart(NamedTuple):
    section: str
    stage: str
    title: str
    keys: tuple[str, ...]
    """Keys of the table; one with <...> stands for all its instances."""
    kind: str = "line"
    """`line`, `log` (logarithmic axis) or `stack`."""


_CHARTS = (
    _Chart("RL: learning", "rl", "Reward", ("reward/mean", "reward/component/<name>")),
    _Chart("RL: learning", "rl", "Right answers of the step", ("accuracy",)),
    _Chart(
        "RL: learning",
        "rl",
        "Groups",
        ("groups/all_right", "groups/all_wrong", "groups/flat", "groups/dropped"),
    ),
    _Chart("RL: learning", "rl", "Loss", ("loss", "policy/loss")),
    _Chart("RL: behaviour", "rl", "Tool use", ("tool/use", "tool/ok", "truncated")),
    _Chart("RL: behaviour", "rl", "Turns and calls", ("turns/mean", "turns/max", "tool/calls")),
    _Chart("RL: behaviour", "rl", "How calls ended", ("tool/outcome/<outcome>",), "stack"),
    _Chart("RL: behaviour", "rl", "Why trajectories ended", ("stop/<reason>",), "stack"),
    _Chart(
        "RL: behaviour", "rl", "Response length", ("response/tokens_mean", "response/tokens_max")
    ),
    _Chart("RL: policy", "rl", "Entropy", ("policy/entropy",)),
    _Chart("RL: policy", "rl", "KL", ("policy/kl", "policy/approx_kl")),
    _Chart(
        "RL: policy",
        "rl",
        "Tokens at a bound",
        ("policy/clip_fraction", "policy/correction_bound"),
    ),
    _Chart("RL: policy", "rl", "Gradient norm", ("grad_norm",)),
    _Chart("RL: policy", "rl", "Learning rate", ("learning_rate",)),
    _Chart(
        "RL: engine and schedule",
        "rl",
        "Engine and policy: log-probability gap",
        ("engine/logprob_gap_max", "engine/logprob_gap_mean", "engine/probe_gap"),
        "log",
    ),
    _Chart(
        "RL: engine and schedule",
        "rl",
        "Staleness",
        ("schedule/staleness_mean", "schedule/staleness_max"),
    ),
    _Chart("RL: engine and schedule", "rl", "Queue", ("schedule/queue",)),
    _Chart("RL: engine and schedule", "rl", "Time of a step", ("time/<phase>_s",), "stack"),
    _Chart(
        "RL: engine and schedule",
        "rl",
        "Speed",
        (
            "throughput/tokens_per_s",
            "throughput/rollout_tokens_per_s",
            "throughput/train_tokens_per_s",
        ),
    ),
    _Chart("RL: engine and schedule", "rl", "Memory", ("memory/<process>_mib",)),
    _Chart("SFT", "sft", "Loss", ("loss", "loss/heldout")),
    _Chart("SFT", "sft", "Gradient norm", ("grad_norm",)),
    _Chart("SFT", "sft", "Learning rate", ("learning_rate",)),
    _Chart("SFT", "sft", "Speed", ("throughput/tokens_per_s",)),
)


def metric_charts(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the charts that these lines have data for, in reading order."""
    charts: list[dict[str, Any]] = []
    for chart in _CHARTS:
        own = _thinned([line for line in lines if line["stage"] == chart.stage])
        found = dict.fromkeys(key for line in own for key in line)
        keys = [
            key
            for wanted in chart.keys
            for key in sorted(found)
            if metric_pattern(key) == wanted and any(line.get(key) is not None for line in own)
        ]
        if keys:
            charts.append(
                {
                    "section": chart.section,
                    "title": chart.title,
                    "unit": METRIC_KEYS[str(metric_pattern(keys[0]))][0],
                    "kind": chart.kind,
                    "steps": [line["step"] for line in own],
                    "series": [
                        {"name": key, "values": [line.get(key) for line in own]} for key in keys
                    ],
                }
            )
    return charts


def evaluation_charts(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return one chart per evaluation set: accuracy over RL steps with its interval.

    Step 0 is what RL started from: the evaluation after SFT, or else the first weights'. RL's last
    evaluation, logged without a step, belongs to its last step.
    """
    last_step = max((line["step"] for line in lines if line["stage"] == "rl"), default=0)
    points: defaultdict[str, dict[int, Line]] = defaultdict(dict)
    for of in ("baseline", "sft", "rl"):
        for line in lines:
            if line.get("of") == of:
                for name in _sets(line):
                    points[name][(line["step"] or last_step) if of == "rl" else 0] = line
    charts: list[dict[str, Any]] = []
    for name, by_step in sorted(points.items()):
        steps = sorted(by_step)
        if len(steps) < 2:
            continue
        columns = {
            part: [by_step[step].get(f"eval/{name}/{part}") for step in steps]
            for part in ("accuracy", "accuracy_low", "accuracy_high", "tool_use")
        }
        series = [
            {
                "name": "accuracy, 95 % interval",
                "values": columns["accuracy"],
                "low": columns["accuracy_low"],
                "high": columns["accuracy_high"],
            },
            {"name": "tool use", "values": columns["tool_use"]},
        ]
        charts.append(
            {
                "section": "Evaluation during RL",
                "title": f"{name} (step 0: before RL)",
                "unit": "share",
                "kind": "line",
                "steps": steps,
                "series": [s for s in series if any(v is not None for v in s["values"])],
            }
        )
    return charts


def comparison(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return per evaluation set its metrics before training, after SFT and after RL (the last)."""
    last: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        if line["stage"] == "evaluate":
            for name in _sets(line):
                prefix = f"eval/{name}/"
                last[name][line["of"]] = {
                    key.removeprefix(prefix): value
                    for key, value in line.items()
                    if key.startswith(prefix)
                } | {"step": line["step"]}
    return [{"set": name, "stages": stages} for name, stages in sorted(last.items())]


def tool_outcomes(lines: Sequence[Line]) -> dict[str, Any]:
    """Return how RL's tool calls ended: over all steps, and in the first and the last tenth."""
    steps = [line for line in lines if line["stage"] == "rl" and line.get("tool/calls")]
    tenth = max(1, len(steps) // 10)
    spans = {"all": steps, "first": steps[:tenth], "last": steps[-tenth:]}
    counts = {span: _outcome_counts(part) for span, part in spans.items()}
    return {
        "steps": tenth,
        "outcomes": [
            {"name": name} | {span: counts[span].get(name, 0.0) for span in spans}
            for name in sorted(counts["all"], key=lambda name: -counts["all"][name])
        ],
    }


def _outcome_counts(steps: Iterable[Line]) -> dict[str, float]:
    counts: defaultdict[str, float] = defaultdict(float)
    prefix = "tool/outcome/"
    for line in steps:
        num_calls = line["tool/calls"] * line.get("samples/total", 1)
        for key, share in line.items():
            if key.startswith(prefix) and share is not None:
                counts[key.removeprefix(prefix)] += share * num_calls
    return counts


def _sets(line: Line) -> list[str]:
    names = (key.split("/")[1] for key in line if key.startswith("eval/"))
    return list(dict.fromkeys(names))


def _thinned(lines: Sequence[Line]) -> list[Line]:
    stride = -(-len(lines) // _MAX_POINTS) or 1
    return [line for i, line in enumerate(lines) if i % stride == 0 or i == len(lines) - 1]
