"""Print what a command did: a line per fact, or JSON; progress on a terminal only."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ._files import replacing
from ._findings import Finding, Severity
from ._rows import BadRow

T = TypeVar("T")

_SHOWN_BAD_ROWS = 20
_FAULTS = ("bad_rows", "bad_benchmark_rows", "gold_conflicts", "contaminated")


class Console:
    """Where a command's words go: facts to stdout, faults and progress to stderr."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def progress(self, rows: Iterable[T], what: str) -> Iterator[T]:
        """Pass rows on and show how many there were, on a terminal."""
        if self._json or not sys.stderr.isatty():
            yield from rows
            return
        from rich.console import Console as Terminal
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.completed:,} rows"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            for row in rows:
                yield row
                bar.advance(task)

    def line(self, status: str, subject: str, value: object, *, width: int = 18) -> None:
        """Print one fact, unless JSON is wanted."""
        if not self._json:
            _say(f"{status:<8}{subject:<{width}} {value}")

    def report(self, path: str | None, content: dict[str, Any]) -> None:
        """Write the evidence to a file, if one is wanted."""
        if path is None:
            return
        with replacing(Path(path)) as temporary:
            text = json.dumps(content, ensure_ascii=False, indent=2)
            temporary.write_text(text + "\n", encoding="utf-8")

    def finish(
        self,
        summary: dict[str, Any],
        bad: Sequence[BadRow],
        findings: Sequence[Finding] = (),
        *,
        limit: int | None = 10,
    ) -> int:
        """Print the summary, bad rows and findings; return the exit code."""
        for row in bad[:_SHOWN_BAD_ROWS]:
            _say(f"bad row {row}", sys.stderr)
        if len(bad) > _SHOWN_BAD_ROWS:
            _say(f"bad row ... and {len(bad) - _SHOWN_BAD_ROWS} more", sys.stderr)
        if self._json:
            _say(json.dumps(summary, ensure_ascii=False, indent=2), lines=True)
        else:
            self._print(summary, findings, limit)
        failed = bool(bad) or any(found.severity is Severity.ERROR for found in findings)
        return 1 if failed else 0

    def _print(
        self, summary: dict[str, Any], findings: Sequence[Finding], limit: int | None
    ) -> None:
        shown: Counter[str] = Counter()
        for found in findings:
            shown[found.code] += 1
            if limit is None or shown[found.code] <= limit:
                _say(str(found))
        for code, count in shown.items():
            if limit is not None and count > limit:
                _say(f"        {code}: {count - limit} more (--report FILE has all)")
        for name, value in summary.items():
            self.line(
                "FAIL" if name in _FAULTS and value else "ok", name.replace("_", " "), _shown(value)
            )


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"  # pyright: ignore[reportUnknownVariableType]
    return str(value)


def _say(text: str, stream: TextIO | None = None, *, lines: bool = False) -> None:
    # A statement or a quoted reply may hold line ends; a fact is one line.
    line = text if lines else text.replace("\r", "\\r").replace("\n", "\\n")
    (stream or sys.stdout).write(line + "\n")
