"""The end of a run: one JSON file of figures, a table, and a few trajectories to look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retool_trainer.config import RunConfig
from retool_trainer.observe import SampleRecord, read_trajectories
from retool_trainer.run_folder import RunFolder, read_json, write_json

_MEASURED = ("baseline", "sft", "rl")


def summarise(config: RunConfig, folder: RunFolder, total_s: float) -> dict[str, Any]:
    """Write `RUN/summary.json` from the evaluations and return it."""
    measured = {file.stem: read_json(file) for file in sorted(folder.evaluations.glob("*.json"))}
    greedy = next((s.name for s in config.evaluation.sets if s.temperature == 0), None)
    sampled = next((s.name for s in config.evaluation.sets if s.temperature > 0), None)
    main = greedy or sampled

    def column(name: str | None, key: str, *, trained_only: bool = False) -> dict[str, float]:
        return {
            of: round(measured[of][name][key], 4)
            for of in _MEASURED
            if name and of in measured and not (trained_only and of == "baseline")
        }

    stages_file = folder.path / "stages.json"
    stages = read_json(stages_file) if stages_file.exists() else {}
    summary: dict[str, Any] = {
        "accuracy": column(main, "accuracy"),
        "accuracy_sampled": column(sampled, "accuracy"),
        "tool_use": column(main, "tool_use", trained_only=True),
        "tool_errors": column(main, "tool_errors", trained_only=True),
        "wall_s": {stage: entry["wall_s"] for stage, entry in stages.items()}
        | {"total": round(total_s, 1)},
        "seed": config.seed,
        "config": config.model_dump(mode="json"),
    }
    write_json(folder.summary_file, summary)
    return summary


def table_lines(config: RunConfig, folder: RunFolder) -> Iterator[str]:
    """Lines of the final table: one row per measured model, aligned."""
    measured = {of: folder.evaluations / f"{of}.json" for of in _MEASURED}
    rows = {of: read_json(file) for of, file in measured.items() if file.exists()}
    for chosen in config.evaluation.sets:
        how = "greedy" if chosen.temperature == 0 else f"temperature {chosen.temperature:g}"
        problems = next((row[chosen.name]["problems"] for row in rows.values()), 0)
        yield f"{chosen.name}: {problems} problems, {how}, {chosen.samples} sample(s) each"
        heads = f"{'accuracy (95 %)':>22} {'tool use':>9} {'tool errors':>12} {'reward':>7}"
        yield f"  {'':<15} {heads}"
        for of, row in rows.items():
            m = row[chosen.name]
            interval = f"{m['accuracy']:.3f} ({m['accuracy_low']:.3f}-{m['accuracy_high']:.3f})"
            yield (
                f"  {_label(config, of):<15} {interval:>22} {m['tool_use']:>9.0%} "
                f"{m['tool_errors']:>12.0%} {m['reward']:>7.3f}"
            )


def sample_lines(config: RunConfig, folder: RunFolder, count: int = 3) -> Iterator[str]:
    """Lines that show a few trajectories of the last evaluation, as the model wrote them."""
    if not config.evaluation.sets:
        return
    name = config.evaluation.sets[0].name
    for of in reversed(_MEASURED):
        files = sorted((folder.trajectories / f"evaluate-{of}-{name}").glob("*.parquet"))
        if files:
            yield f"trajectories of the model {_label(config, of)}:"
            for record in _some(files[-1], count):
                yield from _shown(record)
            return


def _label(config: RunConfig, of: str) -> str:
    if of == "baseline":
        return "random weights" if config.model.shape else "before training"
    return f"after {of.upper()}"


def _some(file: Path, count: int) -> list[SampleRecord]:
    records = list(read_trajectories(file))
    return records[:: max(1, len(records) // count)][:count]


def _shown(record: SampleRecord) -> Iterator[str]:
    verdict = {True: "right", False: "wrong", None: "not graded"}[record.correct]
    judged = f"gold {record.gold}: {verdict}, reward {record.reward}"
    yield f"  {_line(_text(record, 'prompt'))}  [{judged}]"
    for call in record.calls:
        code = json.loads(call.arguments).get("code", call.arguments)
        yield f"    calls  {_line(code)}"
        yield f"    reads  {_line(call.text)}"
    yield f"    says   {_line(_text(record, 'policy'))}"


def _text(record: SampleRecord, speaker: str) -> str:
    """The last segment of a speaker, as text."""
    return next((s.text for s in reversed(record.segments) if s.speaker == speaker), "")


def _line(text: str) -> str:
    flat = " / ".join(text.strip().splitlines())
    return flat if len(flat) <= 90 else flat[:87] + "..."
