"""Landlock: confine this process to a few paths, no TCP, no signals or abstract sockets outward."""

import errno
import os
import stat
import struct
from collections.abc import Iterable

from . import _kernel as kernel

READ_FILE, READ_DIR, WRITE_FILE = 4, 8, 2
_FS_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
_FILE_ONLY = 1 | 2 | 4 | 0x4000 | 0x8000
READ = READ_FILE | READ_DIR
EVERYTHING = 0xFFFF
_NET = 3  # bind and connect TCP
_SCOPES = 3  # abstract sockets, signals


def abi() -> int:
    """The version the kernel offers; 0 without Landlock."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, 1)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


class Ruleset:
    """A set of rules, ready to be put on."""

    def __init__(self, version: int) -> None:
        self._fs = max(value for key, value in _FS_BY_ABI.items() if key <= version)
        parts = [self._fs]
        if version >= 4:
            parts.append(_NET)
        if version >= 6:
            parts.append(_SCOPES)
        attributes = struct.pack(f"={len(parts)}Q", *parts)
        self._fd = kernel.call("landlock_create_ruleset", attributes, len(attributes), 0)

    def allow(self, path: str, access: int) -> None:
        """Allow access beneath a path; a path that does not exist is left out."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            access &= self._fs
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                access &= _FILE_ONLY
            kernel.call("landlock_add_rule", self._fd, 1, struct.pack("=Qi", access, fd), 0)
        finally:
            os.close(fd)

    def put_on(self) -> None:
        """Restrict this process; it can not be undone. Needs no_new_privs."""
        kernel.call("landlock_restrict_self", self._fd, 0)
        os.close(self._fd)


def restrict(version: int, rules: Iterable[tuple[str, int]]) -> None:
    """Build a ruleset and put it on."""
    ruleset = Ruleset(version)
    for path, access in rules:
        ruleset.allow(path, access)
    ruleset.put_on()
