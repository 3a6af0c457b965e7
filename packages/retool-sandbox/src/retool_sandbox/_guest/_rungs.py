"""The jails of the isolation ladder: what each does once, per fork, and inside the child."""

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
from typing import Any

from . import _kernel as kernel
from . import _landlock as landlock
from . import _seccomp as seccomp
from ._chroot import build_copy
from ._namespaces import NOBODY, SCRATCH, enter, use_guest_paths
from ._scratch import ScratchWatch
from ._view import View

MIB = 1 << 20
LADDER = ("full", "landlock", "chroot", "seccomp", "none")
_DEVICES = (("/dev/null", 2 | 4), ("/dev/zero", 4), ("/dev/urandom", 4), ("/dev/random", 4))


class Jail:
    """No isolation: rlimits and the memory watch. The base of the others."""

    level = "none"
    filters = False
    limits_in_child = False  # where the child has another uid than the zygote

    def __init__(self, view: View, config: dict[str, Any], proc_fd: int) -> None:
        self.view = view
        self.config = config
        self.facts: dict[str, Any] = {"level": self.level}
        self.has_memory_cgroup = False
        self._proc_fd = proc_fd
        self._base_bytes = 0
        self._base_rss = 0
        self._scratch: ScratchWatch | None = None

    # -- once ----------------------------------------------------------------------------------

    def enter_once(self) -> None:
        """In the zygote, before any library is loaded."""
        self._scratch = ScratchWatch(self.config["scratch"], self.config.get("trash_fd"))
        # A folder of links instead of site-packages: a package that is not in the view is then
        # missing, as in a root of our own, and not a permission error in the middle of an import.
        self._farm = f"{self.config['scratch']}/lib"
        if not os.path.isdir(self._farm):
            os.mkdir(self._farm)
            for path in self.view.packages:
                os.symlink(path, f"{self._farm}/{os.path.basename(path)}")
        sys.path.append(self._farm)

    def loaded(self) -> None:
        """After the libraries are loaded: children start from here."""
        for fork in (False, True):
            seccomp.prepare(fork=fork)
        self._base_bytes, self._base_rss = self._memory_of("self")

    # -- per fork, in the zygote ---------------------------------------------------------------

    def profile(self, limits: dict[str, Any]) -> dict[str, Any]:
        """What of the limits a child must know before it is jailed. Equal profiles share spares."""
        known = {
            "scratch_mib": limits["scratch_mib"],
            "scratch_files": limits["scratch_files"],
            "fork": limits["processes"] > 1,
        }
        if self.limits_in_child:
            known.update(
                memory_mib=limits["memory_mib"],
                open_files=limits["open_files"],
            )
        return known

    def new_pid_namespace(self, stacks: list[Any]) -> tuple[int, Any]:
        """Pid of the namespace's init and its stack; zero where there is none."""
        return 0, None

    def leave_pid_namespace(self) -> None:
        """Fork the next child into our own namespace again."""

    def abandon_pid_namespace(self) -> None:
        """After a fork that failed half-way."""
        with contextlib.suppress(OSError):
            self.leave_pid_namespace()

    def inherited(self) -> tuple[int, ...]:
        """Descriptors that a child needs until it is confined."""
        return ()

    def prepare_child(self, serial: int) -> None:
        """Before a fork."""
        if self._scratch is not None:
            self._scratch.make(serial)

    def limit_process(self, pid: int, limits: dict[str, Any], *, session: bool) -> None:
        """Set the rlimits of one run or turn from outside; the child may only read them."""
        if self.limits_in_child:
            return
        cpu = math.ceil(limits["cpu_time_s"] or limits["wall_time_s"]) + 1
        # The kernel counts CPU time from the start of the process: a session's turns add up, the
        # precise check of the supervisor is the one that counts.
        if session:
            cpu = resource.RLIM_INFINITY
        for kind, value in ((resource.RLIMIT_CPU, cpu), *self._rlimits(limits)):
            _, hard = resource.prlimit(pid, kind)
            if hard != resource.RLIM_INFINITY and value > hard:
                value = hard
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, kind, (value, hard))

    def _rlimits(self, limits: dict[str, Any]) -> tuple[tuple[int, int], ...]:
        # A program that asks for too much meets a MemoryError first, which a session survives; the
        # cgroup or the watch kills what gets around it.
        return (
            (resource.RLIMIT_AS, self._base_bytes + (limits["memory_mib"] + 32) * MIB),
            (resource.RLIMIT_FSIZE, limits["scratch_mib"] * MIB),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
        )

    def over_quota(self, serial: int, pid: int, limits: dict[str, Any]) -> tuple[str, str] | None:
        """Verdict and reason when a run uses more than it may."""
        if not self.has_memory_cgroup:
            used = self.memory_mib(pid)
            if used > limits["memory_mib"] + 16:
                return "out_of_memory", f"killed at {used:.0f} of {limits['memory_mib']} MiB"
        if self._scratch is not None:
            reason = self._scratch.over_quota(serial, limits)
            if reason is not None:
                return "failed", reason
        return None

    def memory_mib(self, pid: int) -> float:
        """Resident memory on top of the preloaded libraries."""
        try:
            return max(0, self._memory_of(self.proc_name(pid))[1] - self._base_rss) / MIB
        except OSError:
            return 0.0

    def forget(self, serial: int) -> None:
        """Clean up after a child that ended."""
        if self._scratch is not None:
            self._scratch.remove(serial)

    def proc_name(self, pid: int) -> str:
        """The pid as the procfs we read shows it: the host's."""
        return str(pid)

    def peak_mib(self, peak_rss_kib: int) -> float:
        """Peak on top of the preloaded libraries, from the kernel's count for a dead child."""
        return max(0.0, peak_rss_kib / 1024 - self._base_rss / MIB)

    def maps(self) -> str:
        """Our own memory map."""
        fd = os.open("self/maps", os.O_RDONLY, dir_fd=self._proc_fd)
        try:
            return b"".join(iter(lambda: os.read(fd, 1 << 16), b"")).decode()
        finally:
            os.close(fd)

    def _memory_of(self, name: str) -> tuple[int, int]:
        """Bytes of address space and resident bytes."""
        fd = os.open(f"{name}/statm", os.O_RDONLY, dir_fd=self._proc_fd)
        try:
            size, resident = os.read(fd, 256).split()[:2]
        finally:
            os.close(fd)
        page = os.sysconf("SC_PAGE_SIZE")
        return int(size) * page, int(resident) * page

    # -- in the child --------------------------------------------------------------------------

    def enter_child(self, serial: int, profile: dict[str, Any]) -> None:
        """Turn a fresh child into a jailed one; the order is mounts, Landlock, seccomp."""
        os.setsid()
        if self.limits_in_child:
            for kind, value in self._rlimits(profile):
                resource.setrlimit(kind, (value, value))
        self._child_scratch(serial, profile)
        self._confine(serial, profile)

    def _child_scratch(self, serial: int, profile: dict[str, Any]) -> None:
        assert self._scratch is not None
        os.chdir(self._scratch.path(serial))
        os.environ["HOME"] = os.environ["TMPDIR"] = self._scratch.path(serial)

    def _confine(self, serial: int, profile: dict[str, Any]) -> None:
        self._bind_to_zygote()

    def _bind_to_zygote(self) -> None:
        """Leave no core and no process behind, at whatever level."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)

    def _harden(self, profile: dict[str, Any]) -> None:
        """The part every real rung shares."""
        self._bind_to_zygote()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.clear_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


class SeccompJail(Jail):
    """System calls are filtered; what the user may read stays readable."""

    level = "seccomp"
    filters = True

    def _confine(self, serial: int, profile: dict[str, Any]) -> None:
        self._harden(profile)
        self._filter(profile)

    def _filter(self, profile: dict[str, Any]) -> None:
        seccomp.install(seccomp.program(os.getpid(), fork=False))


class LandlockJail(SeccompJail):
    """Landlock and seccomp: no privilege, no namespace."""

    level = "landlock"

    def __init__(self, view: View, config: dict[str, Any], proc_fd: int) -> None:
        super().__init__(view, config, proc_fd)
        self._abi = landlock.abi()
        if not self._abi:
            raise OSError("this kernel has no Landlock")
        self.facts["landlock_abi"] = self._abi

    def _confine(self, serial: int, profile: dict[str, Any]) -> None:
        self._harden(profile)
        assert self._scratch is not None
        readable = (self.view.stdlib, *self.view.packages, *self.view.system)
        rules = [(path, landlock.READ) for path in readable]
        rules.append((self._farm, landlock.READ_DIR))
        rules += list(_DEVICES)
        rules.append((self._scratch.path(serial), landlock.EVERYTHING & ~1))
        landlock.restrict(self._abi, rules)
        self._filter(profile)


class ChrootJail(SeccompJail):
    """For root on a kernel without Landlock: a copy of the library as root, a uid per child."""

    level = "chroot"
    limits_in_child = True
    first_uid = 1_700_000_000

    def enter_once(self) -> None:
        """Make the copy."""
        self._root = f"{self.config['scratch']}/root"
        build_copy(self.view, self._root)
        sys.path.extend(self.config["path"])
        os.chmod(self.config["scratch"], 0o711)
        self._scratch = ScratchWatch(f"{self._root}/tmp", self.config.get("trash_fd"))

    def _child_scratch(self, serial: int, profile: dict[str, Any]) -> None:
        assert self._scratch is not None
        uid = self.first_uid + serial % 1_000_000
        os.chown(self._scratch.path(serial), uid, uid)
        os.chroot(self._root)
        os.chdir(f"/tmp/{serial}")
        use_guest_paths(self.view)
        os.environ["HOME"] = os.environ["TMPDIR"] = f"/tmp/{serial}"
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


class FullJail(SeccompJail):
    """Namespaces, a root of our own, Landlock where the kernel has it, seccomp."""

    level = "full"

    def __init__(self, view: View, config: dict[str, Any], proc_fd: int) -> None:
        super().__init__(view, config, proc_fd)
        self._abi = landlock.abi()
        self.facts["landlock_abi"] = self._abi
        self._own_pids: int | None = None
        self._init_fd: int | None = None

    def enter_once(self) -> None:
        """Enter the namespaces; the caller forks next and continues in the child."""
        self.facts.update(enter(self.view))
        self.limits_in_child = not self.facts["user_namespace"]

    def entered(self) -> None:
        """After that fork, as pid 1 of the new pid namespace."""
        use_guest_paths(self.view)
        self._own_pids = os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc_fd)

    def proc_name(self, pid: int) -> str:
        # Our procfs is the host's (a descriptor that programs never have), and so are its pids.
        fd = kernel.pidfd_open(pid)
        try:
            info = os.open(f"self/fdinfo/{fd}", os.O_RDONLY, dir_fd=self._proc_fd)
            try:
                lines = os.read(info, 1024).decode().splitlines()
            finally:
                os.close(info)
        finally:
            os.close(fd)
        return next(line.split()[1] for line in lines if line.startswith("Pid:"))

    def new_pid_namespace(self, stacks: list[Any]) -> tuple[int, Any]:
        """A namespace per child: it sees no other process, and dies with its init.

        The init makes the child's mount namespace, too, and outlives the child in it: the kernel
        waits 5 ms when the last process leaves one, and nobody should wait with it for a result.
        """
        if self._own_pids is None:
            return 0, None
        kernel.unshare(kernel.CLONE_NEWPID)
        stack = stacks.pop() if stacks else ctypes.create_string_buffer(16384)
        pid = kernel.pause_process(kernel.CLONE_NEWNS, stack)
        with contextlib.suppress(OSError):  # before Linux 5.3
            self._init_fd = kernel.pidfd_open(pid)
        return pid, stack

    def leave_pid_namespace(self) -> None:
        """Fork the next child into our own namespace again."""
        if self._own_pids is not None:
            kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
        if self._init_fd is not None:
            os.close(self._init_fd)
            self._init_fd = None

    def inherited(self) -> tuple[int, ...]:
        """Descriptors that a child needs until it is confined."""
        return () if self._init_fd is None else (self._init_fd,)

    def _enter_mounts(self) -> None:
        if self._init_fd is not None:
            try:
                kernel.setns(self._init_fd, kernel.CLONE_NEWNS)
                return
            except OSError:
                pass  # before Linux 5.8: a namespace takes no pidfd
            finally:
                os.close(self._init_fd)
        kernel.unshare(kernel.CLONE_NEWNS)

    def _child_scratch(self, serial: int, profile: dict[str, Any]) -> None:
        self._enter_mounts()
        owner = "" if self.facts["user_namespace"] else f",uid={NOBODY},gid={NOBODY}"
        kernel.mount(
            "tmpfs", SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC,
            f"size={profile['scratch_mib']}m,nr_inodes={profile['scratch_files']},mode=0700{owner}",
        )  # fmt: skip
        os.chdir(SCRATCH)
        if not self.facts["user_namespace"]:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)

    def _confine(self, serial: int, profile: dict[str, Any]) -> None:
        self._harden(profile)
        if self._abi:
            # All of our own root is the view, so one rule covers it.
            rules = [("/", landlock.READ), *_DEVICES[:1], (SCRATCH, landlock.EVERYTHING & ~1)]
            landlock.restrict(self._abi, rules)
        seccomp.install(seccomp.program(os.getpid(), fork=profile["fork"]))


JAILS: dict[str, type[Jail]] = {
    "full": FullJail,
    "landlock": LandlockJail,
    "chroot": ChrootJail,
    "seccomp": SeccompJail,
    "none": Jail,
}
