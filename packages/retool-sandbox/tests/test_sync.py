"""The synchronous facade, and the values that are checked at birth."""

import signal
import time
from typing import Any

import pytest

from retool_sandbox import Limits, Outcome, Policy, Sandbox, SandboxError, SyncSandbox


def test_synchronous_facade_runs_and_keeps_sessions() -> None:
    with SyncSandbox(tier="stdlib", concurrency=1, spares=0) as sandbox:
        assert sandbox.run("1 + 1").value == "2"
        with sandbox.session() as session:
            session.run("x = 5")
            assert session.run("x").value == "5"
            refused = session.run("import os", policy=Policy.strict())
            assert refused.outcome is Outcome.REFUSED
    with pytest.raises(SandboxError, match="not open"):
        sandbox.run("1")


def test_interrupted_caller_takes_its_program_with_it() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with SyncSandbox(tier="stdlib", concurrency=1, spares=0) as sandbox:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                sandbox.run("import time\ntime.sleep(60)", limits=Limits(wall_time_s=60.0))
            started = time.monotonic()
            assert sandbox.run("1").value == "1"
            assert time.monotonic() - started < 20
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("field", "value"),
    [("wall_time_s", 0), ("wall_time_s", float("inf")), ("memory_mib", 1), ("processes", 0),
     ("wall_time_s", 1e20), ("memory_mib", 10**15), ("output_kib", 300_000), ("output_kib", 1.5),
     ("cpu_time_s", -1.0), ("threads", True)],
)  # fmt: skip
def test_limits_reject_bad_values_at_birth(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})


@pytest.mark.parametrize(
    "arguments",
    [{"tier": "gpu"}, {"isolation": "vm"}, {"concurrency": 0}, {"max_sessions": 0}],
)
def test_sandbox_rejects_bad_arguments_at_birth(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Sandbox(**arguments)
