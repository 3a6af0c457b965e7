"""Show a run: one aligned line per step, and on a terminal a progress bar with the time left."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class _Column(NamedTuple):
    template: str
    key: str
    optional: bool = False
    """Left out of lines that do not have it; other columns keep their width with a dash."""


_COLUMNS: dict[str, tuple[_Column, ...]] = {
    "sft": (
        _Column("{:6.2f}s", "time/step_s"),
        _Column("loss {:6.3f}", "loss"),
        _Column("grad {:6.2f}", "grad_norm"),
        _Column("lr {:7.1e}", "learning_rate"),
        _Column("{:6.0f} tok/s", "throughput/tokens_per_s"),
        _Column("held-out loss {:.3f}", "loss/heldout", optional=True),
    ),
    "rl": (
        _Column("{:6.1f}s", "time/step_s"),
        _Column("reward {:6.3f}", "reward/mean"),
        _Column("right {:4.0%}", "accuracy"),
        _Column("turns {:4.1f}", "turns/mean"),
        _Column("tool {:4.0%}", "tool/use"),
        _Column("tool ok {:4.0%}", "tool/ok"),
        _Column("cut {:4.0%}", "truncated"),
        _Column("entropy {:5.2f}", "policy/entropy"),
        _Column("kl {:6.3f}", "policy/kl|policy/approx_kl"),
        _Column("{:6.0f} tok/s", "throughput/tokens_per_s"),
        _Column("stale {:.1f}", "schedule/staleness_mean", optional=True),
    ),
}

# A plain log (a file, CI) hears of long work at most this often.
_PLAIN_PERIOD_S = 30.0
_RECENT_STEPS = 20


def step_line(
    stage: str, step: int, total: int, metrics: Mapping[str, float | None], left_s: float | None
) -> str:
    """Write one step as one line whose columns stand under those of the line before.

    Args:
        stage: `sft` or `rl`.
        step: From 1.
        total: Steps of the stage; sets the width of the step number.
        metrics: By key; a missing or null one shows as a dash.
        left_s: Estimated seconds to the end of the stage, None when unknown.
    """
    cells = [f"{stage:<3} step {step:>{len(str(total))}}/{total}"]
    for column in _COLUMNS[stage]:
        value = next(
            (metrics[key] for key in column.key.split("|") if metrics.get(key) is not None), None
        )
        if value is not None:
            cells.append(column.template.format(value))
        elif not column.optional:
            cells.append(_dashed(column.template))
    if left_s is not None:
        cells.append(f"{duration(left_s):>7} left")
    return " | ".join(cells)


def duration(seconds: float) -> str:
    """Write a time as `42s`, `3m07s` or `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


class Console:
    """Where a run speaks to its user.

    On a terminal the lines scroll above a live progress bar; elsewhere they are plain lines, and
    long work without a line of its own reports now and then.
    """

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        """Write to `stream` (standard output); `live` None asks whether it is a terminal."""
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() if live is None else live
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_STEPS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the live display; lines can still be written."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()

    def line(self, text: str) -> None:
        """Write one line."""
        if self._progress is None:
            self._stream.write(text + "\n")
            self._stream.flush()
        else:
            # Neither markup nor colour nor wrapping: the text may be a model's.
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, *, total: int, done: int = 0) -> Iterator[None]:
        """Show the progress of a stage whose steps are given to `step`.

        Args:
            name: `sft` or `rl`.
            total: Steps of the stage.
            done: Steps that a checkpoint had finished already.
        """
        self._recent.clear()
        self._recent.append((done, time.monotonic()))
        self._start(name, total, done)
        try:
            yield
        finally:
            self._end(name)

    def step(self, stage: str, step: int, total: int, metrics: Mapping[str, float | None]) -> None:
        """Write the line of a finished step and move the stage's bar."""
        now = time.monotonic()
        first = self._recent[0] if self._recent else None
        self._recent.append((step, now))
        left_s = None
        if first is not None and step > first[0]:
            left_s = (now - first[1]) / (step - first[0]) * (total - step)
        self.line(step_line(stage, step, total, metrics, left_s))
        if self._progress is not None and stage in self._tasks:
            self._progress.update(self._tasks[stage], completed=step)

    @contextmanager
    def work(self, name: str, *, total: int) -> Iterator[Callable[[int], None]]:
        """Show the progress of something long, such as an evaluation.

        Args:
            name: What is being done, for the user.
            total: How many pieces there are.

        Yields:
            A function to call with the number of newly finished pieces.
        """
        done, started = 0, time.monotonic()
        spoke = started
        self._start(name, total, 0)

        def advance(count: int = 1) -> None:
            nonlocal done, spoke
            done += count
            if self._progress is not None:
                self._progress.update(self._tasks[name], completed=done)
            elif (now := time.monotonic()) - spoke >= _PLAIN_PERIOD_S:
                spoke = now
                self.line(f"{name} {done:>{len(str(total))}}/{total} | {duration(now - started)}")

        try:
            yield advance
        finally:
            self._end(name)

    def _start(self, name: str, total: int, done: int) -> None:
        if not self._live:
            return
        if self._progress is None:
            from rich.console import Console as RichConsole
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left", style="dim"),
                TimeRemainingColumn(),
                console=RichConsole(file=self._stream, force_terminal=True),
                transient=True,
                speed_estimate_period=300,
            )
            self._progress.start()
        self._tasks[name] = self._progress.add_task(name, total=total, completed=done)

    def _end(self, name: str) -> None:
        if self._progress is None or name not in self._tasks:
            return
        self._progress.refresh()  # the last state was drawn up to a tenth of a second ago
        self._progress.remove_task(self._tasks.pop(name))
        if not self._tasks:
            self.close()


def _dashed(template: str) -> str:
    """Fill a column without a value so that the next ones stay in place."""
    before, _, rest = template.partition("{")
    after = rest.partition("}")[2]
    width = len(template.format(0.0)) - len(before) - len(after)
    return f"{before}{'-':>{width}}{after}"
