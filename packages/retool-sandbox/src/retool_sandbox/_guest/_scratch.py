"""Scratch folders on a disk of the host, for the levels that may not mount a tmpfs."""

import contextlib
import os
import stat
import time
from typing import Any

MIB = 1 << 20
SCAN_EVERY_S = 0.05
MAX_DEPTH = 64


class ScratchWatch:
    """Makes, measures and removes one folder per child.

    The quota is watched, not enforced by the kernel: a run over it is killed at the next look.
    """

    def __init__(self, base: str, trash_fd: int | None = None) -> None:
        self._base = base
        self._trash_fd = trash_fd
        self._next_scan: dict[int, float] = {}

    def path(self, serial: int) -> str:
        """The folder of one child."""
        return f"{self._base}/{serial}"

    def make(self, serial: int) -> None:
        """Make it."""
        os.mkdir(self.path(serial), 0o700)

    def over_quota(self, serial: int, limits: dict[str, Any]) -> str | None:
        """Why a run must end, if its files are too many or too big."""
        now = time.monotonic()
        if now < self._next_scan.get(serial, 0.0):
            return None
        self._next_scan[serial] = now + SCAN_EVERY_S
        entries, used, deepest = measure(self.path(serial), limits["scratch_files"])
        if entries > limits["scratch_files"]:
            return f"killed with more than {limits['scratch_files']} files in the scratch"
        if used > limits["scratch_mib"] * MIB:
            return f"killed with {used / MIB:.0f} of {limits['scratch_mib']} MiB in the scratch"
        if deepest > MAX_DEPTH:
            return f"killed with folders nested deeper than {MAX_DEPTH} in the scratch"
        return None

    def remove(self, serial: int) -> None:
        """Remove it; what is not empty is left to the keeper, off the zygote's time."""
        self._next_scan.pop(serial, None)
        path = self.path(serial)
        try:
            os.rmdir(path)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(path, f"{self._base}/trash-{serial}")
                if self._trash_fd is not None:
                    os.write(self._trash_fd, b"x")


def measure(path: str, max_entries: int) -> tuple[int, int, int]:
    """Entries, bytes on disk and depth beneath a folder; stops early when there are too many."""
    entries = used = deepest = 0
    todo = [(path, 1)]
    while todo and entries <= max_entries and deepest <= MAX_DEPTH:
        folder, depth = todo.pop()
        deepest = max(deepest, depth)
        try:
            with os.scandir(folder) as scan:
                for entry in scan:
                    entries += 1
                    if entries > max_entries:
                        break
                    info = entry.stat(follow_symlinks=False)
                    used += info.st_blocks * 512
                    if stat.S_ISDIR(info.st_mode):
                        todo.append((entry.path, depth + 1))
        except OSError:
            continue  # it went away, or its owner took the permission bits
    return entries, used, deepest


def empty_trash(base: str) -> None:
    """Remove every folder that a child left behind."""
    try:
        names = [name for name in os.listdir(base) if name.startswith("trash-")]
    except OSError:
        return
    for name in names:
        remove_tree(f"{base}/{name}")


def remove_tree(path: str) -> None:
    """Remove a tree of any depth and with any permission bits, without recursion.

    Folders below the first level are moved up to it before they are looked into, so that neither
    the length of a path nor the number of open files grows with the depth.
    """
    serial = 0
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
    while True:
        try:
            names = os.listdir(path)
        except OSError:
            return
        if not names:
            with contextlib.suppress(OSError):
                os.rmdir(path)
            return
        progress = False
        for name in names:
            child = f"{path}/{name}"
            try:
                if not stat.S_ISDIR(os.lstat(child).st_mode):
                    os.unlink(child)
                    progress = True
                    continue
                os.chmod(child, 0o700)
                for inner in os.listdir(child):
                    serial += 1
                    os.rename(f"{child}/{inner}", f"{path}/.{serial}.moved")
                os.rmdir(child)
                progress = True
            except OSError:
                continue
        if not progress:
            return
