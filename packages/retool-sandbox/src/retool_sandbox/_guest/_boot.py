"""Start of the exec'ed side: probe the ladder, keep the zygote, clean up after it."""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

from retool_sandbox._frames import pack

from . import _kernel as kernel
from . import _program
from ._cgroups import Group, NoSlots, Slots, make_group, open_slots, remove_group
from ._chroot import build_copy
from ._rungs import JAILS, LADDER, FullJail, Jail
from ._scratch import empty_trash, remove_tree
from ._stale import dead_bases, dead_groups, hold
from ._view import MissingPackageError, View, make_view
from ._zygote import InChild, Setup, Zygote

ALLOWED = {"require": LADDER[:2], "best_effort": LADDER[:4]}
REMEDIES = {
    "full": "allow user namespaces (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns=0) or give the container CAP_SYS_ADMIN",
    "landlock": "use Linux >= 5.13 with landlock in the lsm= list, and a container whose seccomp "
    "profile allows the landlock_* calls",
    "chroot": "run as root with CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
    "none": "",
}


def boot(fd: int) -> tuple[int, bool] | None:
    """Become keeper and zygote; in a program's child, return what the program runner needs.

    Returns:
        None in the keeper and the zygote, once everything beneath them is gone.
    """
    request = _program.read_request(fd)
    if request is None:
        return None
    config = request[0]
    try:
        return _keep(fd, config)
    except InChild as child:
        setup = child.setup
    except MissingPackageError as error:
        tier = config["tier"]
        advice = f"pip install 'retool-sandbox[{tier}]', or choose another tier"
        _tell(fd, "refused", f"tier {tier!r} needs the package {error}: {advice}")
        return None
    except BaseException:
        _tell(fd, "broken", traceback.format_exc())
        raise
    return _become_program(setup)


def _tell(fd: int, op: str, reason: str) -> None:
    with contextlib.suppress(OSError):
        os.set_blocking(fd, True)
        os.write(fd, pack({"op": op, "reason": reason}))


def _keep(fd: int, config: dict[str, Any]) -> None:
    host = _watch_host(config["host_pid"])
    view = make_view(config["tier"], config["packages"], config["path"])
    for dead in dead_bases(tempfile.gettempdir()):
        remove_tree(dead)
    base = tempfile.mkdtemp(prefix=f"{config['name']}-")
    hold(base)
    config["scratch"] = base
    group: Group | None = None
    keeper = True
    try:
        level, facts = _choose(config, view)
        _write_bytecode(view, config["path"])
        if config["cgroups"] and level != "none":
            group = make_group(config["name"])
            if group is not None:
                for path in group.paths():
                    for dead in dead_groups(os.path.dirname(path)):
                        remove_group(Group(group.version, dead, None), deadline_s=0.0)
        trash_read, trash_write = os.pipe()
        config["trash_fd"] = trash_write
        kernel.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the zygote's helper exits and leaves it to us
        zygote = _start_zygote(fd, level, facts, config, view, group)
        os.close(trash_write)
        os.close(fd)
        _wait(zygote, trash_read, host, base)
    except InChild:
        keeper = False  # a child unwinds its stack through here and must not clean up
        raise
    except _RefusedError as refusal:
        _tell(fd, "refused", str(refusal))
    finally:
        if keeper:
            _reap_all()
            if group is not None:
                remove_group(group)
            remove_tree(base)
            if os.path.isdir(base):
                empty_trash(base)


class _RefusedError(Exception):
    pass


def _watch_host(pid: int) -> int | None:
    try:
        return kernel.pidfd_open(pid)
    except OSError:
        return None  # before Linux 5.3: the end of the control stream has to do


# -- the ladder ----------------------------------------------------------------------------------


def _choose(config: dict[str, Any], view: View) -> tuple[str, dict[str, Any]]:
    wanted = config["isolation"]
    failed: list[str] = []
    for level in ALLOWED.get(wanted, (wanted,)):
        problem, facts = _probe(level, config, view)
        if problem is None:
            facts["failed_probes"] = failed
            return level, facts
        failed.append(f"{level}: {problem}; {REMEDIES[level]}")
    raise _RefusedError(
        f"isolation={wanted!r} cannot be had here:\n  "
        + "\n  ".join(failed)
        + "\nrun `retool-sandbox doctor` for every guarantee; isolation='best_effort' takes less"
    )


