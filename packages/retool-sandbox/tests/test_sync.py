"""The synchronous facade, and the values that are checked at birth."""

from typing import Any

import pytest

from retool_sandbox import Limits, Sandbox, SandboxError, SyncSandbox


def test_synchronous_facade_runs_and_keeps_sessions() -> None:
    with SyncSandbox(tier="stdlib", concurrency=1, spares=0) as sandbox:
        assert sandbox.run("1 + 1").value == "2"
        with sandbox.session() as session:
            session.run("x = 5")
            assert session.run("x").value == "5"
    with pytest.raises(SandboxError, match="not open"):
        sandbox.run("1")


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
