"""Weights through a folder: written once by the policy, read by every engine.

The folder lies in memory (tmpfs) where the host has one. A version is complete or absent, because
the policy writes it under a temporary name; the version before it is removed. A run that was killed
leaves its folder in memory: the next run on the host removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

_TMPFS = Path("/dev/shm")
_PREFIX = "retool-weights-"
_LOCK = ".lock"  # held by the owner of a folder for as long as it lives


class DiskSync:
    """The folder of the current weights of one run."""

    def __init__(self, folder: str | None) -> None:
        """Make the folder, and remove those whose owners died.

        Args:
            folder: A place that all nodes share; None takes the tmpfs of this host.
        """
        parent = Path(folder or (_TMPFS if _TMPFS.is_dir() else tempfile.gettempdir()))
        parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(parent)
        # It gets its name when it is locked, so that nobody takes it for an orphan.
        made = Path(tempfile.mkdtemp(prefix="retool-new-", dir=parent))
        self._lock = (made / _LOCK).open("w")
        with contextlib.suppress(OSError):  # a file system without locks: its orphans stay
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._folder = parent / made.name.replace("retool-new-", _PREFIX)
        made.rename(self._folder)
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
        self._lock.close()


def _remove_orphans(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # Another user's, one that is just being removed, or one in use: all three are left alone.
        with contextlib.suppress(OSError), (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
