"""Start of the exec'ed side: go down the ladder, keep the zygote, clean up after it."""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from typing import Any

from retool_sandbox._frames import pack

from . import _kernel as kernel
from . import _program
from ._cgroups import Group, NoSlots, Slots, make_group, open_slots, remove_group
from ._child import InChild, Setup
from ._namespaces import NOBODY
from ._rungs import JAILS, LADDER, FullJail, Jail
from ._scratch import empty_trash, remove_tree
from ._stale import dead_bases, dead_groups, hold
from ._view import MissingPackageError, View, make_view
from ._warmup import WARM_UPS
from ._zygote import Zygote

# What `signal.signal` wraps to make enums of the answer, which copies 40 pages in every child.
_plain_signal = sys.modules["_signal"].signal
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
    sys.dont_write_bytecode = True  # our own modules are written by now, programs write none
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
    except _RefusedError as refusal:
        _tell(fd, "refused", str(refusal))
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
    gc.disable()  # until the libraries are loaded: it would look at all of them again and again
    host = _watch_host(config["host_pid"])
    view = make_view(config["tier"], config["packages"], config["path"])
    temp = _temp_folder()
    for dead in dead_bases(temp):
        remove_tree(dead)
    base = f"{temp}/{config['name']}"
    os.mkdir(base, 0o700)
    hold(base)
    config["scratch"] = base
    group: Group | None = None
    keeper = True
    try:
        _write_bytecode(view, config)
        if config["cgroups"] and config["isolation"] != "none":
            group = make_group(config["name"])
            if group is not None:
                for path in group.paths():
                    for dead in dead_groups(os.path.dirname(path)):
                        remove_group(Group(group.version, dead, None), deadline_s=0.0)
        trash_read, trash_write = os.pipe()
        config["trash_fd"] = trash_write
        kernel.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the zygote's helper exits and leaves it to us
        zygote = _descend(fd, config, view, group)
        os.close(trash_write)
        os.close(fd)
        _wait(zygote, trash_read, host, base)
    except InChild:
        keeper = False  # a child unwinds its stack through here and must not clean up
        raise
    finally:
        if keeper:
            _reap_all()
            if group is not None:
                remove_group(group)
            remove_tree(base)
            if os.path.isdir(base):
                empty_trash(base)


def _temp_folder() -> str:
    for path in ("/tmp", "/var/tmp"):
        if os.access(path, os.W_OK | os.X_OK):
            return path
    raise _RefusedError("no folder for the scratch: neither /tmp nor /var/tmp can be written")


class _RefusedError(Exception):
    pass


def _watch_host(pid: int) -> int | None:
    try:
        return kernel.pidfd_open(pid)
    except OSError:
        return None  # before Linux 5.3: the end of the control stream has to do


# -- the ladder ----------------------------------------------------------------------------------


def _descend(fd: int, config: dict[str, Any], view: View, group: Group | None) -> int:
    """Start a zygote at the strongest level that works here; its pid.

    A level is tried for real: what comes out of a trial that succeeds is the zygote.

    Raises:
        _RefusedError: None of the levels asked for works.
    """
    wanted = config["isolation"]
    failed: list[str] = []
    for level in ALLOWED.get(wanted, (wanted,)):
        pid, problem = _start_zygote(fd, level, config, view, group, failed)
        if problem is None:
            return pid
        failed.append(f"{level}: {problem}; {REMEDIES[level]}")
    raise _RefusedError(
        f"isolation={wanted!r} cannot be had here:\n  "
        + "\n  ".join(failed)
        + "\nrun `retool-sandbox doctor` for every guarantee; isolation='best_effort' takes less"
    )


def _start_zygote(
    fd: int,
    level: str,
    config: dict[str, Any],
    view: View,
    group: Group | None,
    failed: list[str],
) -> tuple[int, str | None]:
    """Fork a zygote; its pid, and what kept it from reaching the level.

    In its descendants this raises InChild or never returns.
    """
    said_read, said_write = os.pipe()
    go_read, go_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(said_read)
        os.close(go_write)
        try:
            jail, slots = _enter(level, config, view, group, said_write)
            _try_child(jail)
        except BaseException as error:  # noqa: BLE001  (any failure is the answer)
            os.write(said_write, json.dumps(f"{type(error).__name__}: {error}").encode())
            os._exit(1)
        os.write(said_write, b'"ok"\n')
        os.close(said_write)
        # The keeper is our parent only once the helper is gone; asked for earlier, the signal would
        # come when the helper ends.
        if not os.read(go_read, 1):
            os._exit(1)
        os.close(go_read)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        jail.facts.update(failed_probes=failed, memory=slots.kind)
        _run_zygote(fd, jail, slots, config)
        os._exit(0)
    os.close(said_write)
    os.close(go_read)
    lines = b"".join(iter(lambda: os.read(said_read, 65536), b"")).splitlines()
    os.close(said_read)
    zygote, problem = helper, "the trial was killed"
    for line in lines:
        answer = json.loads(line)
        if isinstance(answer, int):
            zygote = answer
            os.waitpid(helper, 0)
        else:
            problem = answer
    if problem == "ok":
        os.write(go_write, b"g")
    else:
        os.waitpid(zygote, 0)
    os.close(go_write)
    return zygote, None if problem == "ok" else problem


