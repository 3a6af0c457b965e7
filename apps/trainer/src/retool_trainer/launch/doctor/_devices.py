"""Groups 2, 3, 4 and 10: driver, device nodes, vendor toolkit, and who else uses the devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from retool_trainer.launch._versions import NPU_CANN, NPU_DRIVER
from retool_trainer.platform import get_platform

from ._finding import Case, Finding, fail, judge, not_applicable, numbers

_ASCEND = "usr/local/Ascend"


def check_driver(case: Case) -> Iterator[Finding]:
    """Is the driver there, of a known version, and does it answer?"""
    if case.config.platform == "npu":
        yield from _npu_driver(case)
    elif case.config.platform == "cuda":
        query = "--query-gpu=index,driver_version --format=csv,noheader"
        reply = case.machine.run(["nvidia-smi", *query.split()])
        lines = reply.text.strip().splitlines() if reply and reply.code == 0 else []
        yield judge(
            2,
            "driver",
            bool(lines),
            lines[0].split(",")[-1].strip() if lines else _said(reply),
            "install the driver, and start the container with --gpus all",
        )
    else:
        yield not_applicable(2, "driver", "the CPU needs none")


def _npu_driver(case: Case) -> Iterator[Finding]:
    file = case.machine.root / _ASCEND / "driver" / "version.info"
    try:
        match = re.search(r"^Version=(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        yield fail(
            2,
            "driver",
            f"/{_ASCEND}/driver/version.info is not there",
            f"mount /{_ASCEND}/driver into the container, or install HDK {NPU_DRIVER}",
        )
    else:
        yield judge(
            2,
            "driver",
            numbers(match[1])[:2] >= numbers(NPU_DRIVER)[:2],
            match[1],
            f"CANN {NPU_CANN} was tested with HDK {NPU_DRIVER}; update the driver on the host",
        )
    reply = case.machine.run(["npu-smi", "info", "-t", "board", "-i", "0"])
    firmware = re.search(r"Firmware Version\s*:\s*(\S+)", reply.text) if reply else None
    advice = "mount npu-smi and /usr/local/dcmi into the container"
    if reply is not None and "-8005" in reply.text:
        advice = "-8005: the container may not open the devices; see docker/README.md"
    yield judge(
        2,
        "npu-smi",
        reply is not None and reply.code == 0 and firmware is not None,
        f"firmware {firmware[1]}" if firmware else _said(reply),
        advice,
    )


def check_device_nodes(case: Case) -> Iterator[Finding]:
    """Do the nodes exist, enough of them, readable and writable?"""
    name = case.config.platform
    if name == "cpu":
        yield not_applicable(3, "device nodes", "the CPU has none")
        return
    probe = get_platform(name).probe(case.machine.root)
    yield judge(
        3,
        "device nodes",
        probe.num_devices >= case.num_devices,
        f"{probe.detail}, {case.num_devices} needed",
        "give the container all of them (--device, or --gpus), or lower devices_per_node",
    )
    pattern = r"davinci\d+" if name == "npu" else r"nvidia\d+"
    folder = case.machine.root / "dev"
    nodes = sorted(p for p in folder.glob("*") if re.fullmatch(pattern, p.name))
    if name == "npu":
        managers = [folder / n for n in ("davinci_manager", "devmm_svm", "hisi_hdc")]
        missing = [f"/dev/{p.name}" for p in managers if not p.exists()]
        yield judge(
            3,
            "manager nodes",
            not missing,
            f"missing {', '.join(missing)}" if missing else "davinci_manager, devmm_svm, hisi_hdc",
            "add them with --device",
        )
        nodes += [p for p in managers if p.exists()]
    if not nodes:
        yield not_applicable(3, "permission", "there is no node to open")
        return
    closed = [p for p in nodes if not case.machine.can_open(p)]
    groups = sorted({p.stat().st_gid for p in closed})
    yield judge(
        3,
        "permission",
        not closed,
        f"no read and write on {', '.join('/dev/' + p.name for p in closed)}"
        if closed
        else f"{len(nodes)} nodes can be read and written",
        f"run as a member of group id {', '.join(map(str, groups))} (docker run --group-add)",
    )


def check_toolkit(case: Case) -> Iterator[Finding]:
    """CANN's version, the chip it sees, and the libraries that have to load."""
    if case.config.platform != "npu":
        yield not_applicable(4, "CANN", f"platform {case.config.platform} has none")
        return
    version = _cann_version(case)
    yield judge(
        4,
        "CANN",
        version == NPU_CANN,
        version or "ascend_toolkit_install.info is not there",
        f"install CANN {NPU_CANN} and its kernels, or use the image of docker/npu.Dockerfile",
    )
    reply = case.machine.run(["python", "-c", "import acl; print(acl.get_soc_name())"])
    soc = reply.text.strip().splitlines()[-1] if reply and reply.code == 0 and reply.text else ""
    yield judge(
        4,
        "chip",
        soc.startswith("Ascend910"),
        soc or _said(reply),
        f"source /{_ASCEND}/ascend-toolkit/set_env.sh; A2 and A3 report Ascend910...",
    )
    for library, advice in (
        ("libhccl.so", "source ascend-toolkit/set_env.sh"),
        ("libatb.so", "source nnal/atb/set_env.sh (vllm-ascend#152)"),
        ("libascend_hal.so", "mount the driver: it is below driver/lib64 (vllm-ascend#1440)"),
    ):
        loaded = case.machine.run(
            ["python", "-c", f"import ctypes; ctypes.CDLL({library!r}); print('loaded')"]
        )
        yield judge(
            4,
            library,
            loaded is not None and loaded.code == 0,
            "loads" if loaded is not None and loaded.code == 0 else _said(loaded),
            advice,
        )


