"""Each rung of the ladder, forced in a child that is denied the ones above it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import retool_sandbox
from retool_sandbox._guest import _seccomp as seccomp
from retool_sandbox._guest._cgroups import own_cgroups
from retool_sandbox._guest._syscalls import ALLOWED, NUMBERS

# Runs in a process of its own: denies system calls to itself by a filter, then opens a sandbox.
CHILD = """
import asyncio, json, struct, sys, os
from retool_sandbox._guest import _kernel as kernel
from retool_sandbox import Sandbox, SandboxError
isolation, denied, error, drop = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if drop == "nobody":
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
elif drop == "capabilities":
    kernel.drop_bounding_set(); kernel.clear_capabilities()
code = [(0x20, 0, 0, 0)]
for number in denied:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error)]
code.append((0x06, 0, 0, 0x7FFF0000))
if denied:
    from retool_sandbox._guest import _seccomp
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    _seccomp.install(b"".join(struct.pack("=HBBI", *item) for item in code))
async def main():
    async with Sandbox(tier="stdlib", isolation=isolation, concurrency=1, spares=0) as sandbox:
        result = await sandbox.run("print(6 * 7)")
        checks = [check.name for check in await sandbox.check() if not check.ok]
        return {"level": sandbox.level.value, "stdout": result.stdout, "failed": checks,
                "stamp": result.isolation, "facts": sandbox.facts}
try:
    print(json.dumps(asyncio.run(main())))
except SandboxError as failure:
    print(json.dumps({"error": type(failure).__name__, "text": str(failure)}))
