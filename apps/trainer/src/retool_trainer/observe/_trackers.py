"""Send metrics to TensorBoard and Weights & Biases, where their extras are installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from retool_trainer.config import TrackingConfig
from retool_trainer.errors import RunRefusedError


class TrackerUnavailableError(RunRefusedError):
    """A tracker that the configuration asks for is not installed."""


class Tracker(Protocol):
    """Something that metrics are sent to."""

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Send one step's metrics."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def make_trackers(
    config: TrackingConfig,
    run_dir: Path,
    *,
    run_name: str,
    run_config: Mapping[str, Any],
    resumed_at: tuple[str, int] | None = None,
) -> list[Tracker]:
    """Open the trackers of a run.

    Args:
        config: Which ones.
        run_dir: Their files go below it, into `tensorboard/` and `wandb/`.
        run_name: Shown by the tracker.
        run_config: The resolved configuration, shown by the tracker.
        resumed_at: (stage, step) of the checkpoint that the run continues from; TensorBoard hides
            what it has of the stage's later steps.

    Raises:
        TrackerUnavailableError: Its extra is not installed.
    """
    trackers: list[Tracker] = []
    if config.tensorboard:
        trackers.append(TensorBoardTracker(run_dir / "tensorboard", resumed_at=resumed_at))
    if config.wandb_project is not None:
        trackers.append(
            WandbTracker(
                config.wandb_project, run_dir, run_name=run_name, run_config=dict(run_config)
            )
        )
    return trackers


class TensorBoardTracker:
    """Writes event files, one folder per stage, since each stage counts its own steps."""

    def __init__(self, folder: Path, *, resumed_at: tuple[str, int] | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrackerUnavailableError(
                "tracking.tensorboard needs the package tensorboard; install the extra "
                "retool-trainer[tensorboard], or set tracking.tensorboard=false"
            ) from error
        self._open = SummaryWriter
        self._folder = folder
        self._resumed_at = resumed_at
        self._writers: dict[str, SummaryWriter] = {}

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Write one step's metrics and flush them."""
        if stage not in self._writers:
            purge_step = None
            if self._resumed_at is not None and stage.endswith(self._resumed_at[0]):
                purge_step = self._resumed_at[1] + 1
            self._writers[stage] = self._open(str(self._folder / stage), purge_step=purge_step)
        writer = self._writers[stage]
        for key, value in values.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class WandbTracker:
    """Logs to a W&B project; `WANDB_MODE=offline` keeps everything in the run folder.

    A resumed run continues the same W&B run. What W&B was sent of steps after the checkpoint stays
    there beside their repetition; metrics.jsonl has every step once.
    """

    def __init__(
        self, project: str, run_dir: Path, *, run_name: str, run_config: dict[str, Any]
    ) -> None:
        try:
            wandb = import_module("wandb")
        except ImportError as error:
            raise TrackerUnavailableError(
                "tracking.wandb_project needs the package wandb; install the extra "
                "retool-trainer[wandb], or set tracking.wandb_project=null"
            ) from error
        run_dir.mkdir(parents=True, exist_ok=True)
        id_file = run_dir / "wandb_id"
        run_id = id_file.read_text() if id_file.exists() else uuid4().hex[:8]
        id_file.write_text(run_id)
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=run_id,
            resume="allow",
            dir=str(run_dir),
            config=run_config,
        )
        self._stages: set[str] = set()

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Log one step; each stage has its own axis, `stage/step`."""
        if stage not in self._stages:
            self._run.define_metric(f"{stage}/step")
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
            self._stages.add(stage)
        self._run.log(
            {f"{stage}/{key}": value for key, value in values.items()} | {f"{stage}/step": step}
        )

    def close(self) -> None:
        """Upload what is left and end the service process."""
        self._run.finish()
