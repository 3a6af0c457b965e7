"""Run a command and end all of it when the process that started this one is gone.

Started as `python -m retool_trainer.engines._guard COMMAND...` with a pipe as standard input: the
pipe ends however the parent dies, and then the command's whole process group is killed. A server
that is left over would hold its port and, on a device, its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_TERM_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the command of the arguments and return its exit code."""
    child = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_end_with_guard,  # safe: there is no second thread yet
    )

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        _end(child)

    threading.Thread(target=end_with_parent, daemon=True).start()
    code = child.wait()
    # What the command started may outlive it.
    _signal_group(child.pid, signal.SIGKILL)
    return code


def _end_with_guard() -> None:
    """Let the kernel tell the command to end if this guard is killed itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(child: subprocess.Popen[bytes]) -> None:
    _signal_group(child.pid, signal.SIGTERM)
    try:
        child.wait(_TERM_GRACE_S)
    except subprocess.TimeoutExpired:
        _signal_group(child.pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left in it
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())
