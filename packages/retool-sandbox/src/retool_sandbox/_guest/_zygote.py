"""The zygote: libraries loaded once, one fork per run, and the supervision of every fork.

One thread, one epoll, one heap of deadlines. It lives outside the caller's process on purpose: a
trainer whose event loop is busy for a second still gets its programs killed on time.
"""

import contextlib
import gc
import heapq
import json
import os
import resource
import select
import signal
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from retool_sandbox._frames import FrameError, FrameReader, pack

from . import _kernel as kernel
from ._capture import Capture
from ._cgroups import NoSlots, Slots
from ._program import HAS_TRACEBACK, HAS_VALUE, REFUSED, REPORT
from ._rungs import Jail

FLOOD_FACTOR = 16  # a program may write 16 times what is kept before it is killed
TICK_S = 0.01  # pipes are emptied this often; a wake-up per print would cost more than the print
MAX_REPORT_BYTES = 1 << 18
REFILL_PAUSE_S = 0.5
IDLE_S = 0.05
_SYMPY_WARM_UPS = (
    "import sympy as s\nx = s.Symbol('x')\ns.solve(x**2 - 5*x + 6, x)",
    "import sympy as s\nx, y = s.symbols('x y')\ns.solve([x + y - 3, x - y - 1], [x, y])",
    "import sympy as s\nx = s.Symbol('x')\ns.diff(s.sin(x)**2, x)",
    "import sympy as s\nx = s.Symbol('x')\ns.simplify(s.sin(x)**2 + s.cos(x)**2)",
    "import sympy as s\nx = s.Symbol('x')\ns.integrate(x**2, (x, 0, 1))\ns.factor(x**2 - 1)",
    "import sympy as s\ns.factorint(360)\ns.Matrix([[1, 2], [3, 4]]).det()\ns.latex(s.sqrt(2))",
)
WARM_UPS = {"math": _SYMPY_WARM_UPS, "science": _SYMPY_WARM_UPS}
INTERRUPT_GRACE_S = 0.1  # for a session's code to stop by itself and keep its variables
EXIT_GRACE_S = 1.0  # a run that reported just in time may still be giving its memory back
_SIZE = struct.Struct(">I")


class InChild(BaseException):
    """Unwinds the stack of the zygote in a fresh child, so that a program finds none of it."""

    def __init__(self, setup: "Setup") -> None:
        self.setup = setup


@dataclass(slots=True)
class Setup:
    """What a fresh child needs to become a jailed program."""

    jail: Jail
    serial: int
    link: int
    session: bool
    profile: dict[str, Any]
    slots: Slots | NoSlots
    slot: Any


@dataclass(slots=True)
class Child:
    """One forked process and what we know about it."""

    serial: int
    pid: int
    init_pid: int
    link: int
    out: int
    err: int
    profile_key: str
    slot: Any
    init_stack: Any
    session: bool = False
    fork: bool = False
    job: "Job | None" = None
    reader: FrameReader = field(default_factory=lambda: FrameReader(MAX_REPORT_BYTES))
    ended: bool = False
    link_open: bool = True
    unsent: bytes | memoryview = b""
    """What of its request did not fit into the socket yet."""
    unread: bool = False
    """It ended before it read its request: nothing of the program ran."""


@dataclass(slots=True)
class Job:
    """One run or one turn of a session."""

    job_id: int
    limits: dict[str, Any]
    started: float
    cpu_before: float
    stdout: Capture
    stderr: Capture
    fresh: bool = True
    verdict: str | None = None
    detail: str | None = None
    report: bytes | None = None
    cpu_limit: float = 0.0
    interrupted_at: float = 0.0
    interrupt_cpu: float = 0.0


