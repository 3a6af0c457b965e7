"""Group 7: links between the devices, free ports, and a collective that ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from retool_trainer.platform import get_platform

from ._devices import device_ids
from ._finding import Case, Finding, fail, judge, not_applicable
from ._machine import TIMED_OUT

_ALL_REDUCE_TIMEOUT_S = 180.0
_HCCN_TOOL = "usr/local/Ascend/driver/tools/hccn_tool"


def check_network(case: Case) -> Iterator[Finding]:
    """hccn_tool's view of each device, the ports of the plan, an all-reduce of two ranks."""
    if case.config.platform == "npu":
        yield from _links(case)
    else:
        yield not_applicable(7, "links", f"platform {case.config.platform} has no hccn_tool")
    yield _ports(case)
    yield _all_reduce(case)


def _links(case: Case) -> Iterator[Finding]:
    devices = device_ids(case.machine.root)[: case.num_devices]
    several = case.plan.nodes > 1
    tool = _hccn_tool(case.machine.root)
    first = case.machine.run([tool, "-i", str(min(devices, default=0)), "-link", "-g"])
    if first is None:
        yield (
            fail(7, "links", "hccn_tool is not there", "mount the driver; docker/README.md")
            if several
            else not_applicable(7, "links", "hccn_tool is not there; one node works without it")
        )
        return
    if first.code == TIMED_OUT:
        # The others would not answer either, and each of them costs as long.
        yield fail(7, "links", f"hccn_tool: {first.text}", "the driver hangs; look at group 2")
        return
    down: list[str] = []
    without_address: list[str] = []
    tls: set[str] = set()
    for device in devices:
        link = case.machine.run([tool, "-i", str(device), "-link", "-g"])
        if link is None or "UP" not in link.text:
            down.append(str(device))
        address = case.machine.run([tool, "-i", str(device), "-ip", "-g"])
        if address is None or not re.search(r"ipaddr:\s*\d+\.\d+\.\d+\.\d+", address.text):
            without_address.append(str(device))
        state = case.machine.run([tool, "-i", str(device), "-tls", "-g"])
        match = re.search(r"tls switch\[(\d)\]", state.text) if state else None
        tls.add(match[1] if match else "?")
    for subject, bad, what in (
        ("links", down, "link down"),
        ("addresses", without_address, "no address"),
    ):
        if bad and not several:
            yield not_applicable(7, subject, f"{what} on {', '.join(bad)}; one node needs none")
        else:
            yield judge(
                7,
                subject,
                not bad,
                f"{what} on device {', '.join(bad)}" if bad else f"{len(devices)} devices",
                "check cables and switch, then set it with `hccn_tool -i N -ip -s ...`",
            )
    yield judge(
        7,
        "TLS",
        len(tls) <= 1,
        f"switch {', '.join(sorted(tls))}",
        "all devices of all nodes need the same: `hccn_tool -i N -tls -s enable 0`",
    )


def _hccn_tool(root: Path) -> str:
    """It comes with the driver, which need not be on the PATH."""
    file = root / _HCCN_TOOL
    return str(file) if file.is_file() else "hccn_tool"


def _ports(case: Case) -> Finding:
    config = case.config
    wanted: dict[int, str] = {}
    ports = config.ports
    if case.plan.nodes > 1:
        wanted |= {ports.ray: "ports.ray", ports.dashboard: "ports.dashboard"}
    for key in ("policy", "weights"):
        value = getattr(ports, key)
        if value is not None:
            wanted[value] = f"ports.{key}"
    if ports.engine is not None:
        for index in range(config.engine.replicas):
            wanted[ports.engine + index] = "ports.engine"
    if config.platform == "npu":
        for key in ("hccl_host", "hccl_device"):
            first, last = (int(part) for part in getattr(ports, key).split("-"))
            wanted |= dict.fromkeys(range(first, last + 1), f"ports.{key}")
        wanted[16666] = "HCCL's default"
    if not wanted:
        return not_applicable(7, "ports", "the run takes free ones")
    busy = sorted(port for port in _listening(case.machine.root) if port in wanted)
    return judge(
        7,
        "ports",
        not busy,
        ", ".join(f"{port} ({wanted[port]}) is taken" for port in busy)
        if busy
        else f"{len(wanted)} free",
        "end what listens there (`ss -ltnp`), or choose another in `ports`",
    )


def _listening(root: Path) -> set[int]:
    """Ports in state LISTEN (0A) of /proc/net/tcp and tcp6."""
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / "proc" / "net" / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A":
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _all_reduce(case: Case) -> Finding:
    """In processes of their own, killed at the deadline: HCCL's own patience is two hours."""
    platform = get_platform(case.config.platform)
    if case.config.policy.world_size == 1:
        return not_applicable(7, "all-reduce", "the policy is one process")
    module = "retool_trainer.launch.doctor.all_reduce"
    reply = case.machine.run(
        ["python", "-m", module, platform.name], timeout_s=_ALL_REDUCE_TIMEOUT_S
    )
    subject = f"all-reduce over {platform.collective_backend}"
    if reply is not None and reply.code == 0 and "all-reduce ok" in reply.text:
        return judge(7, subject, True, reply.text.strip().splitlines()[-1], "")
    said = reply.text.strip().rpartition("\n")[2][:200] if reply else "no python"
    return fail(7, subject, said, "groups 2 to 5 first; then links, TLS and firewall")
