"""What each command does: read, call the iterator of the same name, write, report."""

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from ._console import Console
from ._convert import convert
from ._decontaminate import find_contamination, mark_contaminated
from ._dedupe import DedupeReport, dedupe
from ._extras import ExecutorError, MissingExtraError, Rendering, open_executor, open_rendering
from ._files import write_rows
from ._findings import CODES, Finding, finding
from ._frames import with_answer_form
from ._lint import lint, lint_sample
from ._load import LoadCounts, load
from ._pack import pack
from ._records import Problem, Provenance, Trajectory
from ._replay import validate
from ._rows import BadRow, Row, read_rows
from ._samples import TokenSample
from ._samples_io import load_packs, load_samples
from ._stats import stats, summarise
from ._tokenize import TokenizeCounts, tokenize_all
from ._view import write_view

__all__ = [
    "ExecutorError",
    "MissingExtraError",
    "convert_command",
    "decontaminate_command",
    "dedupe_command",
    "lint_command",
    "load_command",
    "pack_command",
    "stats_command",
    "tokenize_command",
    "validate_command",
    "view_command",
]


class _Reader:
    """Reads the sources of a command, and keeps what went wrong."""

    def __init__(self, arguments: argparse.Namespace, console: Console, **options: Any) -> None:
        self._options: dict[str, Any] = {
            "columns": _columns(arguments.map),
            "shape": arguments.shape,
            "split": arguments.split,
            "config": arguments.config,
            "unique": arguments.unique,
        } | options
        self._console = console
        self.counts = LoadCounts()
        self.bad: list[BadRow] = []

    def records(self, *sources: str) -> Iterator[Problem | Trajectory]:
        for source in sources:
            rows = load(source, on_bad_row=self.note, counts=self.counts, **self._options)
            yield from self._console.progress(rows, f"reading {Path(source).name}")

    def trajectories(self, source: str) -> Iterator[Trajectory]:
        for record in self.records(source):
            if isinstance(record, Trajectory):
                yield record
            else:
                where = record.provenance
                reason = f"a problem without a trajectory (shape {where.shape or 'record'})"
                self.note(BadRow(where.source, where.row, reason))

    def problems(self, *sources: str) -> Iterator[Problem]:
        for record in self.records(*sources):
            yield record if isinstance(record, Problem) else record.problem

    def note(self, row: BadRow) -> None:
        self.bad.append(row)

    def summary(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "rows": self.counts.rows,
            "records": self.counts.records,
            "bad_rows": len(self.bad),
            "shapes": dict(self.counts.shapes),
        }
        if self.counts.repeated:
            out["repeated"] = self.counts.repeated
        return out


def _columns(pairs: Iterable[str]) -> dict[str, str] | None:
    out: dict[str, str] = {}
    for pair in pairs:
        wanted, _, column = pair.partition("=")
        if not wanted or not column:
            raise ValueError(
                f"--map takes WANTED=COLUMN, for example prompt=question; got {pair!r}"
            )
        out[wanted] = column
    return out or None


def load_command(arguments: argparse.Namespace) -> int:
    """Read a file; say its shape and show the first record."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    records = islice(reader.records(arguments.source), arguments.limit)
    first = next(records, None)
    if arguments.output:
        count = write_rows(arguments.output, _chained(first, records))
    else:
        count = sum(1 for _ in _chained(first, records))
    summary: dict[str, Any] = reader.summary() | {"loaded": count}
    if first is not None:
        problem = first if isinstance(first, Problem) else first.problem
        summary["first"] = {
            "problem_id": problem.problem_id,
            "statement": problem.statement[:100],
            "gold": problem.gold,
            "gold_kind": str(problem.gold_kind),
        }
    return console.finish(summary, reader.bad)


def _chained(
    first: Problem | Trajectory | None, rest: Iterator[Problem | Trajectory]
) -> Iterator[Problem | Trajectory]:
    if first is not None:
        yield first
        yield from rest


def convert_command(arguments: argparse.Namespace) -> int:
    """Write rows in another layout."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    records = reader.records(arguments.source)
    if arguments.answer_form:
        records = (_reframed(record, arguments.answer_form) for record in records)
    rows = convert(
        records,
        arguments.to,
        plain=arguments.plain,
        check=not arguments.no_check,
        parquet=arguments.output.endswith(".parquet"),
        on_bad_row=reader.note,
    )
    written = write_rows(arguments.output, rows)
    return console.finish(reader.summary() | {"written": written}, reader.bad)


