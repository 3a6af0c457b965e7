"""Write a run as one HTML file: curves, comparison, tool statistics and a sample browser."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from retool_trainer.run_folder import write_text

from ._charts import comparison, evaluation_charts, metric_charts, tool_outcomes
from ._metrics import read_metrics
from ._records import SampleRecord
from ._statistics import paired_change
from ._trajectories import read_trajectories, read_verdicts

# The page stays a few megabytes whatever the run: browsers open that at once.
_MAX_FILES = 12
_LOGPROB_DIGITS = 5


class ReportError(Exception):
    """There is nothing to report on; the message says what to do."""


def write_report(
    run_dir: Path,
    output: Path | None = None,
    *,
    max_samples: int = 300,
    max_tokens: int = 250_000,
) -> Path:
    """Write the report of a run, finished or not.

    Args:
        run_dir: The run's folder.
        output: The file to write; None is `report.html` in the run's folder.
        max_samples: At most so many trajectories can be browsed.
        max_tokens: And at most so many tokens of them together.

    Returns:
        The file.

    Raises:
        ReportError: The folder holds no metrics.
    """
    path = output or run_dir / "report.html"
    page = _page(report_data(run_dir, max_samples=max_samples, max_tokens=max_tokens))
    write_text(path, page)
    return path


def report_data(run_dir: Path, *, max_samples: int, max_tokens: int) -> dict[str, Any]:
    """Collect what the page shows, as JSON-ready values.

    Raises:
        ReportError: The folder holds no metrics.
    """
    metrics_file = run_dir / "metrics.jsonl"
    if not metrics_file.exists():
        raise ReportError(
            f"{run_dir} has no metrics.jsonl; give the folder of a run (its --run-dir)"
        )
    lines = read_metrics(metrics_file)
    config = _json_or_none(run_dir / "config.json")
    samples, num_stored = _choose_samples(run_dir, max_samples, max_tokens)
    return {
        "name": (config or {}).get("name") or run_dir.resolve().name,
        "comparison": [one | {"change": _change(run_dir, one["set"])} for one in comparison(lines)],
        "charts": evaluation_charts(lines) + metric_charts(lines),
        "outcomes": tool_outcomes(lines),
        "summary": _json_or_none(run_dir / "summary.json"),
        "config": config,
        "steps": {
            stage: max((line["step"] for line in lines if line["stage"] == stage), default=0)
            for stage in ("sft", "rl")
        },
        "num_stored": num_stored,
        **_samples(samples),
    }


def _change(run_dir: Path, name: str) -> dict[str, Any] | None:
    """Compare the stored evaluations after SFT and after RL, problem by problem."""
    folder = run_dir / "trajectories"
    found = [sorted(folder.glob(f"evaluate-{of}-{name}/*.parquet")) for of in ("sft", "rl")]
    if not all(found):
        return None
    before, after = (read_verdicts(files[-1]) for files in found)
    return dataclasses.asdict(paired_change(before, after))


def _choose_samples(
    run_dir: Path, max_samples: int, max_tokens: int
) -> tuple[list[tuple[str, SampleRecord]], int]:
    """Take groups from steps spread over the run, first and last step included.

    Returns:
        (stage, record) pairs in the order of the run, and how many steps are stored.
    """
    paths: list[Path] = []
    stored = sorted((run_dir / "trajectories").glob("*/step-*.parquet"))
    for stage in sorted({path.parent for path in stored}, key=_newest_first):
        paths += _spread([path for path in stored if path.parent == stage], _MAX_FILES)
    chosen: list[tuple[str, SampleRecord]] = []
    for index, path in enumerate(paths):
        # What a short step leaves over goes to the next ones.
        files_left = len(paths) - index
        samples_left = (max_samples - len(chosen)) / files_left
        tokens_left = (max_tokens - sum(len(r.ids) for _, r in chosen)) / files_left
        for record in read_trajectories(path):
            samples_left -= 1
            tokens_left -= len(record.ids)
            if samples_left < 0 or tokens_left < 0:
                break
            chosen.append((path.parent.name, record))
    return chosen, len(stored)


def _newest_first(stage: Path) -> tuple[int, str]:
    """What one wants to see first: how the trained model answers, then how it got there."""
    parts = ("evaluate-rl", "rl", "evaluate-sft", "evaluate-baseline")
    rank = next((i for i, part in enumerate(parts) if stage.name.startswith(part)), len(parts))
    return rank, stage.name


def _spread(items: Sequence[Path], count: int) -> list[Path]:
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _samples(chosen: Iterable[tuple[str, SampleRecord]]) -> dict[str, Any]:
    """Encode samples compactly: each distinct token text once, log-probabilities where sampled."""
    vocabulary: dict[str, int] = {}
    samples: list[dict[str, Any]] = []
    for stage, record in chosen:
        on = [index for index, bit in enumerate(record.mask) if bit]
        samples.append(
            {
                "stage": stage,
                "step": record.step,
                "group": record.group,
                "sample": record.sample,
                "problem": record.problem_id,
                "gold": record.gold,
                "answer": record.answer,
                "correct": record.correct,
                "reward": record.reward,
                "components": dict(record.reward_components),
                "advantage": record.advantage,
                "status": record.status,
                "stop": record.stop_reason,
                "error": record.error,
                "turns": record.num_turns,
                "wall": round(record.wall_time_s, 3),
                "ids": record.ids,
                "mask": "".join(map(str, record.mask)),
                "tokens": [vocabulary.setdefault(p, len(vocabulary)) for p in record.pieces],
                "engine": [_rounded(record.engine_logprobs[i]) for i in on],
                "policy": (
                    None
                    if record.policy_logprobs is None
                    else [_rounded(record.policy_logprobs[i]) for i in on]
                ),
                # Rounding would drown the gap, which is what one looks for.
                "gap": (
                    None
                    if record.policy_logprobs is None
                    else [
                        float(f"{record.engine_logprobs[i] - record.policy_logprobs[i]:.2e}")
                        for i in on
                    ]
                ),
                "versions": [record.weight_versions[i] for i in on],
                "segments": [[s.speaker, s.start, s.end, s.text] for s in record.segments],
                "calls": [
                    [c.turn, c.name, c.arguments, c.outcome, c.ok, c.text, round(c.wall_time_s, 4)]
                    for c in record.calls
                ],
            }
        )
    return {"samples": samples, "vocabulary": list(vocabulary)}


def _page(data: dict[str, Any]) -> str:
    assets = files("retool_trainer.observe") / "report_page"
    page = (assets / "page.html").read_text(encoding="utf-8")
    # "<" is escaped so that no text of a model can end the script element.
    payload = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"))
    parts = {
        "STYLE": (assets / "style.css").read_text(encoding="utf-8"),
        "SCRIPT": "\n".join(
            (assets / name).read_text(encoding="utf-8")
            for name in ("charts.js", "samples.js", "main.js")
        ),
        "DATA": payload.replace("<", "\\u003c"),
    }
    for name, text in parts.items():
        page = page.replace(f"%%{name}%%", text, 1)
    return page


def _rounded(value: float) -> float:
    return round(value, _LOGPROB_DIGITS)


def _finite(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, infinities) by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _json_or_none(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
