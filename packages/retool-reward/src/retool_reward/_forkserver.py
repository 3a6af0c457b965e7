"""A process that holds sympy ready and forks workers; started by exec, so it inherits nothing.

The parent talks to it over one socket: `fork LIMIT_MIB` with a descriptor for the worker to serve,
answered by the worker's pid; `kill PID`, answered when the worker is reaped. When the socket
closes, because the parent closed it or died, every worker is killed and the server ends.
"""

import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE = 64


def main() -> None:
    """Serve the control socket whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # Where they are installed, sympy would import them in the middle of a question: half a second
    # and 250 MiB of a worker.
    for name in ("numpy", "scipy"):
        sys.modules[name] = cast("Any", None)
    for module in ("sympy", "mpmath", "math_verify", "retool_reward._worker"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the workers share these pages: no collection may touch them
    workers: set[int] = set()
    try:
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, _MAX_MESSAGE, 1)
            if not message:
                return
            word, _, argument = message.decode().partition(" ")
            if word == "fork":
                pid = _fork(control, descriptors[0], int(argument))
                os.close(descriptors[0])
                workers.add(pid)
                control.sendall(b"%d\n" % pid)
            else:
                _kill(workers, int(argument))
                control.sendall(b"ok\n")
    finally:
        for pid in list(workers):
            _kill(workers, pid)


def _kill(workers: set[int], pid: int) -> None:
    """Kill and reap one of our children. An unreaped pid cannot belong to anybody else."""
    if pid in workers:
        workers.discard(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(control: socket.socket, descriptor: int, memory_mib: int) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the parent; it hangs up
        control.close()
        _die_with(server)
        worker = importlib.import_module("retool_reward._worker")
        _limit(memory_mib * 2**20, worker.STACK_BYTES)
        worker.serve(socket.socket(fileno=descriptor))
    except BaseException:  # noqa: BLE001 - a forked child must never return into the server's loop
        os._exit(1)
    os._exit(0)


def _die_with(server: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def _limit(memory_bytes: int, stack_bytes: int) -> None:
    # The kernel can limit what is mapped, which is more than what is used: libraries that are never
    # read as a whole, and a stack that only a deep answer fills.
    size = memory_bytes + _untouched_bytes() + stack_bytes
    with suppress(ValueError, OSError):  # not on every platform; the clock still holds
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _untouched_bytes() -> int:
    with suppress(OSError):
        mapped, resident = Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]
        return (int(mapped) - int(resident)) * resource.getpagesize()
    return 0


if __name__ == "__main__":
    main()
