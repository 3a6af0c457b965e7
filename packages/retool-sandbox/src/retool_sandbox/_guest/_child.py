"""What the zygote knows of one child, and of the run or turn it is busy with.

Plain classes: dataclasses would make every start of a sandbox 10 ms longer.
"""

from typing import Any

from retool_sandbox._frames import FrameReader

from ._capture import Capture
from ._cgroups import NoSlots, Slots
from ._rungs import Jail

MAX_REPORT_BYTES = 1 << 18


class Setup:
    """What a fresh child needs to become a jailed program."""

    __slots__ = ("jail", "link", "profile", "serial", "session", "slot", "slots")

    def __init__(
        self,
        jail: Jail,
        serial: int,
        link: int,
        session: bool,
        profile: dict[str, Any],
        slots: Slots | NoSlots,
        slot: Any,
    ) -> None:
        self.jail = jail
        self.serial = serial
        self.link = link
        self.session = session
        self.profile = profile
        self.slots = slots
        self.slot = slot


class InChild(BaseException):
    """Unwinds the stack of the zygote in a fresh child, so that a program finds none of it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup


class Job:
    """One run or one turn of a session."""

    __slots__ = (
        "cpu_before", "cpu_limit", "detail", "fresh", "interrupt_cpu", "interrupted_at", "job_id",
        "limits", "report", "started", "stderr", "stdout", "verdict",
    )  # fmt: skip

    def __init__(
        self, job_id: int, limits: dict[str, Any], started: float, cpu_before: float, fresh: bool
    ) -> None:
        self.job_id = job_id
        self.limits = limits
        self.started = started
        self.cpu_before = cpu_before
        self.cpu_limit: float = limits["cpu_time_s"] or limits["wall_time_s"]
        self.fresh = fresh
        self.stdout = Capture(limits["output_kib"] * 1024)
        self.stderr = Capture(limits["output_kib"] * 1024)
        self.verdict: str | None = None
        self.detail: str | None = None
        self.report: bytes | None = None
        self.interrupted_at = 0.0
        self.interrupt_cpu = 0.0


class Child:
    """One forked process."""

    __slots__ = (
        "ended", "err", "fork", "init_pid", "job", "limits", "link", "link_open",
        "out", "pid", "reader", "serial", "session", "slot", "unread", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        serial: int,
        pid: int,
        fds: tuple[int, int, int],
        init_pid: int,
        slot: Any,
        *,
        session: bool,
        fork: bool,
    ) -> None:
        self.serial = serial
        self.pid = pid
        self.link, self.out, self.err = fds
        self.init_pid = init_pid
        self.slot = slot
        self.session = session
        self.fork = fork
        self.job: Job | None = None
        self.limits: dict[str, Any] | None = None
        """What it was last limited to."""
        self.reader = FrameReader(MAX_REPORT_BYTES)
        self.ended = False
        self.link_open = True
        self.unsent: bytes | memoryview = b""
        """What of its request did not fit into the socket yet."""
        self.unread = False
        """It ended before it read its request: nothing of the program ran."""
