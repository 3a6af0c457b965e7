"""The system calls that Python does not offer, by ctypes; x86_64 and aarch64."""

import ctypes
import errno
import os
import signal
import struct
from typing import Any

CLONE_VM, CLONE_FILES = 0x100, 0x400
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 38, 47
CAP_LAST = 40

ARCH = os.uname().machine
_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "seccomp": 317, "pivot_root": 155, "capset": 126, "pidfd_open": 434, "close_range": 436,
        "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
    },
    "aarch64": {
        "seccomp": 277, "pivot_root": 41, "capset": 91, "pidfd_open": 434, "close_range": 436,
        "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
    },
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def fail(what: str) -> OSError:
    """The OSError of the last libc call."""
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {errno.errorcode.get(number, number)}")


def call(name: str, *arguments: Any) -> int:
    """Make a raw system call by name.

    Raises:
        OSError: The kernel said no; ENOSYS on a machine whose numbers we do not know.
    """
    numbers = _NUMBERS.get(ARCH)
    if numbers is None:
        raise OSError(errno.ENOSYS, f"{name}: no system call numbers for {ARCH}")
    result = libc.syscall(ctypes.c_long(numbers[name]), *arguments)
    if result < 0:
        raise fail(name)
    return int(result)


def unshare(flags: int) -> None:
    """Leave namespaces."""
    if libc.unshare(flags):
        raise fail(f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Enter a namespace."""
    if libc.setns(fd, kind):
        raise fail("setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """Mount a file system."""
    if libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None,
        ctypes.c_ulong(flags), data.encode() or None,
    ):  # fmt: skip
        raise fail(f"mount({target})")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Unmount a file system."""
    if libc.umount2(target.encode(), flags):
        raise fail(f"umount({target})")


def prctl(option: int, *arguments: int) -> int:
    """Set a property of this process."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    result = int(libc.prctl(option, *padded))
    if result < 0:
        raise fail(f"prctl({option})")
    return result


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    return call("pidfd_open", pid, 0)


def drop_bounding_set() -> None:
    """Let no exec of ours or of our children's ever give a capability again."""
    for capability in range(CAP_LAST + 1):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) and (
            ctypes.get_errno() == errno.EPERM
        ):
            break  # no CAP_SETPCAP: the bounding set only matters for exec, which is refused


def clear_capabilities() -> None:
    """Give up every capability that this process has."""
    header = struct.pack("=Ii", 0x20080522, 0)  # version 3, this process
    call("capset", header, bytes(24))  # effective, permitted, inheritable: two words each


def pause_process(flags: int, stack: Any) -> int:
    """Clone a process that shares our memory and only ever sleeps: the init of a pid namespace.

    A forked init would copy page tables (1 ms with sympy loaded); this one costs a tenth of that.
    It runs libc's pause() on its own stack and no Python.
    """
    top = (ctypes.addressof(stack) + ctypes.sizeof(stack)) & ~0xF
    result = libc.clone(libc.pause, ctypes.c_void_p(top), flags | CLONE_VM | CLONE_FILES | 17, None)
    if result < 0:
        raise fail("clone(init)")
    return int(result)


def ignore_stopped_children() -> None:
    """Set SA_NOCLDSTOP, which Python cannot: a stopped session must not wake the zygote."""
    action = ctypes.create_string_buffer(256)
    # struct sigaction of glibc on 64-bit machines: handler, 128 bytes of mask, flags.
    flags = ctypes.c_int.from_buffer(action, 8 + 128)
    if libc.sigaction(signal.SIGCHLD, None, action):
        raise fail("sigaction")
    flags.value |= 1
    if libc.sigaction(signal.SIGCHLD, action, None):
        raise fail("sigaction")


def close_above(keep: list[int]) -> None:
    """Close every descriptor above 2 that is not in keep."""
    low = 3
    for fd in [*sorted(keep), 1 << 30]:
        if fd > low:
            try:
                call("close_range", low, fd - 1, 0)
            except OSError:
                os.closerange(low, min(fd, 65536))
        low = max(low, fd + 1)
