"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retool_trainer.config import RunConfig
from retool_trainer.launch._plan import Plan

from ._machine import Machine

Status = Literal["ok", "FAIL", "n/a"]

GROUPS = {
    1: "machine",
    2: "driver",
    3: "device nodes",
    4: "vendor toolkit",
    5: "versions",
    6: "environment",
    7: "network",
    8: "room",
    9: "model and data",
    10: "devices in use",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, what was measured, and what to do if it is wrong."""

    group: int
    subject: str
    status: Status
    measured: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What every check is given."""

    machine: Machine
    config: RunConfig
    plan: Plan
    run_folder: str

    @property
    def num_devices(self) -> int:
        """Devices of this node that the run uses."""
        return self.plan.devices_per_node


def ok(group: int, subject: str, measured: str) -> Finding:
    """It is as it has to be."""
    return Finding(group=group, subject=subject, status="ok", measured=measured)


def fail(group: int, subject: str, measured: str, advice: str) -> Finding:
    """It is not, and this is the next step."""
    return Finding(group=group, subject=subject, status="FAIL", measured=measured, advice=advice)


def not_applicable(group: int, subject: str, why: str) -> Finding:
    """There is nothing to check."""
    return Finding(group=group, subject=subject, status="n/a", measured=why)


def judge(group: int, subject: str, good: bool, measured: str, advice: str) -> Finding:
    """`ok` or `fail` by a condition."""
    return ok(group, subject, measured) if good else fail(group, subject, measured, advice)


def numbers(version: str) -> tuple[int, ...]:
    """`2.10.0.post4` -> (2, 10, 0): the leading numbers, for comparing."""
    found: list[int] = []
    for part in version.replace("+", ".").split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)
