"""Namespaces and a root of our own, entered once by the zygote."""

import os
import sys
from typing import Any

from . import _kernel as kernel
from ._view import GUEST_PACKAGES, GUEST_STDLIB, View

NOBODY = 65534
GUEST_UID = 1000
SCRATCH = "/tmp"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_ALL = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWPID
)  # fmt: skip


def enter(view: View) -> dict[str, Any]:
    """Leave the host's mounts, network, ids, ipc and name; the next fork is a pid namespace's init.

    As root the view is built first and the identity given up second, so that libraries in root's
    home are found; otherwise a user namespace comes first and grants the right to mount.

    Returns:
        Facts: whether a user namespace is used, and the uid of the programs as the host sees it.

    Raises:
        OSError: The kernel or the container does not allow it.
    """
    privileged = os.geteuid() == 0 and _can(lambda: kernel.unshare(kernel.CLONE_NEWNS))
    uid, gid = os.geteuid(), os.getegid()
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    try:
        if privileged:
            _build_root(view, NOBODY)
            if _can_fork(lambda: _become_nobody_in_user_namespace(proc)):
                _become_nobody_in_user_namespace(proc)
                return {"user_namespace": True, "host_uid": NOBODY}
            kernel.unshare(_ALL)
            return {"user_namespace": False, "host_uid": NOBODY}
        kernel.unshare(_ALL | kernel.CLONE_NEWUSER)
        _map_ids(proc, uid, gid)
        _build_root(view, None)
        return {"user_namespace": True, "host_uid": uid}
    finally:
        os.close(proc)


def _can(action: Any) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def _can_fork(action: Any) -> bool:
    """Try an action that cannot be undone in a child."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _can(action) else 1)
    return os.waitpid(pid, 0)[1] == 0


def _become_nobody_in_user_namespace(proc: int) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else our own uid_map belongs to root
    kernel.unshare(_ALL | kernel.CLONE_NEWUSER)
    _map_ids(proc, NOBODY, NOBODY)


def _map_ids(proc: int, uid: int, gid: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{GUEST_UID} {uid} 1"),
        ("gid_map", f"{GUEST_UID} {gid} 1"),
    ):
        fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def _build_root(view: View, owner: int | None) -> None:
    """Make a root that holds the view, three devices and an empty /tmp; move into it."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    # Opened first: the new root is mounted over /tmp, where a virtual environment may live.
    sources = [(os.open(path, os.O_PATH), guest) for path, guest in view.binds()]
    devices = [(os.open(path, os.O_PATH), path) for path in _DEVICES if os.path.exists(path)]
    base = "/tmp"
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for name in (SCRATCH, "/dev", "/proc"):
        os.mkdir(base + name)
    os.symlink(SCRATCH, f"{base}/dev/shm")  # semaphores of multiprocessing live there
    os.makedirs(base + GUEST_PACKAGES)
    for fd, guest in sources:
        _bind(fd, base + guest, writable=False)
    if os.path.isdir(f"{view.stdlib}/site-packages"):
        hidden = f"{base}{GUEST_STDLIB}/site-packages"
        kernel.mount("tmpfs", hidden, "tmpfs", kernel.MS_RDONLY, "size=4k,mode=0755")
    for fd, path in devices:
        _bind(fd, base + path, writable=True)
    for fd, _ in (*sources, *devices):
        os.close(fd)
    os.chdir(base)
    libc_path = b"."
    kernel.call("pivot_root", libc_path, libc_path)
    kernel.umount(".")
    os.chdir("/")
    kernel.mount(
        "none", "/", None,
        kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV,
    )  # fmt: skip


def _bind(fd: int, target: str, *, writable: bool) -> None:
    source = f"/proc/self/fd/{fd}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb"):
            pass
    try:
        kernel.mount(source, target, None, kernel.MS_BIND)
    except OSError:
        # A tree with mounts of the host inside can only be bound whole from a user namespace.
        kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_NOSUID
    if not writable:
        flags |= kernel.MS_RDONLY | kernel.MS_NODEV
    # Flags of the host's mount are locked in a user namespace and must be named again.
    flags |= os.statvfs(target).f_flag & (
        kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY | 1024 | 2048
    )
    if os.statvfs(target).f_flag & 4096:  # ST_RELATIME has another bit than MS_RELATIME
        flags |= 1 << 21
    kernel.mount("none", target, None, flags)


def use_guest_paths(view: View) -> None:
    """Make the running interpreter find its library inside the new root."""
    new = GUEST_STDLIB
    # The spelling the interpreter started with may differ from the real path. Packages first: their
    # folder may lie inside the standard library's.
    moves = [(root, GUEST_PACKAGES) for root in view.package_roots]
    moves += [(view.stdlib, new), (os.path.dirname(os.__file__), new)]

    def moved(path: str) -> str:
        for start, target in moves:
            if path.startswith(start + "/") or path == start:
                return target + path[len(start) :]
        return path

    for module in list(sys.modules.values()):
        names = vars(module) if hasattr(module, "__dict__") else {}
        for name in ("__file__", "__cached__"):
            if isinstance(names.get(name), str):
                names[name] = moved(names[name])
        if isinstance(names.get("__path__"), list):
            names["__path__"][:] = [moved(path) for path in names["__path__"]]
        spec = names.get("__spec__")
        if spec is not None:
            if isinstance(getattr(spec, "origin", None), str):
                spec.origin = moved(spec.origin)
            if isinstance(getattr(spec.loader, "path", None), str):
                spec.loader.path = moved(spec.loader.path)
    sys.path[:] = [new, f"{new}/lib-dynload", GUEST_PACKAGES]
    sys.path_importer_cache.clear()
    sys.prefix = sys.exec_prefix = sys.base_prefix = sys.base_exec_prefix = "/usr"
    sys.executable = ""
