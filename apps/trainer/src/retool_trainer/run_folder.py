"""The folder of a run: where everything lies, what is finished, and whose config it belongs to."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retool_trainer.errors import RunRefusedError

from .config import RunConfig

# What may differ between two starts of one run: it changes where things run, not what is computed.
_FREE_KEYS = ("stages", "ray", "tracking", "engine.python", "engine.start_timeout_s", "fetch")


class RunFolderError(RunRefusedError):
    """The run folder cannot be used; the message says what to do."""


class RunFolder:
    """Paths and the record of finished stages of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.data = path / "data"
        self.random_model = path / "model"
        self.models = path / "models"
        self.checkpoints = path / "checkpoints"
        self.evaluations = path / "evaluations"
        self.trajectories = path / "trajectories"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"

    def open(self, config: RunConfig, *, fresh: bool) -> bool:
        """Create the folder, or check that it belongs to this configuration.

        Returns:
            True if it was created.

        Raises:
            RunFolderError: It holds a run of another configuration, or something that is no run.
        """
        if fresh and self.path.exists():
            if not self.config_file.exists() and self._holds_something():
                raise RunFolderError(
                    f"--fresh would delete {self.path}, which is not the folder of a run "
                    "(it has no config.json); choose another --run-dir"
                )
            self.clear()
        wanted = config.model_dump(mode="json")
        if self.config_file.exists():
            stored = json.loads(self.config_file.read_text(encoding="utf-8"))
            differences = list(_differences(stored, wanted))
            if differences:
                raise RunFolderError(
                    f"{self.path} holds a run of another configuration:\n"
                    + "\n".join(f"  {line}" for line in differences)
                    + "\nchoose another --run-dir, or --fresh to delete it and start again"
                )
            self._remove_drafts()
            return False
        if self.path.exists() and self._holds_something():
            raise RunFolderError(
                f"{self.path} is not empty and holds no run (no config.json); "
                "choose another --run-dir"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.config_file, wanted)
        return True

    def clear(self) -> None:
        """Delete what is in the folder, but for the lock: another process may wait for it."""
        for entry in self.path.iterdir():
            if entry.name == _LOCK:
                continue
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _holds_something(self) -> bool:
        return any(entry.name != _LOCK for entry in self.path.iterdir())

    def _remove_drafts(self) -> None:
        """Remove what a killed run was writing; a checkpoint of a large model fills a disk."""
        folders = [self.data, self.models, self.evaluations]
        folders += [*self.checkpoints.glob("*"), *self.trajectories.glob("*")]
        drafts = [draft for folder in folders for draft in folder.glob(".*")]
        for draft in (*drafts, *self.path.glob(".*.tmp*")):
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second process out of the folder.

        Raises:
            RunFolderError: Another process has it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / _LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunFolderError(
                    f"another process is running in {self.path}; wait for it or choose another "
                    "--run-dir"
                ) from error
            yield

    def checkpoint_dirs(self, stage: str) -> list[Path]:
        """Whole checkpoints of a stage, oldest first."""
        folder = self.checkpoints / stage
        return sorted(path for path in folder.glob("step-*") if (path / "state.json").exists())


_LOCK = ".lock"


def write_text(file: Path, text: str) -> None:
    """Write under a temporary name, then rename: a reader sees the old file or the new one.

    A device or a pipe is written to as it is: a rename would put a file in its place. A link stays
    a link, and the file that it names is replaced.
    """
    file = file.resolve()
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def write_json(file: Path, value: Any) -> None:
    """Write JSON as `write_text` does."""
    write_text(file, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(file: Path) -> Any:
    """Read a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of `folder` when the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.tmp{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _differences(stored: Any, wanted: Any, prefix: str = "") -> Iterator[str]:
    for key in sorted(set(stored) | set(wanted)):
        path = f"{prefix}{key}"
        if path in _FREE_KEYS:
            continue
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{path}.")
        elif old != new:
            yield f"{path}: the folder has {old!r}, this run has {new!r}"