"""
X86 = os.uname().machine == "x86_64"
UNSHARE = [272, 56, 435] if X86 else [97, 220, 435]
LANDLOCK = [444, 445, 446]
EPERM, ENOSYS = 1, 38
is_root = os.geteuid() == 0


def others_may_run_python() -> bool:
    """Whether every folder above the interpreter lets other users through."""
    places = [Path(sys.executable).resolve(), Path(retool_sandbox.__file__).resolve()]
    return all(parent.stat().st_mode & 0o001 for place in places for parent in place.parents)


def start(isolation: str, denied: list[int], error: int = EPERM, drop: str = "") -> dict:
    source = str(Path(retool_sandbox.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, isolation, json.dumps(denied), str(error), drop],
        capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


@pytest.mark.skipif(not is_root, reason="becoming another user needs root")
@pytest.mark.skipif(not others_may_run_python(), reason="this interpreter is in a private home")
def test_unprivileged_user_gets_namespaces_where_the_kernel_allows_them() -> None:
    answer = start("require", [], drop="nobody")
    assert answer.get("level") in ("full", "landlock"), answer
    assert answer["stdout"] == "42\n"
    assert answer["failed"] == []


@pytest.mark.skipif(not is_root, reason="needs root to drop from")
def test_root_without_capabilities_falls_to_landlock_or_better() -> None:
    answer = start("require", [], drop="capabilities")
    assert answer.get("level") in ("full", "landlock"), answer
    assert answer["failed"] == []


def test_without_unshare_landlock_takes_over() -> None:
    answer = start("require", UNSHARE[:1])
    assert answer["level"] == answer["stamp"] == "landlock", answer
    assert answer["failed"] == []
    assert "full" in answer["facts"]["failed_probes"][0]


def test_without_both_require_refuses_and_names_probes_and_remedies() -> None:
    answer = start("require", [*UNSHARE[:1], *LANDLOCK], ENOSYS)
    assert answer["error"] == "IsolationUnavailable"
    for word in ("full:", "landlock:", "user namespaces", "Linux >= 5.13", "doctor"):
        assert word in answer["text"], answer["text"]


@pytest.mark.skipif(not is_root, reason="chroot needs root")
def test_best_effort_as_root_takes_chroot_and_warns() -> None:
    answer = start("best_effort", [*UNSHARE[:1], *LANDLOCK], ENOSYS)
    assert answer["level"] == answer["stamp"] == "chroot", answer
    assert answer["failed"] == []
    assert "isolation is only 'chroot'" in answer["stderr"]


@pytest.mark.skipif(not is_root, reason="needs root to drop from")
def test_best_effort_without_privilege_takes_seccomp() -> None:
    answer = start("best_effort", [*UNSHARE[:1], *LANDLOCK], ENOSYS, drop="capabilities")
    assert answer["level"] == answer["stamp"] == "seccomp", answer
    assert answer["failed"] == []


def test_without_landlock_full_still_holds() -> None:
    answer = start("require", LANDLOCK, ENOSYS)
    assert answer["level"] == "full", answer
    assert answer["facts"]["landlock_abi"] == 0
    assert answer["failed"] == []


def test_without_pidfd_and_clone3_everything_still_works() -> None:
    answer = start("require", [434, 435, 436], ENOSYS)  # pidfd_open, clone3, close_range
    assert answer["level"] == "full", answer
    assert answer["failed"] == []


def test_asking_for_one_level_gets_that_or_nothing() -> None:
    answer = start("full", UNSHARE[:1])
    assert answer["error"] == "IsolationUnavailable"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_fits_and_every_jump_lands(machine: str) -> None:
    program = seccomp.build(77, fork=False, machine=machine)
    assert len(program) % 8 == 0
    count = len(program) // 8
    assert count <= 4096  # BPF_MAXINSNS
    for index in range(count):
        code = int.from_bytes(program[8 * index : 8 * index + 2], "little")
        if code & 0x07 == 0x05:
            for jump in program[8 * index + 2 : 8 * index + 4]:
                assert index + 1 + jump < count


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_decides_as_the_table_says(machine: str) -> None:
    program = seccomp.build(77, fork=False, machine=machine)
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    numbers = NUMBERS[machine]
    allow, deny = 0x7FFF0000, 0x00050001
    for name in ALLOWED:
        if name in numbers:
            assert decide(program, arch, numbers[name]) == allow, name
    # execve, ptrace, mount, bpf, io_uring_setup, memfd_create, keyctl, and what does not exist yet
    refused = {"x86_64": (59, 101, 165, 321, 425, 319, 250, 9999),
               "aarch64": (221, 117, 40, 280, 425, 279, 219, 9999)}[machine]  # fmt: skip
    for number in refused:
        assert decide(program, arch, number) == deny
    assert decide(program, arch, numbers["kill"], 77, 15) == allow
    assert decide(program, arch, numbers["kill"], 78, 15) == deny
    assert decide(program, arch, numbers["kill"], -1 & (2**64 - 1), 9) == deny
    assert decide(program, arch, numbers["kill"], 77, 9) == 0x80000000
    assert decide(program, arch, numbers["clone"], 17) == deny
    assert decide(program, arch, numbers["clone"], 0x3D0F00) == allow
    assert decide(program, arch, numbers["clone3"]) == 0x00050000 | 38
    assert decide(program, arch, numbers["socketpair"], 1, 1) == allow
    assert decide(program, arch, numbers["socketpair"], 1, 2) == deny
    assert decide(program, arch, numbers["sendto"], 3, 0, 0, 0, 0) == allow
    assert decide(program, arch, numbers["sendto"], 3, 0, 0, 0, 1 << 40) == deny
    assert decide(program, arch, numbers["prlimit64"], 0, 7, 0) == allow
    assert decide(program, arch, numbers["prlimit64"], 0, 7, 4096) == deny
    assert decide(program, arch, numbers["fcntl"], 3, 8) == deny
    assert decide(program, 0x40000003, 1) == 0x80000000  # the 32-bit entry


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Interpret the filter as the kernel does."""
    data = number.to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        data += argument.to_bytes(8, "little")
    accumulator = index = 0
    while True:
        code = int.from_bytes(program[8 * index : 8 * index + 2], "little")
        when_true, when_false = program[8 * index + 2], program[8 * index + 3]
        value = int.from_bytes(program[8 * index + 4 : 8 * index + 8], "little")
        index += 1
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = int.from_bytes(data[value : value + 4], "little")
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            index += when_true if holds else when_false


def test_own_cgroups_are_found_in_both_versions() -> None:
    v1 = (
        "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "31 25 0:27 /docker/ab /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    )
    assert own_cgroups(v1, "4:memory:/job/1\n8:pids:/docker/ab\n") == {
        "memory": (1, "/sys/fs/cgroup/memory/job/1"),
        "pids": (1, "/sys/fs/cgroup/pids"),
    }
    v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    assert own_cgroups(v2, "0::/user.slice\n") == {"": (2, "/sys/fs/cgroup/user.slice")}
