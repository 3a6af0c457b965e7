"""Weights through a folder: written once by the policy, read by every engine.

The folder lies in memory (tmpfs) where the host has one. A version is complete or absent, because
the policy writes it under a temporary name; the version before it is removed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

_TMPFS = Path("/dev/shm")


class DiskSync:
    """The folder of the current weights of one run."""

    def __init__(self, folder: str | None) -> None:
        """Make the folder.

        Args:
            folder: A place that all nodes share; None takes the tmpfs of this host.
        """
        parent = Path(folder) if folder else (_TMPFS if _TMPFS.is_dir() else None)
        if parent:
            parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="retool-weights-", dir=parent))
        self._current: Path | None = None

    def next_folder(self, weight_version: int) -> Path:
        """Where the policy writes this version."""
        return self._folder / f"version-{weight_version:06d}"

    def published(self, folder: Path) -> None:
        """The engines have read `folder`: forget the version before it."""
        if self._current and self._current != folder:
            shutil.rmtree(self._current, ignore_errors=True)
        self._current = folder

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
