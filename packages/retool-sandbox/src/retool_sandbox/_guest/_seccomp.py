"""The system calls a program may make, as a classic BPF filter: everything else gets EPERM."""

import ctypes
import errno
import struct

from . import _kernel as kernel
from ._syscalls import ALLOWED, NUMBERS

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LD, _JEQ, _JGE, _JGT, _JSET, _RET = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
_NR, _ARCH_OFFSET = 0, 4
_CLONE_THREAD = 0x10000
_CLONE_NAMESPACES = 0x7E020000 | 0x80  # and CLONE_NEWTIME
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ = (
    8,
    10,
    15,
    1024,
    1026,
    1031,
)
_IOCTLS = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # is a tty? size? bytes waiting? fd flags
_PRCTLS = (3, 15, 16, 21, 23, 39, 0x53564D41)  # readers, thread names, names of anonymous memory

Instruction = tuple[int, int, int, int]


def _low(argument: int) -> int:
    return 16 + 8 * argument  # both machines are little endian


def _statement(code: int, value: int) -> Instruction:
    return code, 0, 0, value


def _deny(number: int = errno.EPERM) -> Instruction:
    return _statement(_RET, _ERRNO | number)


_YES = _statement(_RET, _ALLOW)


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow when the argument is one of the values."""
    code = [_statement(_LD, _low(argument))]
    code += [(_JEQ, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*code, _deny(), _YES]


def _none_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow unless the argument is one of the values."""
    code = [_statement(_LD, _low(argument))]
    code += [(_JEQ, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*code, _YES, _deny()]


def _null(argument: int) -> list[Instruction]:
    """Allow when a pointer is null."""
    return [
        _statement(_LD, _low(argument)),
        (_JEQ, 0, 2, 0),
        _statement(_LD, _low(argument) + 4),
        (_JEQ, 1, 0, 0),
        _deny(),
        _YES,
    ]


def _special(pid: int, fork: bool) -> dict[str, list[Instruction]]:
    # A program that kills itself dies of SIGSYS, so that a SIGKILL always came from outside.
    suicide = [(_JEQ, 0, 1, 9), _statement(_RET, _KILL), _YES]
    only_me = [_statement(_LD, _low(0)), (_JEQ, 1, 0, pid), _deny()]
    thread = [_statement(_LD, _low(0)), (_JSET, 0, 1, _CLONE_THREAD), _YES, _deny()]
    process = [_statement(_LD, _low(0)), (_JSET, 0, 1, _CLONE_NAMESPACES), _deny(), _YES]
    return {
        # Signals to ourselves only; a tree of processes is alone in its pid namespace.
        "kill": [_YES] if fork else [*only_me, _statement(_LD, _low(1)), *suicide],
        "tgkill": [_YES] if fork else [*only_me, _statement(_LD, _low(2)), *suicide],
        "clone": process if fork else thread,
        "fork": [_YES if fork else _deny()],
        "vfork": [_YES if fork else _deny()],
        # Its flags are behind a pointer; without it libc falls back to clone.
        "clone3": [_deny(errno.ENOSYS)],
        "openat2": [_deny(errno.ENOSYS)],
        # F_SETOWN + F_SETSIG + O_ASYNC would signal any process of our user.
        "fcntl": _none_of(
            1, (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ)
        ),
        "ioctl": _one_of(1, _IOCTLS),
        "prctl": _one_of(0, _PRCTLS),
        # Reading limits only: per-turn limits of a session are soft limits.
        "prlimit64": [*_one_of(0, (0, pid))[:-1], *_null(2)],
        "sched_setaffinity": _one_of(0, (0, pid)),
        # asyncio wakes itself up over a pair; a datagram socket could name another peer.
        "socketpair": [
            _statement(_LD, _low(0)),
            (_JEQ, 0, 3, 1),
            _statement(_LD, _low(1)),
            (0x54, 0, 0, 0xF),
            (_JEQ, 1, 0, 1),
            _deny(),
            _YES,
        ],
        "sendto": _null(4),
    }


def build(pid: int, *, fork: bool, machine: str | None = None) -> bytes:
    """The filter for one process.

    Args:
        pid: The only process that may be signalled.
        fork: Allow child processes (never exec).
        machine: x86_64 or aarch64; default: this one.
    """
    machine = machine or kernel.ARCH
    numbers = NUMBERS[machine]
    code: list[Instruction] = [
        _statement(_LD, _ARCH_OFFSET),
        (_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        _statement(_RET, _KILL),
        _statement(_LD, _NR),
    ]
    for name, body in _special(pid, fork).items():
        if name in numbers:
            code += [(_JEQ, 0, len(body), numbers[name]), *body]
    for low, high in _ranges(sorted(numbers[name] for name in ALLOWED if name in numbers)):
        # Sorted: above the range go on, inside allow, below nothing further can match.
        code += [(_JGT, 3, 0, high), (_JGE, 0, 1, low), _YES, _deny()]
    code.append(_deny())
    return b"".join(struct.pack("=HBBI", *item) for item in code)


_ANY_PID = 0x7EADBEEF
_prepared: dict[bool, bytes] = {}


def prepare(*, fork: bool) -> None:
    """Build the filter once, in the zygote."""
    if kernel.ARCH in NUMBERS:
        _prepared[fork] = build(_ANY_PID, fork=fork)


def program(pid: int, *, fork: bool) -> bytes:
    """The prepared filter for one process."""
    if fork not in _prepared:
        prepare(fork=fork)
    return _prepared[fork].replace(struct.pack("=I", _ANY_PID), struct.pack("=I", pid))


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Put the filter on every thread of this process, for good. Needs no_new_privs."""
    head = _Program(len(program) // 8, program)
    kernel.call("seccomp", 1, 1, ctypes.byref(head))  # SET_MODE_FILTER, TSYNC
