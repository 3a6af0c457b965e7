"""The jails of the isolation ladder."""

import math
import os
import resource
import tempfile
from typing import Any

MIB = 1 << 20


def own_address_space() -> int:
    """Bytes of address space that this process has already."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


class Jail:
    """No jail: rlimits only."""

    level = "none"

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self._base = own_address_space()

    def new_pid_namespace(self, stacks: list[Any]) -> tuple[int, Any]:
        """Pid of the namespace's init and its stack; zero where there is none."""
        return 0, None

    def leave_pid_namespace(self) -> None:
        """Fork the next child into our own namespace again."""

    def limit_process(self, pid: int, limits: dict[str, Any], *, fresh: bool) -> None:
        """Set the rlimits of one run from outside."""
        cpu = math.ceil(limits["cpu_time_s"] or limits["wall_time_s"]) + 1
        memory = self._base + int(limits["memory_mib"] * 1.25 + 128) * MIB
        for kind, value in (
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, limits["scratch_mib"] * MIB),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.prlimit(pid, kind, (value, value))

    def over_quota(self, pid: int, limits: dict[str, Any]) -> tuple[str, str] | None:
        """Verdict and reason when the run uses more than it may."""
        return None

    def memory_mib(self, pid: int) -> float:
        """Resident memory now."""
        return 0.0

    def forget(self, pid: int) -> None:
        """Clean up after a child that ended."""

    def enter(self, profile: dict[str, Any]) -> None:
        """Turn this fresh child into a jailed one."""
        os.chdir(tempfile.mkdtemp())
