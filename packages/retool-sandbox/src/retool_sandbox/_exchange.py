"""Turn a call into a request to the zygote, and its answer into a result."""

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from ._errors import RunLost, SandboxError
from ._policy import Policy
from ._text import join_cut
from ._types import Limits, Outcome, RunResult
from ._worker import Answer


@functools.lru_cache(maxsize=64)
def _limits_json(limits: Limits) -> dict[str, Any]:
    return asdict(limits)  # 15 us, a tenth of what a session's turn costs us


def make_request(
    limits: Limits,
    files: Mapping[str, str | bytes] | None,
    seed: int | None,
    policy: Policy | None,
) -> dict[str, Any]:
    """The head of a request.

    Raises:
        ValueError: A file's name leads out of the scratch, or is no text.
    """
    names = list(files or ())
    for name in names:
        name.encode()  # a lone surrogate names no file; this, too, raises ValueError
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ValueError(f"a file name must be a relative path without '..', got {name!r}")
    return {
        "op": "run",
        "limits": _limits_json(limits),
        "files": names,
        "seed": seed,
        "policy": policy.to_config() if policy is not None else None,
    }


def make_blobs(
    code: str, stdin: str | bytes, files: Mapping[str, str | bytes] | None, limits: Limits
) -> list[bytes]:
    """What travels behind the head: code, stdin, then the files in the order of their names.

    Raises:
        ValueError: It is more than half of the memory limit, and the program would die of reading
            it: for a moment it holds what it reads and the files in the scratch.
    """
    contents = (code, stdin, *(files or {}).values())
    blobs = [
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        for text in contents
    ]
    size_mib = sum(map(len, blobs)) / 2**20
    if size_mib > limits.memory_mib / 2:
        raise ValueError(
            f"code, stdin and files are {size_mib:.1f} MiB, more than half of the limit "
            f"memory_mib={limits.memory_mib}; raise it to {math.ceil(2 * size_mib)} at least"
        )
    return blobs


def make_result(answer: Answer, level: str, *, lost: bool = False) -> RunResult:
    """What an answer says of the run.

    Raises:
        SandboxError: The run could not be started.
        RunLost: It was cancelled, killed from outside, or never began.
    """
    head, blobs = answer
    if head["outcome"] == "broken":
        raise SandboxError(f"the zygote could not start the run: {head['detail']}")
    if head["outcome"] in ("cancelled", "lost", "not_started"):
        raise RunLost(head["detail"] or "the run was cancelled")
    out_head, out_tail, err_head, err_tail, value, trace = blobs
    cut_out, cut_err = head["cut"]
    cuts = {
        "stdout": cut_out > 0,
        "stderr": cut_err > 0,
        "value": head["cut_value"],
        "traceback": head["cut_traceback"],
    }
    return RunResult(
        outcome=Outcome(head["outcome"]),
        stdout=join_cut(out_head, out_tail, cut_out),
        stderr=join_cut(err_head, err_tail, cut_err),
        value=value.decode("utf-8", "replace") if head["has_value"] else None,
        traceback=trace.decode("utf-8", "replace") if head["has_traceback"] else None,
        exit_code=head["exit_code"],
        signal=head["signal"],
        wall_time_s=head["wall"],
        cpu_time_s=head["cpu"],
        peak_memory_mib=head["peak"],
        truncated=tuple(name for name, cut in cuts.items() if cut),
        isolation=level,
        detail=head["detail"],
        state_lost=lost,
    )
