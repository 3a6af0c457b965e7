"""Count what a file holds: rows, shapes, golds, turns, calls, outputs, lengths, trained tokens."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ._records import Problem, Trajectory
from ._samples import Pack, TokenSample


def stats(records: Iterable[Problem | Trajectory | TokenSample | Pack]) -> dict[str, Any]:
    """Summarise records of any kind, in one pass.

    Returns:
        Plain numbers and tables, ready for JSON. Only the parts that the records have are there.
    """
    tables: dict[str, Counter[str]] = {}
    lengths: dict[str, list[int]] = {}
    rows = 0

    def count(table: str, key: object) -> None:
        tables.setdefault(table, Counter())[str(key)] += 1

    def measure(name: str, value: int) -> None:
        lengths.setdefault(name, []).append(value)

    for record in records:
        rows += 1
        if isinstance(record, TokenSample):
            measure("tokens", len(record.ids))
            measure("trained_tokens", record.num_trained)
            count("dialect", record.dialect)
            for span in record.spans:
                measure(f"{span.kind}_tokens", span.end - span.start)
        elif isinstance(record, Pack):
            measure("tokens", len(record.ids))
            measure("trained_tokens", sum(record.mask))
            measure("samples_per_pack", len(record.problem_ids))
        else:
            problem = record if isinstance(record, Problem) else record.problem
            count("shape", problem.provenance.shape or "record")
            count("gold_kind", problem.gold_kind)
            measure("statement_chars", len(problem.statement))
            if problem.duplicate_of is not None:
                count("marks", "duplicate")
            if problem.contaminated_by:
                count("marks", "contaminated")
            if isinstance(record, Trajectory):
                _count_trajectory(record, count, measure)
    out: dict[str, Any] = {"rows": rows}
    out.update({name: dict(table.most_common()) for name, table in tables.items()})
    out.update({name: summarise(values) for name, values in lengths.items()})
    return out


def _count_trajectory(trajectory: Trajectory, count: Any, measure: Any) -> None:
    calls = 0
    for segment in trajectory.segments:
        if segment.call is not None:
            calls += 1
            count("tool", segment.call.name)
        elif segment.result is not None:
            count("replay", segment.result.status)
            measure("output_chars", len(segment.result.text))
        else:
            measure("text_chars", len(segment.text))
    count("source_dialect", trajectory.dialect or "none")
    measure("calls", calls)


def summarise(values: Sequence[int]) -> dict[str, float]:
    """Count, total, mean and percentiles of numbers; the percentiles are values that occur."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}

    def at(percent: int) -> int:
        return ordered[-(-percent * len(ordered) // 100) - 1]  # rounded up: the nearest rank

    return {
        "count": len(ordered),
        "sum": sum(ordered),
        "mean": round(sum(ordered) / len(ordered), 2),
        "min": ordered[0],
        "p50": at(50),
        "p90": at(90),
        "p99": at(99),
        "max": ordered[-1],
    }
