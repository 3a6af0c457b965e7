"""Workers that answer one question at a time and are killed when they take too long."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from ._equal import Verdict
from ._types import Reason
from ._worker import GOLD_READ, TAKEN

# The server imports sympy: a second on a quiet machine, many on one that is full.
_START_TIME_S = 60.0
_CONTROL_TIME_S = 20.0
_TAKE_TIME_S = 20.0
# A question's time is the worker's own, on the processor: on a machine that is full the same answer
# gets the same verdict. By the clock it may take so many times as long.
_PATIENCE = 5.0
_LEAST_WAIT_S = 0.01


class GraderError(RuntimeError):
    """The grader's own machinery did not work. Never a verdict on an answer."""


class ServerFailedError(GraderError):
    """The fork server died or did not answer, and its workers with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What became of a question: a verdict, or why there is none."""

    verdict: Verdict | None
    reason: Reason


class Server:
    """The fork server: starts, kills and reaps workers. Use from one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.failed = False
        """Whether it died or did not answer; its workers are lost, and it is of no more use."""
        self._control = ours
        self._control.settimeout(_START_TIME_S)
        # -I would hide the caller's path entries, so they are handed over; nothing else is.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from retool_reward._forkserver import main; main()"
        )
        environment = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
            if name in os.environ
        }
        # An arena of malloc for every thread takes 64 MiB of a worker's address space unused.
        environment["MALLOC_ARENA_MAX"] = "1"
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # ^C in a terminal is the caller's to handle
                )
            except OSError as error:
                ours.close()
                raise GraderError(f"the grader's fork server did not start: {error}") from error

    @property
    def closed(self) -> bool:
        """Whether the server was told to end."""
        return self._control.fileno() < 0

    def fork(self, memory_mib: int) -> tuple[int, socket.socket]:
        """Start a worker; return its pid and the socket it serves."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"fork %d" % memory_mib], [theirs.fileno()])
                pid = int(self._reply())
            except (OSError, ValueError) as error:
                ours.close()
                raise self._failure(f"did not fork ({error})") from error
        self._control.settimeout(_CONTROL_TIME_S)
        return pid, ours

    def kill(self, pid: int) -> None:
        """Kill and reap a worker."""
        try:
            self._control.sendall(b"kill %d" % pid)
            self._reply()
        except OSError as error:
            raise self._failure(f"did not kill {pid} ({error})") from error

    def _failure(self, what: str) -> ServerFailedError:
        """End this server: a late reply would be taken for the next one."""
        code = self._process.poll()
        self.failed = True
        self._process.kill()
        return ServerFailedError(
            f"the grader's fork server {what}; its exit code is {code}; run "
            "`python -m retool_reward._forkserver` to see why"
        )

    def _reply(self) -> bytes:
        reply = self._control.recv(64)
        if not reply.endswith(b"\n"):
            raise OSError("it hung up")
        return reply

    def abandon(self) -> None:
        """Close our end without ending the server, which is another process's child."""
        self._control.close()

    def close(self) -> None:
        """End the server and every worker; wait until they are gone."""
        with suppress(OSError):  # it hangs up also where a forked process holds a copy
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(_CONTROL_TIME_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Worker:
    """One worker, respawned after every kill. One question at a time."""

    def __init__(self, server: Server, lock: threading.Lock, memory_mib: int) -> None:
        self.server = server
        self._lock = lock  # of the server's control socket
        self._memory_mib = memory_mib
        self._pid = 0
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The worker's process id; 0 while there is none."""
        return self._pid

    def ask(self, pred: str, gold: str, *, decimal_places: int, time_s: float) -> Asked:
        """Ask one question and wait for its answer, at most `time_s` of the worker's own time.

        Raises:
            GraderError: The machinery failed, not the question.
        """
        for _ in range(2):  # a worker that died while idle is replaced, once
            connection = self._started()
            try:
                connection.settimeout(_TAKE_TIME_S)
                connection.sendall(json.dumps([pred, gold, decimal_places]).encode() + b"\n")
                asked = self._wait(connection, time_s)
            except OSError as error:
                if self.server.closed:
                    raise GraderError("the grader was closed") from error
                asked = None
            except BaseException:
                self.kill()  # an interrupted question must not be answered to the next one
                raise
            if asked is not None:
                return asked
            self.kill()
        raise GraderError("two workers in a row died before they took a question")

    def _wait(self, connection: socket.socket, time_s: float) -> Asked | None:
        """Return what became of the question; None if the worker died before it took it."""
        received = b""
        clock: _Clock | None = None
        left_s = _TAKE_TIME_S
        while not received.endswith(b"\n"):
            chunk = _received(connection, left_s)
            if clock is not None:
                left_s = clock.left_s()
            if chunk is None:
                if clock is None:
                    return None
                if left_s > _LEAST_WAIT_S:
                    continue
                self.kill()
                late = Reason.TIMEOUT if GOLD_READ in received else Reason.GOLD_UNPARSABLE
                return Asked(verdict=None, reason=late)
            if not chunk and self.server.closed:
                raise GraderError("the grader was closed")
            if not chunk and clock is None:
                return None
            if not chunk:  # killed by the kernel, or out of memory where Python could not say so
                self.kill()
                return Asked(verdict=None, reason=Reason.OUT_OF_MEMORY)
            received += chunk
            if clock is None and received.startswith(TAKEN):
                clock = _Clock(self._pid, time_s)
                left_s = clock.left_s()
        return self._read(received)

    def _read(self, received: bytes) -> Asked:
        reply = json.loads(received[received.index(b"{") :])
        error = reply.get("error")
        if error == "out_of_memory":
            self.kill()  # what a MemoryError left behind is not worth keeping
            return Asked(verdict=None, reason=Reason.OUT_OF_MEMORY)
        if error is not None:
            # sympy gave up on these terms: not equal as far as anybody can tell
            return Asked(verdict=Verdict(None, "symbolic"), reason=Reason.MISMATCH)
        layer = "symbolic" if reply["layer"] == "value" else str(reply["layer"])
        verdict = Verdict(reply["same"], layer, bool(reply["gold_unparsable"]))
        return Asked(verdict=verdict, reason=Reason.MATCH if verdict.same else Reason.MISMATCH)

    def _started(self) -> socket.socket:
        if self._socket is None:
            with self._lock:
                self._pid, self._socket = self.server.fork(self._memory_mib)
        return self._socket

    def abandon(self) -> None:
        """Close our end; the server is gone, or another process's child."""
        if self._socket is not None:
            self._socket.close()

    def kill(self) -> None:
        """Kill the worker; the next question gets a new one."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        pid, self._pid = self._pid, 0
        with self._lock:
            if not (self.server.closed or self.server.failed):  # with the server its workers end
                self.server.kill(pid)


class _Clock:
    """How long a worker may go on with its question."""

    def __init__(self, pid: int, time_s: float) -> None:
        self._pid, self._time_s = pid, time_s
        self._began_s, self._cpu_began_s = time.monotonic(), self._cpu_s()

    def left_s(self) -> float:
        """What is left if the worker gets a whole processor from now on."""
        passed_s, cpu_s = time.monotonic() - self._began_s, self._cpu_s()
        if cpu_s is None or self._cpu_began_s is None:
            return self._time_s - passed_s
        own_s = cpu_s - self._cpu_began_s
        return min(self._time_s - own_s, self._time_s * _PATIENCE - passed_s)

    def _cpu_s(self) -> float | None:
        """Its time on the processor so far; None where the system does not tell."""
        with suppress(OSError):
            # Linux: the clock of a process, as clock_getcpuclockid(3) names it.
            return time.clock_gettime(~self._pid << 3 | 2)
        return None


def _received(connection: socket.socket, time_s: float) -> bytes | None:
    """Return what arrives, or None if the time is over. `select` refuses descriptors over 1,023."""
    connection.settimeout(max(time_s, 1e-3))
    try:
        return connection.recv(65536)
    except TimeoutError:
        return None


class Pool:
    """Some workers behind a fork server, for any number of threads. Starts when first asked."""

    def __init__(self, workers: int, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._slots = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._control = threading.Lock()
        self._server: Server | None = None
        self._idle: list[Worker] = []
        self._workers: list[Worker] = []
        self._closed = False
        _pools.add(self)

    def ask(self, pred: str, gold: str, *, decimal_places: int, time_s: float) -> Asked:
        """Ask the first worker that is free; see `Worker.ask`."""
        with suppress(ServerFailedError):
            return self._ask_once(pred, gold, decimal_places, time_s)
        # A server that the kernel killed is replaced; a second failure is the caller's.
        return self._ask_once(pred, gold, decimal_places, time_s)

    def _ask_once(self, pred: str, gold: str, decimal_places: int, time_s: float) -> Asked:
        with self._slots:
            worker = self._take()
            try:
                return worker.ask(pred, gold, decimal_places=decimal_places, time_s=time_s)
            finally:
                with self._lock:
                    if worker.server is self._server:
                        self._idle.append(worker)

    def _take(self) -> Worker:
        with self._lock:
            if self._closed:
                raise GraderError("the grader is closed")
            if self._server is not None and self._server.failed:
                self._server.close()
                self._server, self._idle, self._workers = None, [], []
            if self._server is None:
                self._server = Server()
            if self._idle:
                return self._idle.pop()
            worker = Worker(self._server, self._control, self._memory_mib)
            self._workers.append(worker)
            return worker

    def abandon(self) -> None:
        """Close for good in a child made by fork: the processes and sockets are its parent's."""
        self._lock = threading.Lock()  # another thread may have held it when the fork happened
        self._closed = True
        if self._server is not None:
            self._server.abandon()
        for worker in self._workers:
            worker.abandon()

    def close(self) -> None:
        """End every process of the pool."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
            workers, self._workers = self._workers, []
        if server is not None:
            with self._control:
                server.close()
            for worker in workers:
                worker.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_pools = weakref.WeakSet[Pool]()


def _abandon_pools() -> None:
    for pool in list(_pools):
        pool.abandon()


os.register_at_fork(after_in_child=_abandon_pools)
