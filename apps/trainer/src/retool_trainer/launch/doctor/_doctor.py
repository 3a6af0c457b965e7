"""Run all ten groups of checks; report, never repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from retool_trainer.config import RunConfig
from retool_trainer.launch._plan import make_plan

from ._devices import check_device_nodes, check_driver, check_toolkit, check_use
from ._finding import GROUPS, Case, Finding
from ._host import check_environment, check_machine, check_room
from ._machine import Machine
from ._network import check_network
from ._software import check_model, check_versions

_CHECKS: Sequence[Callable[[Case], Iterator[Finding]]] = (
    check_machine,
    check_driver,
    check_device_nodes,
    check_toolkit,
    check_versions,
    check_environment,
    check_network,
    check_room,
    check_model,
    check_use,
)


def examine(config: RunConfig, machine: Machine, run_folder: str) -> list[Finding]:
    """All findings, in the order of the groups.

    Args:
        config: The run to be started on this machine.
        machine: What to look at.
        run_folder: Where the run would write.
    """
    case = Case(
        machine=machine,
        config=config,
        plan=make_plan(config, environment=machine.environment),
        run_folder=run_folder,
    )
    return [finding for check in _CHECKS for finding in check(case)]


def render(findings: Sequence[Finding]) -> str:
    """One line per finding, below a heading per group; a failing line says what to do."""
    lines: list[str] = []
    group = 0
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        if finding.group != group:
            group = finding.group
            lines.append(f"{group:2}  {GROUPS[group]}")
        line = f"    {finding.status:<5} {finding.subject:<{width}}  {finding.measured}"
        lines.append(line + (f"; {finding.advice}" if finding.advice else ""))
    failed = sum(finding.status == "FAIL" for finding in findings)
    lines.append(f"{failed} of {len(findings)} checks failed" if failed else "all checks passed")
    return "\n".join(lines) + "\n"
