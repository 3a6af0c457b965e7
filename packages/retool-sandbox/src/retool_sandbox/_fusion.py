"""SandboxFusion's request and reply, so that its clients (verl's tool) can use this service."""

from dataclasses import replace
from typing import Any

from ._types import Limits, Outcome, RunResult
from ._wire import BadRequestError


def fusion_limits(data: dict[str, Any], default: Limits, ceiling: Limits) -> Limits:
    """Read `run_timeout` and `memory_limit_MB`; more than the ceiling becomes the ceiling.

    Raises:
        BadRequestError: They are no numbers > 0.
    """
    wall_time_s = data.get("run_timeout")
    memory_mib = data.get("memory_limit_MB")
    limits = default
    try:
        if wall_time_s is not None:
            limits = replace(limits, wall_time_s=min(float(wall_time_s), ceiling.wall_time_s))
        if memory_mib is not None and int(memory_mib) > 0:  # -1: no limit of the client's
            limits = replace(limits, memory_mib=max(16, min(int(memory_mib), ceiling.memory_mib)))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(str(error)) from None
    return limits


def fusion_reply(result: RunResult | None, message: str) -> dict[str, Any]:
    """The reply in SandboxFusion's form; without a result the sandbox did not run the program."""
    reply: dict[str, Any] = {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }
    if result is None:
        return reply
    timed_out = result.outcome is Outcome.TIMED_OUT
    stderr = result.stderr
    if result.detail is not None:
        stderr = f"{stderr}{result.detail}\n"
    code = result.exit_code
    if code is None and not timed_out:
        code = -result.signal if result.signal else 1
    reply["status"] = "Success" if result.ok else "Failed"
    reply["run_result"] = {
        "status": "TimeLimitExceeded" if timed_out else "Finished",
        "execution_time": result.wall_time_s,
        "return_code": code,
        "stdout": result.stdout,
        "stderr": stderr,
    }
    return reply