def _reframed(record: Problem | Trajectory, form: str) -> Problem | Trajectory:
    if isinstance(record, Problem):
        return with_answer_form(record, form)
    return record.model_copy(update={"problem": with_answer_form(record.problem, form)})


def validate_command(arguments: argparse.Namespace) -> int:
    """Run every recorded call again, in the sandbox."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    findings: list[Finding] = []
    statuses: Counter[str] = Counter()
    kept: list[Trajectory] = []
    dropped = 0

    async def work() -> None:
        nonlocal dropped
        async with open_executor(
            isolation=arguments.isolation,
            concurrency=arguments.concurrency,
            timeout_s=arguments.timeout_s,
        ) as executor:
            rows = reader.trajectories(arguments.source)
            async for row in validate(
                rows, executor, state=arguments.state, action=arguments.action
            ):
                findings.extend(row.findings)
                statuses.update(
                    str(s.result.status) for s in row.trajectory.segments if s.result is not None
                )
                if row.kept:
                    kept.append(row.trajectory)
                else:
                    dropped += 1

    asyncio.run(work())
    written = write_rows(arguments.output, kept)
    summary = reader.summary() | {
        "outputs": dict(statuses.most_common()),
        "written": written,
        "dropped": dropped,
    }
    console.report(arguments.report, {**summary, "findings": _dumped(findings)})
    return console.finish(summary, reader.bad, findings)


def dedupe_command(arguments: argparse.Namespace) -> int:
    """Keep the first of equal problems."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    report = DedupeReport()
    kept = dedupe(
        reader.records(*arguments.source), level=arguments.level, mark=arguments.mark, report=report
    )
    written = write_rows(arguments.output, kept)
    summary = reader.summary() | {
        "kept": report.kept,
        "duplicates": dict(report.levels),
        "gold_conflicts": report.gold_conflicts,
        "written": written,
    }
    evidence = [asdict(found) for found in report.duplicates]
    console.report(arguments.report, {**summary, "evidence": evidence})
    return console.finish(summary, reader.bad)


def decontaminate_command(arguments: argparse.Namespace) -> int:
    """Find benchmark problems in the rows, and leave them out."""
    console = Console(arguments.json)
    # The benchmark's files have columns of their own, whatever the source's are called.
    hidden = _Reader(arguments, console, columns=None, shape=None, config=None)
    benchmark = list(hidden.problems(*arguments.against))
    found = find_contamination(_Reader(arguments, console).problems(arguments.source), benchmark)
    reader = _Reader(arguments, console)
    rows = mark_contaminated(reader.records(arguments.source), found, drop=not arguments.mark)
    written = write_rows(arguments.output, rows)
    summary = reader.summary() | {
        "benchmark": len(benchmark),
        "bad_benchmark_rows": len(hidden.bad),
        "contaminated": len(found),
        "written": written,
    }
    evidence = [asdict(hit) for hit in found]
    console.report(arguments.report, {**summary, "evidence": evidence})
    for hit in found[:10]:
        line = f"{hit.source}:{hit.row} holds {hit.benchmark_id} (score {hit.score})"
        console.line("note", "contaminated", line)
    return console.finish(summary, hidden.bad + reader.bad)


