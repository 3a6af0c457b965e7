"""Find what a sandbox left behind whose keeper was killed before it could clean up."""

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator

NAME = re.compile(r"retool-sandbox-(\d+)-")


def _is_dead(name: str) -> bool:
    match = NAME.match(name)
    return match is not None and not os.path.exists(f"/proc/{match[1]}")


def hold(base: str) -> int:
    """Mark a scratch base as in use for as long as this process lives."""
    fd = os.open(f"{base}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def dead_bases(folder: str) -> Iterator[str]:
    """Scratch bases in a folder that nobody holds.

    The pid alone is not enough: containers that share the folder count pids each on its own. Nor is
    the name: in a folder that everybody writes, somebody else's link would lead us anywhere.
    """
    for name in os.listdir(folder):
        base = f"{folder}/{name}"
        if not _is_dead(name):
            continue
        with contextlib.suppress(OSError):  # held, not ours, or gone meanwhile
            info = os.lstat(base)
            if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
                continue
            fd = os.open(f"{base}/lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(fd)
            yield base


def dead_groups(folder: str) -> Iterator[str]:
    """Groups of dead callers beneath our own cgroup, which no other container shares."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if _is_dead(name):
                yield f"{folder}/{name}"