class Zygote:
    """Serves requests on the control descriptor until it closes."""

    def __init__(self, fd: int, jail: Jail, slots: Slots | NoSlots, config: dict[str, Any]) -> None:
        self._fd = fd
        self._jail = jail
        self._slots = slots
        self._num_spares = int(config["spares"])
        self._default_profile = jail.profile(config["limits"])
        self._default_key = profile_key(self._default_profile)
        self._reader = FrameReader()
        self._epoll = select.epoll()
        self._children: dict[int, Child] = {}
        self._by_link: dict[int, Child] = {}
        self._by_job: dict[int, Child] = {}
        self._sessions: dict[int, Child] = {}
        self._spares: list[Child] = []
        self._init_pids: set[int] = set()
        self._stacks: list[Any] = []
        self._deadlines: list[tuple[float, int, str]] = []
        self._out = bytearray()
        self._next_tick = 0.0
        self._serial = 0
        self._refill_after = 0.0
        self._warm_ups = list(WARM_UPS.get(config["tier"], ()))
        self._quiet_since = time.monotonic()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_read = wake_read
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _on_child)
        kernel.ignore_stopped_children()
        os.set_blocking(fd, False)
        self._epoll.register(fd, select.EPOLLIN)
        self._epoll.register(wake_read, select.EPOLLIN)

    # -- the loop ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run until the control descriptor closes. In a child this raises InChild."""
        self._send({"op": "ready", "level": self._jail.level, "facts": self._jail.facts})
        self._refill()
        while True:
            for fd, event in self._epoll.poll(self._timeout()):
                if fd == self._fd:
                    if not self._on_control():
                        return
                elif fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()
                elif fd in self._by_link:
                    if event & select.EPOLLOUT:
                        self._forward(self._by_link[fd])
                    if event & ~select.EPOLLOUT:
                        self._on_link(self._by_link[fd])
            self._on_time()
            self._refill()
            self._warm_up()

    def _warm_up(self) -> None:
        """While nobody asks for anything, do once what every first use of a library does.

        Lazy imports and caches filled here are inherited by every later child.
        """
        now = time.monotonic()
        if self._by_job or not self._warm_ups:
            self._quiet_since = now
            return
        if now - self._quiet_since < IDLE_S:
            return
        exec(self._warm_ups.pop(0), {})
        self._quiet_since = time.monotonic()
        if not self._warm_ups:
            gc.collect()
            gc.freeze()
            self._jail.loaded()
            for child in self._spares:
                self._kill(child)
            self._spares.clear()  # the next ones are forked from the warm state

    def _timeout(self) -> float:
        now = time.monotonic()
        wait = IDLE_S if self._warm_ups else 3600.0
        if self._deadlines:
            wait = min(wait, self._deadlines[0][0] - now)
        if self._by_job:
            wait = min(wait, self._next_tick - now)
        return max(0.0, wait)

    def _on_control(self) -> bool:
        while True:
            try:
                data = os.read(self._fd, 1 << 18)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            if not data:
                return False
            for body in self._reader.feed(data):
                self._on_request(body)
            if len(data) < 1 << 18:
                return True

    def _send(self, head: dict[str, Any], blobs: tuple[bytes, ...] = ()) -> None:
        self._out += pack(head, blobs)
        self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                sent = os.write(self._fd, self._out)
            except BlockingIOError:
                # The caller is busy. Wait for it, but not longer than the next deadline.
                select.select([], [self._fd], [], 0.05)
                self._on_time()
                continue
            except OSError:
                self._out.clear()  # the caller is gone; the loop reads the end of file next
                return
            del self._out[:sent]

    # -- requests ------------------------------------------------------------------------------

    def _on_request(self, body: bytes) -> None:
        (head_size,) = _SIZE.unpack_from(body)
        head = json.loads(body[4 : 4 + head_size])
        op = head["op"]
        if op == "run":
            self._start(head, body)
        elif op == "cancel":
            child = self._by_job.get(head["id"])
            if child is not None and child.job is not None:
                child.job.verdict = child.job.verdict or "cancelled"
                self._kill(child)
        elif op == "end_session":
            child = self._sessions.pop(head["session"], None)
            if child is not None:
                self._kill(child)
        elif op == "stats":
            self._send(
                {
                    "op": "stats",
                    "id": head["id"],
                    "children": len(self._children),
                    "spares": [self._jail.proc_name(child.pid) for child in self._spares],
                    "sessions": len(self._sessions),
                }
            )

    def _start(self, head: dict[str, Any], body: bytes) -> None:
        session = head.get("session")
        limits = head["limits"]
        child = self._sessions.get(session) if session is not None else None
        fresh = child is None
        if child is None:
            try:
                child = self._take(self._jail.profile(limits), session is not None)
            except OSError as error:
                self._send(
                    {"op": "result", "id": head["id"], "outcome": "broken", "detail": str(error)}
                )
                return
            if session is not None:
                self._sessions[session] = child
        now = time.monotonic()
        keep = limits["output_kib"] * 1024
        job = Job(
            head["id"], limits, now, self._cpu_time(child), Capture(keep), Capture(keep), fresh
        )
        if not fresh:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)
        job.cpu_limit = limits["cpu_time_s"] or limits["wall_time_s"]
        child.job = job
        self._by_job[job.job_id] = child
        try:
            self._jail.limit_process(child.pid, limits, fresh=fresh)
            self._slots.limit(child.slot, limits)
        except OSError as error:
            # A session that holds more memory than this turn may use, or a child that just died.
            job.verdict = "out_of_memory"
            job.detail = f"could not be limited to {limits['memory_mib']} MiB: {error.strerror}"
            self._kill(child)
            return
        heapq.heappush(self._deadlines, (now + limits["wall_time_s"], job.job_id, "wall"))
        if job.cpu_limit < limits["wall_time_s"]:
            heapq.heappush(self._deadlines, (now + job.cpu_limit, job.job_id, "cpu"))
        self._next_tick = (
            min(self._next_tick, now + TICK_S) if self._next_tick > now else now + TICK_S
        )
        child.unsent = _SIZE.pack(len(body)) + body
        self._forward(child)

    def _forward(self, child: Child) -> None:
        """Send what the child takes now; a session whose code never reads must not hold us up."""
        waited = isinstance(child.unsent, memoryview)
        data = memoryview(child.unsent)
        try:
            while data:
                data = data[os.write(child.link, data) :]
        except BlockingIOError:
            child.unsent = data
            if not waited:
                self._epoll.modify(child.link, select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError:
            data = memoryview(b"")  # it died meanwhile; the reaper says how
            child.unread = True
        child.unsent = b""
        if waited and child.link_open:
            self._epoll.modify(child.link, select.EPOLLIN)

    def _take(self, profile: dict[str, Any], session: bool) -> Child:
        key = profile_key(profile)
        self._reap()  # a spare may have been killed from outside
        if not session and key == self._default_key:
            while self._spares:
                child = self._spares.pop()
                if not child.ended:
                    return child
        return self._fork(profile, key, session)

    # -- children ------------------------------------------------------------------------------

    def _refill(self) -> None:
        # One at a time: a request that arrives meanwhile waits for one fork, not for eight.
        now = time.monotonic()
        if len(self._spares) >= self._num_spares or now < self._refill_after:
            return
        try:
            self._spares.append(self._fork(self._default_profile, self._default_key, False))
        except OSError:
            self._refill_after = now + REFILL_PAUSE_S  # no processes or files left for now
        if len(self._spares) < self._num_spares:
            heapq.heappush(self._deadlines, (max(now, self._refill_after), 0, "refill"))

    def _fork(self, profile: dict[str, Any], key: str, session: bool) -> Child:
        self._serial += 1
        serial = self._serial
        fds: list[int] = []
        slot = None
        try:
            fds += socket_pair()
            fds += os.pipe2(os.O_CLOEXEC)
            fds += os.pipe2(os.O_CLOEXEC)
            slot = self._slots.take()
            self._jail.prepare_child(serial)
            init_pid, stack = self._jail.new_pid_namespace(self._stacks)
            pid = os.fork()
        except OSError:
            for fd in fds:
                os.close(fd)
            if slot is not None:
                self._slots.give_back(slot)
            self._jail.abandon_pid_namespace()
            raise
        link, child_link, out, child_out, err, child_err = fds
        if pid == 0:
            os.dup2(child_out, 1)
            os.dup2(child_err, 2)
            raise InChild(
                Setup(self._jail, serial, child_link, session, profile, self._slots, slot)
            )
        self._jail.leave_pid_namespace()
        for fd in (child_link, child_out, child_err):
            os.close(fd)
        for fd in (link, out, err):
            os.set_blocking(fd, False)
        child = Child(
            serial, pid, init_pid, link, out, err, key, slot, stack, session, profile["fork"]
        )
        self._children[pid] = child
        if init_pid:
            self._init_pids.add(init_pid)
        self._by_link[link] = child
        self._epoll.register(link, select.EPOLLIN)
        return child

    def _kill(self, child: Child) -> None:
        for pid in (child.init_pid, child.pid):
            if pid and not child.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _cpu_time(self, child: Child) -> float:
        try:
            return time.clock_gettime(((~child.pid) << 3) | 2)
        except OSError:
            return 0.0

    def _on_link(self, child: Child) -> None:
        try:
            data = os.read(child.link, 1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            child.unread = True
            data = b""
        except OSError:
            data = b""
        bodies: list[bytes] = []
        if data:
            try:
                bodies = child.reader.feed(data)
            except FrameError:
                data = b""  # it forged its report: take the exit status instead
        if not data:
            self._drop_link(child)
            return
        job = child.job
        if not bodies or job is None or job.report is not None:
            return
        job.report = bodies[0]
        if child.session:
            self._finish_turn(child)
        # A single run is over when its process is: a report alone could be forged.

    def _drop_link(self, child: Child) -> None:
        if child.link_open:
            child.link_open = False
            self._by_link.pop(child.link, None)
            with contextlib.suppress(OSError):
                self._epoll.unregister(child.link)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._init_pids:
                self._init_pids.discard(pid)
                continue
            child = self._children.pop(pid, None)
            if child is not None:
                self._on_exit(child, status, usage)

    def _on_exit(self, child: Child, status: int, usage: resource.struct_rusage) -> None:
        child.ended = True
        if child.init_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.init_pid, signal.SIGKILL)
        if child.job is not None:
            if child.link_open:
                self._on_link(child)
            self._finish(child, status, usage)
        self._drop_link(child)
        if child in self._spares:
            self._spares.remove(child)
            self._refill_after = time.monotonic() + REFILL_PAUSE_S  # do not fork it to death
        for session, other in list(self._sessions.items()):
            if other is child:
                del self._sessions[session]
        for fd in (child.link, child.out, child.err):
            os.close(fd)
        self._slots.give_back(child.slot)
        self._jail.forget(child.serial)
        if child.init_stack is not None:
            self._stacks.append(child.init_stack)

    # -- output, deadlines, verdicts -----------------------------------------------------------

    def _drain(self, child: Child, job: Job) -> None:
        for fd, capture in ((child.out, job.stdout), (child.err, job.stderr)):
            while job.verdict != "output_limit":
                try:
                    data = os.read(fd, 1 << 16)
                except BlockingIOError:
                    break
                if not data:
                    break
                capture.add(data)
                total = job.stdout.total + job.stderr.total
                if total > FLOOD_FACTOR * job.limits["output_kib"] * 1024:
                    if job.verdict is None:
                        job.verdict = "output_limit"
                        job.detail = f"killed after {total} bytes of output"
                    self._kill(child)

    def _on_time(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, job_id, kind = heapq.heappop(self._deadlines)
            child = self._by_job.get(job_id)
            if child is None or child.job is None:
                continue
            job = child.job
            if kind == "wall" and job.report is not None:
                heapq.heappush(self._deadlines, (now + EXIT_GRACE_S, job_id, "exit"))
            elif kind == "kill" and job.verdict == "timed_out":
                used = self._cpu_time(child) - job.interrupt_cpu
                waited = now - job.interrupted_at
                # On a busy machine it may not have had its turn yet.
                if used < INTERRUPT_GRACE_S / 2 and waited < 10 * INTERRUPT_GRACE_S:
                    due = now + INTERRUPT_GRACE_S / 2
                    heapq.heappush(self._deadlines, (due, job_id, "kill"))
                    continue
                job.detail = (job.detail or "").replace("interrupted", "killed")
                self._kill(child)
            elif kind in ("wall", "exit"):
                self._time_out(child, job, f"after {job.limits['wall_time_s']:g} s")
            elif kind == "cpu" and job.report is None:
                used = self._cpu_time(child) - job.cpu_before
                if used >= job.cpu_limit:
                    self._time_out(child, job, f"after {job.cpu_limit:g} s of CPU time")
                else:
                    wait = max(0.002, (job.cpu_limit - used) / 4)
                    heapq.heappush(self._deadlines, (now + wait, job_id, "cpu"))
        if self._by_job and now >= self._next_tick:
            self._next_tick = now + TICK_S
            for child in list(self._by_job.values()):
                if child.job is not None:
                    self._drain(child, child.job)
                    self._watch(child, child.job)

    def _time_out(self, child: Child, job: Job, when: str) -> None:
        if job.verdict is not None:
            return
        job.verdict = "timed_out"
        if child.session:
            job.detail = f"interrupted {when}"
            job.interrupted_at, job.interrupt_cpu = time.monotonic(), self._cpu_time(child)
            due = job.interrupted_at + INTERRUPT_GRACE_S
            heapq.heappush(self._deadlines, (due, job.job_id, "kill"))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGINT)
        else:
            job.detail = f"killed {when}"
            self._kill(child)

    def _watch(self, child: Child, job: Job) -> None:
        reason = self._jail.over_quota(child.serial, child.pid, job.limits)
        if reason is not None and job.verdict is None:
            job.verdict, job.detail = reason
            self._kill(child)

    def _finish_turn(self, child: Child) -> None:
        job = child.job
        assert job is not None
        self._drain(child, job)
        if job.verdict not in (None, "timed_out") or (job.detail or "").startswith("killed"):
            return  # being killed: the reaper finishes it
        # Threads that a turn left behind must not run on between the turns.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGSTOP)
        cpu = self._cpu_time(child) - job.cpu_before
        peak = self._slots.peak_mib(child.slot) or self._jail.memory_mib(child.pid)
        self._reply(child, job, 0, cpu, peak)

    def _finish(self, child: Child, status: int, usage: resource.struct_rusage) -> None:
        job = child.job
        assert job is not None
        self._drain(child, job)
        cpu = usage.ru_utime + usage.ru_stime
        peak = self._slots.peak_mib(child.slot) or self._jail.peak_mib(usage.ru_maxrss)
        if child.unread and job.verdict is None and not child.session:
            # Whatever ended it, it was not the program. A set-up that fails shows here, too.
            job.verdict = "not_started"
            job.detail = job.stderr.parts()[0].decode("utf-8", "replace") or "a child did not start"
        elif job.verdict is None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if self._slots.was_oom(child.slot):
                job.verdict = "out_of_memory"
                job.detail = f"killed at {job.limits['memory_mib']} MiB"
            elif number in (signal.SIGXCPU, signal.SIGKILL) and cpu >= job.cpu_limit:
                job.verdict = "timed_out"
                job.detail = f"killed after {job.cpu_limit:g} s of CPU time"
            elif number == signal.SIGKILL and self._jail.filters and not child.fork:
                job.verdict = "lost"
                job.detail = "the program's process was killed from outside"
            else:
                if number == signal.SIGSYS and self._jail.filters:
                    number = signal.SIGKILL  # its own, see _seccomp
                    status = number
                job.verdict = "died"
                job.detail = f"killed by signal {number} ({signal.Signals(number).name})"
        self._reply(child, job, status, cpu, peak)

    def _reply(self, child: Child, job: Job, status: int, cpu: float, peak: float) -> None:
        code: int | None = None
        number: int | None = None
        value = trace = b""
        flags = 0
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
        elif child.ended:
            code = os.WEXITSTATUS(status)
        if job.report is not None and job.verdict is None and len(job.report) >= REPORT.size:
            said, said_flags, value_size, trace_size = REPORT.unpack_from(job.report)
            if said == code or not child.ended:
                code, flags = said, said_flags
                value = job.report[REPORT.size : REPORT.size + value_size]
                trace = job.report[REPORT.size + value_size :][:trace_size]
        if flags & REFUSED:
            # The policy is no boundary, so the child's word is good enough for its refusal.
            job.verdict, job.detail, code = "refused", value.decode("utf-8", "replace"), None
            flags, value = 0, b""
        outcome = job.verdict or ("ok" if code == 0 and not flags & HAS_TRACEBACK else "failed")
        self._by_job.pop(job.job_id, None)
        child.job = None
        blobs = (*job.stdout.parts(), *job.stderr.parts(), value, trace)
        self._send(
            {
                "op": "result",
                "id": job.job_id,
                "outcome": outcome,
                "exit_code": code,
                "signal": number,
                "wall": time.monotonic() - job.started,
                "cpu": cpu,
                "peak": peak,
                "cut": [job.stdout.cut_bytes, job.stderr.cut_bytes],
                "has_value": bool(flags & HAS_VALUE),
                "has_traceback": bool(flags & HAS_TRACEBACK),
                "detail": job.detail,
                "fresh": job.fresh,
                "over": child.ended,
            },
            blobs,
        )


def _on_child(*_: object) -> None:
    """Only there so that the wake-up descriptor is written to."""


def profile_key(profile: dict[str, Any]) -> str:
    """Spares of equal keys are interchangeable."""
    return repr(sorted(profile.items()))


def socket_pair() -> tuple[int, int]:
    """A connected pair as bare numbers: no socket object for a program to find."""
    import _socket

    left, right = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
    return left.detach(), right.detach()