def _probe(level: str, config: dict[str, Any], view: View) -> tuple[str | None, dict[str, Any]]:
    """Try the level for real, in a child that is thrown away."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = _try(level, config, view)
        except BaseException as error:  # noqa: BLE001  (any failure is the answer)
            answer = {"problem": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    text = b"".join(iter(lambda: os.read(read, 65536), b""))
    os.close(read)
    os.waitpid(pid, 0)
    if not text:
        return "the probe was killed", {}
    answer = json.loads(text)
    return answer.get("problem"), answer.get("facts", {})


def _try(level: str, config: dict[str, Any], view: View) -> dict[str, Any]:
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    jail = JAILS[level](view, config, proc)
    if level == "chroot":
        build_copy(view, f"{config['scratch']}/root")
    jail.enter_once()
    # The number is out of the way of real children.
    jail.prepare_child(0)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            jail.enter_child(0, jail.profile(config["limits"]))
        except BaseException as error:  # noqa: BLE001  (any failure is the answer)
            os.write(write, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os._exit(0)
    os.close(write)
    said = os.read(read, 4096).decode("utf-8", "replace")
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    jail.forget(0)
    if status:
        return {"problem": f"a child could not be confined ({said or f'status {status}'})"}
    return {"facts": jail.facts}


# -- the zygote ----------------------------------------------------------------------------------


def _start_zygote(
    fd: int,
    level: str,
    facts: dict[str, Any],
    config: dict[str, Any],
    view: View,
    group: Group | None,
) -> int:
    """Fork the zygote; in its descendants this raises InChild or never returns."""
    pid_read, pid_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(pid_read)
        _become_zygote(fd, level, facts, config, view, group, pid_write)
        os._exit(0)
    os.close(pid_write)
    text = os.read(pid_read, 64)
    os.close(pid_read)
    if text:
        os.waitpid(helper, 0)
    return int(text) if text else helper


def _become_zygote(
    fd: int,
    level: str,
    facts: dict[str, Any],
    config: dict[str, Any],
    view: View,
    group: Group | None,
    pid_write: int,
) -> None:
    try:
        slots: NoSlots | Slots = NoSlots()
        if group is not None:
            owner = facts["host_uid"] if facts.get("user_namespace") else None
            slots = open_slots(group, owner)
        jail = JAILS[level](view, config, os.open("/proc", os.O_PATH | os.O_DIRECTORY))
        jail.has_memory_cgroup = group is not None
        jail.enter_once()
        if isinstance(jail, FullJail):
            alive_read, alive_write = os.pipe()
            pid = os.fork()
            if pid:
                os.write(pid_write, str(pid).encode())
                os._exit(0)
            os.close(alive_write)
            os.read(alive_read, 1)  # the helper is gone: now our parent is the keeper
            os.close(alive_read)
            jail.entered()
        os.close(pid_write)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        _load(jail)
        jail.facts.update(failed_probes=facts["failed_probes"], memory=slots.kind)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # three for every child
        Zygote(fd, jail, slots, config).serve()
    except InChild:
        raise
    except BaseException:  # noqa: BLE001  (the caller learns of it, whatever it is)
        _tell(fd, "broken", traceback.format_exc())
        os._exit(1)


def _write_bytecode(view: View, path: list[str]) -> None:
    """Compile the libraries once where the installer did not (uv): saves seconds per start."""
    for name in view.preload:
        homes = [f"{root}/{name}" for root in view.package_roots if os.path.isdir(f"{root}/{name}")]
        if homes and not os.path.isdir(f"{homes[0]}/__pycache__") and os.access(homes[0], os.W_OK):
            break
    else:
        return
    pid = os.fork()
    if pid == 0:
        sys.dont_write_bytecode = False
        sys.path.extend(path)
        for name in view.preload:
            __import__(name)
        os._exit(0)
    os.waitpid(pid, 0)


def _load(jail: Jail) -> None:
    for name in jail.view.preload:
        __import__(name)
    # What a child frees must not make it copy the pages of all that was loaded.
    jail.own_modules = [name for name in sys.modules if name.startswith("retool_sandbox")]
    gc.collect()
    gc.freeze()
    jail.loaded()


def _become_program(setup: Setup) -> tuple[int, bool]:
    setup.slots.join(setup.slot)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.close_above([setup.link])
    setup.jail.enter_child(setup.serial, setup.profile)
    _program.reseed(None)
    for name in setup.jail.own_modules:
        sys.modules.pop(name, None)
    return setup.link, setup.session


# -- the end -------------------------------------------------------------------------------------


def _wait(zygote: int, trash: int, host: int | None, base: str) -> None:
    """Until the zygote is gone; if the caller dies first, end the zygote."""
    poll = select.poll()
    poll.register(trash, select.POLLIN)
    if host is not None:
        poll.register(host, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == host:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote, signal.SIGKILL)
                poll.unregister(fd)
            elif not os.read(trash, 4096):
                return
            else:
                empty_trash(base)
                empty_trash(f"{base}/root/tmp")


def _reap_all(deadline_s: float = 2.0) -> None:
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return