def _enter(
    level: str, config: dict[str, Any], view: View, group: Group | None, said: int
) -> tuple[Jail, Slots | NoSlots]:
    """Do what is done once per zygote; continue in the process that it becomes."""
    jail = JAILS[level](view, config, os.open("/proc", os.O_PATH | os.O_DIRECTORY))
    slots: NoSlots | Slots = NoSlots()
    if group is not None:
        slots = open_slots(group, NOBODY if level == "full" and os.geteuid() == 0 else None)
        jail.has_memory_cgroup = True
    jail.enter_once()
    if isinstance(jail, FullJail):
        pid = os.fork()
        if pid:
            os.write(said, f"{pid}\n".encode())
            os._exit(0)
        jail.entered()
    if jail.filters:
        kernel.drop_bounding_set()
    return jail, slots


def _try_child(jail: Jail) -> None:
    """Confine a child that does nothing.

    Raises:
        OSError: It could not be confined.
    """
    jail.prepare_child(0)  # the number is out of the way of real children
    read, write = os.pipe()
    init, _stack = jail.new_pid_namespace([])
    pid = os.fork()
    if pid == 0:
        try:
            jail.enter_child(0, jail.profile(jail.config["limits"]))
        except BaseException as error:  # noqa: BLE001  (any failure is the answer)
            os.write(write, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
        os._exit(0)
    jail.leave_pid_namespace()
    os.close(write)
    said = os.read(read, 4096).decode("utf-8", "replace")
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    if init:
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)  # it runs on our stack buffer
    jail.forget(0)
    if status:
        raise OSError(f"a child could not be confined ({said or f'status {status}'})")


# -- the zygote ----------------------------------------------------------------------------------


def _run_zygote(fd: int, jail: Jail, slots: Slots | NoSlots, config: dict[str, Any]) -> None:
    try:
        _load(jail)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # four for every child
        zygote = Zygote(fd, jail, slots, config)
        _keep_for_good(jail, slots, zygote)
        zygote.serve()
    except InChild:
        raise
    except BaseException:  # noqa: BLE001  (the caller learns of it, whatever it is)
        _tell(fd, "broken", traceback.format_exc())
        os._exit(1)


def _write_bytecode(view: View, config: dict[str, Any]) -> None:
    """Compile the libraries once where the installer did not (uv): saves seconds per start."""
    for name in view.preload:
        homes = [f"{root}/{name}" for root in view.package_roots if os.path.isdir(f"{root}/{name}")]
        if homes and not os.path.isdir(f"{homes[0]}/__pycache__") and os.access(homes[0], os.W_OK):
            break
    else:
        return
    pid = os.fork()
    if pid == 0:
        try:
            sys.dont_write_bytecode = False
            sys.path.extend(config["path"])
            for name in view.preload:
                __import__(name)
            for step in WARM_UPS[config["tier"]]:
                exec(step, {})
        finally:
            os._exit(0)  # a library that does not load shows in the zygote
    os.waitpid(pid, 0)


def _load(jail: Jail) -> None:
    for name in jail.view.preload:
        __import__(name)
    _make_streams()
    own = [sys.modules.pop(name) for name in list(sys.modules) if name.startswith("retool_sandbox")]
    _keep_for_good(own)
    gc.freeze()
    gc.enable()
    jail.loaded()


def _keep_for_good(*values: object) -> None:
    """Let no child free them: what is freed is touched, and a touched page is a copied page.

    A child drops its last reference, and `gc` does not list what was frozen: no program finds them.
    """
    for value in values:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _make_streams() -> None:
    saved = [os.dup(1), os.dup(2)]
    read, write = os.pipe()
    for number in (1, 2):
        os.dup2(write, number)
    _program.open_streams()
    for number, fd in enumerate(saved, 1):
        os.dup2(fd, number)
    for fd in (read, write, *saved):
        os.close(fd)


def _become_program(setup: Setup) -> tuple[int, bool]:
    # First of all: the zygote has more files open than this child may have, and sets its limits at
    # any moment.
    own = setup.slots.descriptors()
    kernel.close_above([setup.link, *setup.jail.inherited(), *own])
    setup.slots.join(setup.slot)
    for fd in own:
        os.close(fd)
    signal.set_wakeup_fd(-1)
    _plain_signal(signal.SIGCHLD.value, 0)  # SIG_DFL
    setup.jail.enter_child(setup.serial, setup.profile)
    _program.reseed(None)
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
