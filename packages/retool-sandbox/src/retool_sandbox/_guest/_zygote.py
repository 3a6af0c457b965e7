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
from typing import Any

from retool_sandbox._frames import FrameError, FrameReader, pack

from . import _kernel as kernel
from ._cgroups import NoSlots, Slots
from ._child import Child, Job
from ._nursery import Nursery, cpu_time_s, send_signal
from ._rungs import Jail
from ._verdict import answer, judge_exit
from ._warmup import WARM_UPS, use_huge_pages

FLOOD_FACTOR = 16  # a program may write 16 times what is kept before it is killed
TICK_S = 0.01  # pipes are emptied this often; a wake-up per print would cost more than the print
IDLE_S = 0.05
INTERRUPT_GRACE_S = 0.1  # for a session's code to stop by itself and keep its variables
EXIT_GRACE_S = 1.0  # a run that reported just in time may still be giving its memory back
_SIZE = struct.Struct(">I")


class Zygote:
    """Serves requests on the control descriptor until it closes."""

    def __init__(self, fd: int, jail: Jail, slots: Slots | NoSlots, config: dict[str, Any]) -> None:
        self._fd = fd
        self._jail = jail
        self._slots = slots
        self._reader = FrameReader()
        self._epoll = select.epoll()
        self._nursery = Nursery(jail, slots, self._epoll, int(config["spares"]), config["limits"])
        self._by_job: dict[int, Child] = {}
        self._sessions: dict[int, Child] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._out = bytearray()
        self._next_tick = 0.0
        self._warm_ups = list(WARM_UPS[config["tier"]])
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
        while True:
            for fd, event in self._epoll.poll(self._timeout()):
                if fd == self._fd:
                    if not self._on_control():
                        return
                elif fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()
                elif fd in self._nursery.by_link:
                    child = self._nursery.by_link[fd]
                    if event & select.EPOLLOUT:
                        self._forward(child)
                    if event & ~select.EPOLLOUT:
                        self._on_link(child)
            self._on_time()
            self._nursery.refill(len(self._by_job))
            self._warm_up()

    def _timeout(self) -> float:
        now = time.monotonic()
        due = now + (IDLE_S if self._warm_ups else 3600.0)
        if self._deadlines:
            due = min(due, self._deadlines[0][0])
        if self._by_job:
            due = min(due, self._next_tick)
        refill = self._nursery.due(len(self._by_job))
        if refill is not None:
            due = min(due, refill)
        return max(0.0, due - now)

    def _warm_up(self) -> None:
        """One step of the warm-up, if it is quiet."""
        now = time.monotonic()
        if self._by_job or not self._warm_ups:
            self._quiet_since = now
            return
        if now - self._quiet_since < IDLE_S:
            return
        exec(self._warm_ups.pop(0), {})
        self._quiet_since = time.monotonic()
        if not self._warm_ups:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            use_huge_pages(self._jail.maps())
            self._jail.loaded()
            self._nursery.renew_spares()

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
                self._forget_session(child)  # nobody waits for its end: the next turn may be here
                self._nursery.kill(child)
        elif op == "end_session":
            child = self._sessions.pop(head["session"], None)
            if child is not None:
                self._nursery.kill(child)
        elif op == "stats":
            self._send(
                {
                    "op": "stats",
                    "id": head["id"],
                    "children": len(self._nursery),
                    "spares": [self._jail.proc_name(child.pid) for child in self._nursery.spares],
                    "sessions": len(self._sessions),
                    "deadlines": len(self._deadlines),
                }
            )

    def _start(self, head: dict[str, Any], body: bytes) -> None:
        session = head.get("session")
        limits = head["limits"]
        child = self._sessions.get(session) if session is not None else None
        fresh = child is None
        if child is None:
            self._reap()  # a spare may have been killed from outside
            try:
                child = self._nursery.take(self._jail.profile(limits), session is not None)
            except OSError as error:
                self._send(
                    {"op": "result", "id": head["id"], "outcome": "broken", "detail": str(error)}
                )
                return
            if session is not None:
                self._sessions[session] = child
        now = time.monotonic()
        job = Job(head["id"], limits, now, 0.0 if fresh else cpu_time_s(child), fresh)
        child.job = job
        self._by_job[job.job_id] = child
        try:
            self._nursery.limit(child, limits)
        except OSError as error:
            # A session that holds more memory than this turn may use; in a fresh child's slot it is
            # what an ended run has not given back yet.
            job.verdict = "not_started" if fresh else "out_of_memory"
            job.detail = f"could not be limited to {limits['memory_mib']} MiB: {error.strerror}"
            self._nursery.kill(child)
            return
        heapq.heappush(self._deadlines, (now + limits["wall_time_s"], job.job_id, "wall"))
        if job.cpu_limit < limits["wall_time_s"]:
            heapq.heappush(self._deadlines, (now + job.cpu_limit, job.job_id, "cpu"))
        if self._next_tick <= now:
            self._next_tick = now + TICK_S
        child.unsent = _SIZE.pack(len(body)) + body
        self._forward(child)
        if not fresh:
            send_signal(child.pid, signal.SIGCONT)

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
            child.unread = True  # it died meanwhile; the reaper says how
        child.unsent = b""
        if waited and child.link_open:
            self._epoll.modify(child.link, select.EPOLLIN)

    # -- reports, ends, answers ----------------------------------------------------------------

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
            self._nursery.drop_link(child)
            return
        job = child.job
        if not bodies or job is None or job.report is not None:
            return
        job.report = bodies[0]
        if child.session:
            self._finish_turn(child, job)
        # A single run is over when its process is: a report alone could be forged.

    def _finish_turn(self, child: Child, job: Job) -> None:
        self._drain(child, job)
        if job.verdict not in (None, "timed_out") or (job.detail or "").startswith("killed"):
            return  # being killed: the reaper finishes it
        cpu = cpu_time_s(child) - job.cpu_before
        self._reply(child, job, 0, cpu, self._peak_mib(child))
        # Threads that a turn left behind must not run on between the turns.
        send_signal(child.pid, signal.SIGSTOP)

    def _reap(self) -> None:
        for child, status, usage in self._nursery.reap():
            if child.job is not None:
                if child.link_open:
                    self._on_link(child)
                self._finish(child, child.job, status, usage)
            self._forget_session(child)
            self._nursery.bury(child)

    def _forget_session(self, child: Child) -> None:
        for session, other in list(self._sessions.items()):
            if other is child:
                del self._sessions[session]

    def _finish(self, child: Child, job: Job, status: int, usage: resource.struct_rusage) -> None:
        self._drain(child, job)
        cpu = max(0.0, usage.ru_utime + usage.ru_stime - job.cpu_before)
        peak = self._slots.peak_mib(child.slot) or self._jail.peak_mib(usage.ru_maxrss)
        status = judge_exit(child, job, status, cpu, self._slots, filters=self._jail.filters)
        self._reply(child, job, status, cpu, peak)

    def _peak_mib(self, child: Child) -> float:
        return self._slots.peak_mib(child.slot) or self._jail.memory_mib(child.pid)

    def _reply(self, child: Child, job: Job, status: int, cpu_s: float, peak_mib: float) -> None:
        self._by_job.pop(job.job_id, None)
        child.job = None
        if len(self._deadlines) > 4 * len(self._by_job) + 32:
            # Each child frees what it inherits of this: those of ended runs must not pile up.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._by_job]
            heapq.heapify(self._deadlines)
        self._send(*answer(child, job, status, cpu_s, peak_mib))

    # -- output and deadlines ------------------------------------------------------------------

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
                    self._nursery.kill(child)

    def _on_time(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, job_id, kind = heapq.heappop(self._deadlines)
            child = self._by_job.get(job_id)
            if child is not None and child.job is not None:
                self._on_deadline(child, child.job, kind, now)
        if self._by_job and now >= self._next_tick:
            self._next_tick = now + TICK_S
            for child in list(self._by_job.values()):
                if child.job is not None:
                    self._drain(child, child.job)
                    self._watch(child, child.job)

    def _on_deadline(self, child: Child, job: Job, kind: str, now: float) -> None:
        again: tuple[float, str] | None = None
        if kind == "wall" and job.report is not None:
            again = EXIT_GRACE_S, "exit"
        elif kind == "kill" and job.verdict == "timed_out":
            used = cpu_time_s(child) - job.interrupt_cpu
            waited = now - job.interrupted_at
            # On a busy machine it may not have had its turn yet.
            if used < INTERRUPT_GRACE_S / 2 and waited < 10 * INTERRUPT_GRACE_S:
                again = INTERRUPT_GRACE_S / 2, "kill"
            else:
                job.detail = (job.detail or "").replace("interrupted", "killed")
                self._nursery.kill(child)
        elif kind in ("wall", "exit"):
            self._time_out(child, job, f"after {job.limits['wall_time_s']:g} s")
        elif kind == "cpu" and job.report is None:
            used = cpu_time_s(child) - job.cpu_before
            if used >= job.cpu_limit:
                self._time_out(child, job, f"after {job.cpu_limit:g} s of CPU time")
            else:
                again = max(0.002, (job.cpu_limit - used) / 4), "cpu"
        if again is not None:
            heapq.heappush(self._deadlines, (now + again[0], job.job_id, again[1]))

    def _time_out(self, child: Child, job: Job, when: str) -> None:
        if job.verdict is not None:
            return
        job.verdict = "timed_out"
        if child.session:
            job.detail = f"interrupted {when}"
            job.interrupted_at, job.interrupt_cpu = time.monotonic(), cpu_time_s(child)
            due = job.interrupted_at + INTERRUPT_GRACE_S
            heapq.heappush(self._deadlines, (due, job.job_id, "kill"))
            send_signal(child.pid, signal.SIGINT)
        else:
            job.detail = f"killed {when}"
            self._nursery.kill(child)

    def _watch(self, child: Child, job: Job) -> None:
        reason = self._jail.over_quota(child.serial, child.pid, job.limits)
        if reason is not None and job.verdict is None:
            job.verdict, job.detail = reason
            self._nursery.kill(child)


def _on_child(*_: object) -> None:
    """Only there so that the wake-up descriptor is written to."""
