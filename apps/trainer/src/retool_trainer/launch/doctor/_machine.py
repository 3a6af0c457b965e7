"""How the doctor looks at a machine: files, commands, packages. Tests give it a recorded one."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TIMED_OUT = 124
"""The code of a reply that did not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a command answered."""

    code: int
    text: str
    """Standard output, then standard error."""


class Machine(Protocol):
    """Everything the checks read; nothing here changes the machine."""

    @property
    def root(self) -> Path:
        """Files are looked for below it: `/`, or a test's folder."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the run would inherit."""
        ...

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Reply | None:
        """Run a command; None if there is no such program. `python` is this interpreter."""
        ...

    def package_version(self, name: str) -> str | None:
        """Version of an installed distribution, or None."""
        ...

    def architecture(self) -> str:
        """As `uname -m` says."""
        ...

    def glibc(self) -> str:
        """Version of the C library, e.g. 2.35; empty if it is another one."""
        ...

    def python(self) -> tuple[int, int]:
        """Version of the interpreter."""
        ...

    def max_open_files(self) -> tuple[int, int]:
        """`ulimit -n`, soft and hard."""
        ...

    def can_open(self, node: Path) -> bool:
        """May this process read and write the device node?"""
        ...

    def free_gib(self, path: Path) -> float | None:
        """Free space of the file system that `path` (below the root) is or would be on."""
        ...


class LocalMachine:
    """This machine."""

    root = Path("/")

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Reply | None:
        """Run to the end or to the deadline, whichever is first."""
        program = sys.executable if command[0] == "python" else shutil.which(command[0])
        if program is None:
            return None
        try:
            done = subprocess.run(
                [program, *command[1:]],
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # tools of the vendor also answer in GBK
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Reply(code=TIMED_OUT, text=f"no answer within {timeout_s:g} s")
        except OSError as error:
            return Reply(code=126, text=str(error))
        return Reply(code=done.returncode, text=done.stdout + done.stderr)

    def package_version(self, name: str) -> str | None:
        """From the installed distributions' metadata; imports nothing."""
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def architecture(self) -> str:
        """As `uname -m` says."""
        return platform.machine()

    def glibc(self) -> str:
        """Empty for another C library."""
        name, version = platform.libc_ver()
        return version if name == "glibc" else ""

    def python(self) -> tuple[int, int]:
        """Version of the interpreter."""
        return sys.version_info[:2]

    def max_open_files(self) -> tuple[int, int]:
        """Of this process; the kernel's "unlimited" is a negative number."""
        soft, hard = (n if n >= 0 else 2**63 for n in resource.getrlimit(resource.RLIMIT_NOFILE))
        return soft, hard

    def can_open(self, node: Path) -> bool:
        """By the node's mode and our groups; it is not opened, which could start a device."""
        return os.access(node, os.R_OK | os.W_OK)

    def free_gib(self, path: Path) -> float | None:
        """Of the nearest folder that exists."""
        for folder in (path, *path.parents):
            if folder.exists():
                return shutil.disk_usage(folder).free / 2**30
        return None