def _cann_version(case: Case) -> str | None:
    named = case.machine.environment.get("ASCEND_TOOLKIT_HOME")
    # Where CANN installs itself: up to 8.3, and since 8.5.
    homes = [named] if named else [f"/{_ASCEND}/ascend-toolkit/latest", f"/{_ASCEND}/cann"]
    name = "ascend_toolkit_install.info"
    for file in (
        case.machine.root / home.lstrip("/") / folder / name
        for home in homes
        for folder in (f"{case.machine.architecture()}-linux", "")
    ):
        try:
            match = re.search(r"^version=(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            continue
        if match:
            return match[1]
    return None


def check_use(case: Case) -> Iterator[Finding]:
    """Processes left on the devices, and their free memory."""
    name = case.config.platform
    if name == "cpu":
        yield not_applicable(10, "processes", "cores are shared by the system")
        return
    if name == "npu":
        reply = case.machine.run(["npu-smi", "info"])
        text = reply.text if reply and reply.code == 0 else ""
        # | 0       0                 | 12345         | python3                  | 61022        |
        rows = re.findall(
            r"^\|\s*(\d+)\s+\d+\s*\|\s*(\d+)\s*\|\s*(\S+)\s*\|\s*(\d+)\s*\|", text, re.MULTILINE
        )
        processes = [f"{process} ({pid}) on NPU {npu}, {mb} MB" for npu, pid, process, mb in rows]
        # ... | 3413 / 65536         |  closes a chip's second line, after its bus id.
        memory = [
            (int(used), int(total))
            for used, total in re.findall(
                r"[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.\d.*?(\d+)\s*/\s*(\d+)\s*\|$",
                text,
                re.MULTILINE,
            )
        ]
    else:
        query = "--query-compute-apps=pid,process_name,used_memory --format=csv,noheader"
        apps = case.machine.run(["nvidia-smi", *query.split()])
        processes = apps.text.strip().splitlines() if apps and apps.code == 0 else []
        query = "--query-gpu=memory.used,memory.total --format=csv,noheader,nounits"
        reply = case.machine.run(["nvidia-smi", *query.split()])
        text = reply.text if reply and reply.code == 0 else ""
        memory = [
            (int(used), int(total))
            for used, total in re.findall(r"^(\d+), (\d+)$", text, re.MULTILINE)
        ]
    if not memory:
        yield fail(10, "processes", _said(reply), "see group 2: its tool does not answer")
        return
    yield judge(
        10,
        "processes",
        not processes,
        "; ".join(processes) if processes else "none on the devices",
        "ask their owner, then `kill PID` (we never do); a dead run's engines end by themselves "
        "after a minute",
    )
    free_gib = min((total - used) / 1024 for used, total in memory)
    needed = max((e.total_gib for e in case.plan.memory if "device" in e.where), default=0.0)
    yield judge(
        10,
        "free memory",
        free_gib >= needed,
        f"{free_gib:.0f} GiB on the fullest of {len(memory)} devices, {needed:.0f} needed",
        "free the devices, or lower engine.memory_fraction or policy.tokens_per_microbatch",
    )


def _said(reply: object) -> str:
    """A command's own words, in one short line."""
    text = getattr(reply, "text", None)
    if text is None:
        return "the command is not there"
    # The last line is where Python and the vendor's tools say what is wrong.
    line = " ".join(str(text).strip().rpartition("\n")[2].split())
    return line[:160] or f"exit code {getattr(reply, 'code', '?')} without a word"


def device_ids(root: Path) -> list[int]:
    """Numbers of the davinci nodes, in order."""
    found = [re.fullmatch(r"davinci(\d+)", path.name) for path in (root / "dev").glob("davinci*")]
    return sorted(int(match[1]) for match in found if match)
