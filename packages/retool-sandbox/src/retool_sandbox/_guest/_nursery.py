"""Every child of the zygote: forked, kept as a spare, limited, killed, reaped and buried."""

import contextlib
import gc
import os
import resource
import select
import signal
import time
from collections.abc import Iterator
from typing import Any

from ._cgroups import NoSlots, Slots
from ._child import Child, InChild, Setup
from ._rungs import Jail

REFILL_PAUSE_S = 0.5
REFILL_QUIET_S = 0.005  # a fork takes the zygote a millisecond: not while a run waits for it


class Nursery:
    """Forks children ahead of time and knows each of them until it is buried."""

    def __init__(
        self,
        jail: Jail,
        slots: Slots | NoSlots,
        epoll: select.epoll,
        num_spares: int,
        limits: dict[str, Any],
    ) -> None:
        self.spares: list[Child] = []
        self.by_link: dict[int, Child] = {}
        self._jail = jail
        self._slots = slots
        self._epoll = epoll
        self._num_spares = num_spares
        self._spare_profile = jail.profile(limits)
        self._children: dict[int, Child] = {}
        self._inits: dict[int, tuple[Any, Any]] = {}
        """Slot and stack that are free again once the init of a pid namespace is gone."""
        self._stacks: list[Any] = []
        self._serial = 0
        self._last_take = 0.0
        self._pause_until = 0.0

    def __len__(self) -> int:
        return len(self._children)

    # -- spares --------------------------------------------------------------------------------

    def take(self, profile: dict[str, Any], session: bool) -> Child:
        """A child for a run: a spare where one fits, else a fresh fork.

        Raises:
            OSError: No process, descriptor or cgroup could be had.
        """
        self._last_take = time.monotonic()
        if not session and profile == self._spare_profile:
            while self.spares:
                child = self.spares.pop()
                if not child.ended:
                    return child
        return self._fork(profile, session)

    def due(self, num_running: int) -> float | None:
        """When the next spare should be forked; None when there are enough.

        Not right after a run has started, so that its end is not kept waiting by a fork; but at
        once when nothing runs or more than one, and no spare is left for the next.
        """
        if len(self.spares) >= self._num_spares:
            return None
        at_once = not self.spares and num_running != 1
        return max(0.0 if at_once else self._last_take + REFILL_QUIET_S, self._pause_until)

    def refill(self, num_running: int) -> None:
        """Fork one spare if it is due: a request that comes meanwhile waits for one fork only."""
        due = self.due(num_running)
        now = time.monotonic()
        if due is None or now < due:
            return
        try:
            self.spares.append(self._fork(self._spare_profile, False))
        except OSError:
            self._pause_until = now + REFILL_PAUSE_S  # no processes or files left for now

    def renew_spares(self) -> None:
        """End the spares; the next ones are forked from what the zygote is now."""
        for child in self.spares:
            self.kill(child)
        self.spares.clear()

    # -- one child -----------------------------------------------------------------------------

    def _fork(self, profile: dict[str, Any], session: bool) -> Child:
        self._serial += 1
        serial = self._serial
        fds: list[int] = []
        slot = None
        init_pid = 0
        try:
            fds += socket_pair()
            fds += os.pipe2(os.O_CLOEXEC)
            fds += os.pipe2(os.O_CLOEXEC)
            slot = self._slots.take()
            self._jail.prepare_child(serial)
            init_pid, stack = self._jail.new_pid_namespace(self._stacks)
            if init_pid:
                self._inits[init_pid] = slot, stack
            gc.freeze()  # out of the child's sight, and not to be looked at by its collector
            pid = os.fork()
        except OSError:
            for fd in fds:
                os.close(fd)
            self._jail.abandon_pid_namespace()
            self._jail.forget(serial)
            if init_pid:
                send_signal(init_pid, signal.SIGKILL)
            elif slot is not None:
                self._slots.give_back(slot)
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
            serial, pid, (link, out, err), init_pid, slot, session=session, fork=profile["fork"]
        )
        self._children[pid] = child
        self.by_link[link] = child
        self._epoll.register(link, select.EPOLLIN)
        return child

    def limit(self, child: Child, limits: dict[str, Any]) -> None:
        """Set the ceilings of one run or turn, and start a new peak of memory.

        Raises:
            OSError: It holds more than it may, or it just died.
        """
        if limits != child.limits:
            self._jail.limit_process(child.pid, limits, session=child.session)
            self._slots.limit(child.slot, limits)
            child.limits = limits
        self._slots.start_peak(child.slot)

    def kill(self, child: Child) -> None:
        """End it and all that lives in its pid namespace."""
        for pid in (child.init_pid, child.pid):
            if pid and not child.ended:
                send_signal(pid, signal.SIGKILL)

    def reap(self) -> Iterator[tuple[Child, int, resource.struct_rusage]]:
        """Children that ended since the last call, each with wait status and usage."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._inits:
                slot, stack = self._inits.pop(pid)
                # Not earlier: files in the scratch are charged to the slot as long as the init
                # keeps their mount.
                self._slots.give_back(slot)
                self._stacks.append(stack)
                continue
            child = self._children.pop(pid, None)
            if child is not None:
                child.ended = True
                if child.init_pid:
                    send_signal(child.init_pid, signal.SIGKILL)
                yield child, status, usage

    def bury(self, child: Child) -> None:
        """Free all that a reaped child held."""
        self.drop_link(child)
        if child in self.spares:
            self.spares.remove(child)
            self._pause_until = time.monotonic() + REFILL_PAUSE_S  # do not fork it to death
        for fd in (child.link, child.out, child.err):
            os.close(fd)
        if not child.init_pid:
            self._slots.give_back(child.slot)
        self._jail.forget(child.serial)

    def drop_link(self, child: Child) -> None:
        """Listen to it no longer."""
        if child.link_open:
            child.link_open = False
            self.by_link.pop(child.link, None)
            with contextlib.suppress(OSError):
                self._epoll.unregister(child.link)


def send_signal(pid: int, number: int) -> None:
    """Signal a child that may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def cpu_time_s(child: Child) -> float:
    """CPU seconds of a living child, all threads together; 0 when it is gone."""
    try:
        return time.clock_gettime(((~child.pid) << 3) | 2)
    except OSError:
        return 0.0


def socket_pair() -> tuple[int, int]:
    """A connected pair as bare numbers: no socket object for a program to find."""
    import _socket

    left, right = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
    return left.detach(), right.detach()