def tokenize_command(arguments: argparse.Namespace) -> int:
    """Build ids and masks with a dialect of retool-rollout."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    rendering = _open_rendering(arguments)
    if arguments.compare_template:
        rendering.require_template()
    counts = TokenizeCounts()
    findings: list[Finding] = []

    end_id = rendering.dialect.turn_ids("", [])[-1]
    current: list[Trajectory] = []

    def read() -> Iterator[Trajectory]:
        for trajectory in reader.trajectories(arguments.source):
            current[:] = [trajectory]
            yield trajectory

    def checked() -> Iterator[TokenSample]:
        for sample in tokenize_all(
            read(),
            rendering.dialect,
            max_tokens=arguments.max_tokens,
            too_long=arguments.too_long,
            tokenizer_hash=rendering.tokenizer_hash,
            on_bad_row=reader.note,
            counts=counts,
            # The comparison looks at the row that was read last, so none may be read ahead.
            num_threads=1 if arguments.compare_template else os.cpu_count() or 1,
        ):
            if arguments.compare_template:
                difference = rendering.difference(current[0], sample)
                findings.extend([difference] if difference is not None else [])
            findings.extend(lint_sample(sample, end_id=end_id))
            yield sample

    written = write_rows(arguments.output, checked())
    summary = reader.summary() | {
        "written": written,
        "too_long": counts.too_long,
        "tokens": counts.tokens,
        "trained_tokens": counts.trained_tokens,
        "dialect": rendering.dialect.name,
        "tokenizer_hash": rendering.tokenizer_hash,
    }
    report = {"too_long_rows": counts.too_long_rows, "findings": _dumped(findings)}
    console.report(arguments.report, summary | report)
    return console.finish(summary, reader.bad, findings)


def _open_rendering(arguments: argparse.Namespace) -> Rendering:
    return open_rendering(
        arguments.tokenizer, dialect=arguments.dialect, system_prompt=arguments.system_prompt
    )


def pack_command(arguments: argparse.Namespace) -> int:
    """Join samples into rows of fixed length."""
    console = Console(arguments.json)
    samples = list(console.progress(load_samples(arguments.source), "reading samples"))
    packs = pack(samples, arguments.max_tokens)
    written = write_rows(arguments.output, packs)
    tokens = sum(len(row.ids) for row in packs)
    room = len(packs) * arguments.max_tokens
    summary = {
        "samples": len(samples),
        "written": written,
        "tokens": tokens,
        "full_percent": round(100 * tokens / room, 2) if room else 0.0,
        "samples_per_pack": summarise([len(row.problem_ids) for row in packs]),
    }
    return console.finish(summary, [])


def lint_command(arguments: argparse.Namespace) -> int:
    """Check prompts, rows and masks."""
    console = Console(arguments.json)
    if arguments.codes:
        for code, (severity, meaning) in CODES.items():
            console.line(severity, code, meaning, width=max(map(len, CODES)))
        codes = {code: f"{severity}: {meaning}" for code, (severity, meaning) in CODES.items()}
        return console.finish(codes, []) if arguments.json else 0
    if not arguments.source and not arguments.samples:
        raise ValueError("lint needs a file, or --samples FILE, or --codes")
    reader = _Reader(arguments, console)
    findings = list(
        lint(
            reader.records(*arguments.source),
            answer_form=arguments.answer_form,
            dialect=arguments.dialect,
        )
    )
    if arguments.samples:
        samples = list(load_samples(arguments.samples))
        last_ids = Counter(sample.ids[-1] for sample in samples)
        end_id = last_ids.most_common(1)[0][0] if last_ids else None
        for sample in samples:
            findings += lint_sample(sample, end_id=end_id)
    for row in reader.bad:
        where = Provenance(source=row.source, row=row.number)
        findings.append(finding("unreadable", where, "", row.reason))
    codes = Counter(found.code for found in findings)
    summary = reader.summary() | {"findings": dict(codes.most_common())}
    console.report(arguments.report, {**summary, "evidence": _dumped(findings)})
    return console.finish(summary, [], findings, limit=None if arguments.all else 10)


def stats_command(arguments: argparse.Namespace) -> int:
    """Count what a file holds; samples and packs too."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    first = next(read_rows(arguments.source), None) if Path(arguments.source).is_file() else None
    columns = first.value if isinstance(first, Row) else {}
    if "ids" in columns and "spans" in columns:
        return console.finish(stats(load_samples(arguments.source)), [])
    if "ids" in columns and "cu_seqlens" in columns:
        return console.finish(stats(load_packs(arguments.source)), [])
    summary = stats(reader.records(arguments.source))
    return console.finish(summary | {"bad_rows": len(reader.bad)}, reader.bad)


def view_command(arguments: argparse.Namespace) -> int:
    """Write one HTML page."""
    console = Console(arguments.json)
    reader = _Reader(arguments, console)
    rows = list(islice(reader.trajectories(arguments.source), arguments.limit))
    samples: dict[str, TokenSample] = {}
    decode = None
    if arguments.tokenizer:
        rendering = _open_rendering(arguments)
        decode = rendering.decode
        made = tokenize_all(rows, rendering.dialect, on_bad_row=reader.note)
        samples = {sample.problem_id: sample for sample in made}
    findings = list(lint(rows, dialect=arguments.dialect))
    for path in arguments.findings:
        more = _read_findings(Path(path))
        findings += [found for found in more if found not in findings]
    shown = write_view(
        arguments.output,
        rows,
        samples=samples,
        decode=decode,
        findings=findings,
        title=Path(arguments.source).name,
    )
    return console.finish(reader.summary() | {"shown": shown}, reader.bad)


def _read_findings(path: Path) -> list[Finding]:
    try:
        held: Any = json.loads(path.read_text(encoding="utf-8"))
        entries: list[Any] = held.get("findings") or held.get("evidence") or []
        return [Finding.model_validate(entry) for entry in entries]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path.name} is no --report of validate, tokenize or lint") from error


def _dumped(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [found.model_dump(mode="json") for found in findings]
