"""The values that go into a sandbox and come out of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_MOST_SECONDS = 1e7
_MOST = 1 << 31  # in bytes still a number that the kernel takes
_MOST_OUTPUT_KIB = 1 << 16  # both streams fit into one frame


class Outcome(StrEnum):
    """How a program ended."""

    OK = "ok"
    FAILED = "failed"  # raised, or exited non-zero
    TIMED_OUT = "timed_out"  # wall or CPU time
    OUT_OF_MEMORY = "out_of_memory"  # killed by the kernel or by the memory watch
    OUTPUT_LIMIT = "output_limit"  # killed while flooding stdout or stderr
    DIED = "died"  # killed by a signal of its own making
    REFUSED = "refused"  # the policy did not let it start


class Level(StrEnum):
    """A rung of the isolation ladder, strongest first."""

    FULL = "full"  # namespaces + own root + Landlock where the kernel has it + seccomp
    LANDLOCK = "landlock"  # Landlock + seccomp, needs no privilege
    CHROOT = "chroot"  # another uid + chroot + seccomp, for root on old kernels
    SECCOMP = "seccomp"  # seccomp only: files of the user stay readable
    NONE = "none"  # rlimits only


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings for one run, or for one turn of a session."""

    wall_time_s: float = 10.0
    cpu_time_s: float | None = None
    """CPU seconds of all threads together; None means the same as wall_time_s."""
    memory_mib: int = 1024
    """What the program may use on top of the preloaded libraries."""
    output_kib: int = 64
    """Kept per stream: head and tail, the middle is cut. 16 times this ends the program."""
    scratch_mib: int = 64
    scratch_files: int = 4096
    processes: int = 1
    """1 forbids fork. More needs the full level."""
    threads: int = 64
    open_files: int = 256

    def __post_init__(self) -> None:
        for name in ("wall_time_s", "cpu_time_s"):
            value = getattr(self, name)
            if value is None:
                continue
            if not (isinstance(value, int | float) and 0 < value <= _MOST_SECONDS):
                raise ValueError(
                    f"{name} must be > 0 and <= {_MOST_SECONDS:g} seconds, got {value!r}"
                )
        lowest = {
            "memory_mib": 16,
            "output_kib": 1,
            "scratch_mib": 1,
            "scratch_files": 16,
            "processes": 1,
            "threads": 1,
            "open_files": 16,
        }
        for name, low in lowest.items():
            value = getattr(self, name)
            high = _MOST_OUTPUT_KIB if name == "output_kib" else _MOST
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ValueError(
                    f"{name} must be a whole number >= {low} and <= {high}, got {value!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How one program ended and what it left behind."""

    outcome: Outcome
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """repr of the last expression, as a REPL shows it (it is the last line of stdout, too)."""
    traceback: str | None = None
    """The user's own lines only; also the end of stderr."""
    exit_code: int | None = None
    signal: int | None = None
    wall_time_s: float = 0.0
    cpu_time_s: float = 0.0
    peak_memory_mib: float = 0.0
    truncated: tuple[str, ...] = ()
    """Which of stdout, stderr, value, traceback were cut."""
    isolation: str = Level.NONE.value
    detail: str | None = None
    """Why the supervisor ended or refused the program, in one line."""
    state_lost: bool = False
    """Only in sessions: variables of earlier turns are gone."""

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end without an error."""
        return self.outcome is Outcome.OK

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {
            "outcome": self.outcome.value,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "value": self.value,
            "traceback": self.traceback,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "wall_time_s": self.wall_time_s,
            "cpu_time_s": self.cpu_time_s,
            "peak_memory_mib": self.peak_memory_mib,
            "truncated": list(self.truncated),
            "isolation": self.isolation,
            "detail": self.detail,
            "state_lost": self.state_lost,
        }
