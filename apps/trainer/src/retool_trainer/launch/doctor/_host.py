"""Groups 1, 6 and 8: the machine, the environment, and the room that a run needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retool_trainer.launch._versions import MAX_PYTHON, MIN_PYTHON, NPU_MIN_GLIBC
from retool_trainer.platform import get_platform

from ._finding import Case, Finding, fail, judge, not_applicable, numbers, ok

# Ray keeps several sockets per process of the cluster.
_MIN_OPEN_FILES = 65_535


def check_machine(case: Case) -> Iterator[Finding]:
    """Architecture, C library, Python."""
    machine = case.machine
    architecture = machine.architecture()
    yield judge(
        1,
        "architecture",
        architecture in {"x86_64", "aarch64"},
        architecture,
        "wheels exist for x86_64 and aarch64 only",
    )
    glibc = machine.glibc()
    if case.config.platform == "npu":
        yield judge(
            1,
            "glibc",
            numbers(glibc) >= NPU_MIN_GLIBC,
            glibc or "another C library",
            f"vllm-ascend needs glibc >= {NPU_MIN_GLIBC[0]}.{NPU_MIN_GLIBC[1]}; use the image of "
            "docker/npu.Dockerfile",
        )
    else:
        yield ok(1, "glibc", glibc or "another C library")
    python = machine.python()
    yield judge(
        1,
        "Python",
        MIN_PYTHON <= python <= MAX_PYTHON,
        f"{python[0]}.{python[1]}",
        f"use {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or {MAX_PYTHON[0]}.{MAX_PYTHON[1]}",
    )


def check_environment(case: Case) -> Iterator[Finding]:
    """Contradictions, foreign values of our variables, proxies."""
    environment = case.machine.environment
    platform = get_platform(case.config.platform)
    faults = platform.faults(case.config, environment)
    for fault in faults:
        what, _, cure = fault.rpartition("; ")
        yield fail(6, "settings", what or fault, cure or "change it")
    if not faults:
        yield ok(6, "settings", "no contradiction between config and environment")
    foreign = {
        f"{setting.name}={environment[setting.name]}"
        for role in ("driver", "policy", "engine")
        for setting in platform.environment(role, case.config)
        if setting.name != "PYTHONPATH"
        and environment.get(setting.name, setting.value) != setting.value
    }
    yield ok(
        6,
        "variables",
        "the run sets its own values instead of " + ", ".join(sorted(foreign))
        if foreign
        else "none that differs from what the run sets",
    )
    proxies = sorted(
        name
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
        if environment.get(name)
    )
    excepted = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    yield judge(
        6,
        "proxy",
        not proxies or "127.0.0.1" in excepted or excepted == "*",
        ", ".join(proxies) + (f", no_proxy={excepted}" if excepted else "")
        if proxies
        else "none for http",
        "calls to the engines would go through it; export no_proxy=127.0.0.1,localhost,NODES",
    )


def check_room(case: Case) -> Iterator[Finding]:
    """Shared memory, open files, host memory, disk, and where checkpoints go."""
    machine = case.machine
    estimates = {estimate.where: estimate for estimate in case.plan.memory}
    host = estimates.get("host of node 0")
    if host is None:
        yield not_applicable(8, "memory", "the model's sizes are not known yet")
    else:
        sync = next((item.gib for item in host.items if item.name == "weight sync"), 0.0)
        # Ray's object store lives there too (256 MiB), and vLLM's and torch's shared tensors.
        needed = sync + (1.0 if case.config.platform == "cpu" else 8.0)
        shm = machine.free_gib(machine.root / "dev" / "shm")
        yield judge(
            8,
            "/dev/shm",
            shm is not None and shm >= needed,
            "absent" if shm is None else f"{shm:.0f} GiB free, {needed:.0f} needed",
            "start the container with --shm-size=64g, or --ipc=host",
        )
        free = _available_memory_gib(machine.root)
        yield judge(
            8,
            "host memory",
            free is not None and free >= host.total_gib,
            "unknown" if free is None else f"{free:.0f} GiB free, {host.total_gib:.0f} needed",
            "end other jobs, lower sandbox.concurrency, or set optimizer.cpu_offload: false",
        )
    soft, hard = machine.max_open_files()
    # A local Ray raises the soft limit as far as it may; `ray start` leaves it.
    files = max(soft, min(hard, _MIN_OPEN_FILES)) if case.plan.nodes == 1 else soft
    wanted = 4096 if case.config.platform == "cpu" else _MIN_OPEN_FILES
    yield judge(
        8,
        "open files",
        files >= wanted,
        str(files),
        f"ulimit -n {wanted}, or docker run --ulimit nofile={wanted}",
    )
    disk = estimates.get("disk")
    folder = machine.root / case.run_folder.lstrip("/")
    space = machine.free_gib(folder)
    if disk is not None:
        yield judge(
            8,
            "disk",
            space is not None and space >= disk.total_gib,
            "unknown"
            if space is None
            else f"{space:.0f} GiB free at {case.run_folder}, {disk.total_gib:.0f} needed",
            "free some, choose another --run-dir, or lower checkpoints.keep",
        )
    model = case.config.model.path
    if model is None:
        yield not_applicable(8, "run folder", "the model is made from random weights")
    else:
        folder = Path(case.run_folder)
        inside = Path(model).absolute() in (folder, *folder.parents)
        yield judge(
            8,
            "run folder",
            not inside,
            case.run_folder,
            f"checkpoints would go into the model's folder {model}; choose another --run-dir",
        )


def _available_memory_gib(root: Path) -> float | None:
    try:
        text = (root / "proc" / "meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return None
