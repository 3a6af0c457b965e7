"""One object that the pipeline tells what happened: file, console, trackers, trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retool_trainer.config import RunConfig

from ._console import Console
from ._metrics import Metrics
from ._records import SampleRecord
from ._trackers import make_trackers
from ._trajectories import forget_trajectories_after, trajectories_path, write_trajectories


class Observer:
    """Everything that a run tells about itself while it runs.

    Args:
        run_dir: The run's folder.
        config: The run's configuration.
        resumed_at: (stage, step) of the checkpoint that the run continues from: what was logged
            after it is forgotten. None for a run that starts, or to keep all.
        console: Where lines go; None is standard output.
    """

    def __init__(
        self,
        run_dir: Path,
        config: RunConfig,
        *,
        resumed_at: tuple[str, int] | None = None,
        console: Console | None = None,
    ) -> None:
        self._run_dir = run_dir
        self.console = console or Console()
        self._metrics = Metrics(run_dir / "metrics.jsonl")
        if resumed_at is not None:
            stage, step = resumed_at
            self._metrics.forget_after(stage, step)
            forget_trajectories_after(run_dir, "rl", step if stage == "rl" else 0)
        self._trackers = make_trackers(
            config.tracking,
            run_dir,
            run_name=config.name,
            run_config=config.model_dump(mode="json"),
            resumed_at=resumed_at,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close file, display and trackers."""
        self.console.close()
        self._metrics.close()
        for tracker in self._trackers:
            tracker.close()
        self._trackers = []

    def stage(self, name: str, *, total: int, done: int = 0) -> AbstractContextManager[None]:
        """Show a stage's progress; see `Console.stage`."""
        return self.console.stage(name, total=total, done=done)

    def work(self, name: str, *, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show the progress of long work; see `Console.work`."""
        return self.console.work(name, total=total)

    def step(self, stage: str, step: int, total: int, values: Mapping[str, float | None]) -> None:
        """Log one finished step: a line in the file, one on the console, and the trackers.

        Args:
            stage: `sft` or `rl`.
            step: From 1.
            total: Steps of the stage.
            values: Metrics by key of `METRIC_KEYS`.

        Raises:
            ValueError: A key that the table does not have.
        """
        self._metrics.append(stage, step, values)
        self.console.step(stage, step, total, values)
        self._track(stage, step, values)

    def evaluation(self, of: str, step: int, values: Mapping[str, float | None]) -> None:
        """Log the metrics of an evaluation.

        Args:
            of: `baseline`, `sft` or `rl`: whose weights it measures.
            step: The step that it follows.
            values: Metrics by key of `METRIC_KEYS`.

        Raises:
            ValueError: A key that the table does not have.
        """
        self._metrics.append("evaluate", step, values, of=of)
        self._track(f"evaluate/{of}", step, values)

    def samples(self, stage: str, step: int, records: Sequence[SampleRecord]) -> Path:
        """Keep the trajectories of a step and return the file."""
        path = trajectories_path(self._run_dir, stage, step)
        write_trajectories(path, records)
        return path

    def _track(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        known: dict[str, Any] = {key: v for key, v in values.items() if v is not None}
        for tracker in self._trackers:
            tracker.log(stage, step, known)
