"""How a run ended: from its exit status, the kernel's counters and our own clock."""

import os
import signal
import time
from typing import Any

from ._cgroups import NoSlots, Slots
from ._child import Child, Job
from ._program import CUT_TRACEBACK, CUT_VALUE, HAS_TRACEBACK, HAS_VALUE, REFUSED, REPORT

Answer = tuple[dict[str, Any], tuple[bytes, ...]]


def judge_exit(
    child: Child, job: Job, status: int, cpu_s: float, slots: Slots | NoSlots, *, filters: bool
) -> int:
    """Set the verdict of a job whose process ended, unless the supervisor ended it.

    Returns:
        The wait status to report: a suicide by SIGKILL is made visible by the filter as SIGSYS.
    """
    if job.verdict is not None:
        return status
    if child.unread and job.fresh:
        # Whatever ended it, it was not the program. A set-up that fails shows here, too.
        job.verdict = "not_started"
        job.detail = job.stderr.parts()[0].decode("utf-8", "replace") or "a child did not start"
        return status
    if not os.WIFSIGNALED(status):
        return status
    number = os.WTERMSIG(status)
    if slots.was_oom(child.slot):
        job.verdict = "out_of_memory"
        job.detail = f"killed at {job.limits['memory_mib']} MiB"
    elif number in (signal.SIGXCPU, signal.SIGKILL) and cpu_s >= job.cpu_limit:
        job.verdict = "timed_out"
        job.detail = f"killed after {job.cpu_limit:g} s of CPU time"
    elif number == signal.SIGKILL and filters and not child.fork:
        job.verdict = "lost"
        job.detail = "the program's process was killed from outside"
    else:
        if number == signal.SIGSYS and filters:
            number = signal.SIGKILL  # its own, see _seccomp
            status = number
        job.verdict = "died"
        job.detail = f"killed by signal {number} ({signal.Signals(number).name})"
    return status


def answer(child: Child, job: Job, status: int, cpu_s: float, peak_mib: float) -> Answer:
    """The head and the blobs that tell the caller of a job."""
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
    head = {
        "op": "result",
        "id": job.job_id,
        "outcome": job.verdict or ("ok" if code == 0 and not flags & HAS_TRACEBACK else "failed"),
        "exit_code": code,
        "signal": number,
        "wall": time.monotonic() - job.started,
        "cpu": cpu_s,
        "peak": peak_mib,
        "cut": [job.stdout.cut_bytes, job.stderr.cut_bytes],
        "cut_value": bool(flags & CUT_VALUE),
        "cut_traceback": bool(flags & CUT_TRACEBACK),
        "has_value": bool(flags & HAS_VALUE),
        "has_traceback": bool(flags & HAS_TRACEBACK),
        "detail": job.detail,
        "fresh": job.fresh,
        "over": child.ended,
    }
    return head, (*job.stdout.parts(), *job.stderr.parts(), value, trace)
