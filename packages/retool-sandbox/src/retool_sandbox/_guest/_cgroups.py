"""Memory and process limits by cgroup, version 1 or 2, where one can be had."""

import contextlib
import os
import re
import time
from typing import Any

MIB = 1 << 20


class NoSlots:
    """Stands in where no cgroup can be had: rlimits and the memory watch do the work."""

    kind = "rlimits"

    def take(self) -> Any:
        """Nothing to take."""
        return None

    def give_back(self, slot: Any) -> None:
        """Nothing to give back."""

    def join(self, slot: Any) -> None:
        """No cgroup to join."""

    def descriptors(self) -> list[int]:
        """None are needed."""
        return []

    def limit(self, slot: Any, limits: dict[str, Any]) -> None:
        """Rlimits do it."""

    def start_peak(self, slot: Any) -> None:
        """Nothing is counted."""

    def was_oom(self, slot: Any) -> bool:
        """Never by a cgroup."""
        return False

    def peak_mib(self, slot: Any) -> float:
        """Unknown."""
        return 0.0


class Slot:
    """One child cgroup, used by one run at a time."""

    __slots__ = ("limit_bytes", "name", "ooms", "peak_fd", "pids")

    def __init__(self, name: str, peak_fd: int | None) -> None:
        self.name = name
        self.peak_fd = peak_fd
        self.limit_bytes = 0
        self.pids = 0
        self.ooms = 0


class Group:
    """The cgroup of one zygote: one directory per hierarchy."""

    __slots__ = ("memory", "pids", "version")

    def __init__(self, version: int, memory: str, pids: str | None) -> None:
        self.version = version
        self.memory = memory
        self.pids = pids

    def paths(self) -> list[str]:
        """Its directories."""
        return [path for path in (self.memory, self.pids) if path is not None]


class Slots:
    """Hands out child cgroups. Opened before the zygote enters its namespaces; used inside."""

    def __init__(self, group: Group, memory_fd: int, pids_fd: int | None) -> None:
        self.group = group
        self.memory_fd = memory_fd
        self.pids_fd = pids_fd
        self.free: list[Slot] = []
        self.count = 0

    @property
    def kind(self) -> str:
        """What limits the memory."""
        return f"cgroup v{self.group.version}"

    def _write(self, fd: int, name: str, text: str) -> None:
        file = os.open(name, os.O_WRONLY, dir_fd=fd)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    def _read(self, fd: int, name: str) -> str:
        file = os.open(name, os.O_RDONLY, dir_fd=fd)
        try:
            return os.read(file, 4096).decode()
        finally:
            os.close(file)

    def descriptors(self) -> list[int]:
        """What a child needs to join."""
        same = self.pids_fd is None or self.pids_fd == self.memory_fd
        return [self.memory_fd] if same else [self.memory_fd, self.pids_fd or 0]

    def take(self) -> Slot:
        """A free slot, made when there is none."""
        if self.free:
            slot = self.free.pop(0)  # the one whose last run ended the longest ago
        else:
            name = f"s{self.count}"
            self.count += 1
            for fd in self.descriptors():
                os.mkdir(name, dir_fd=fd)
            slot = Slot(name, self._open_peak(name))
        slot.ooms = self._oom_count(slot)
        return slot

    def _open_peak(self, name: str) -> int | None:
        file = "memory.peak" if self.group.version == 2 else "memory.max_usage_in_bytes"
        for mode in (os.O_RDWR, os.O_RDONLY):  # memory.peak can be reset since Linux 6.12 only
            with contextlib.suppress(OSError):  # and is there since 5.19
                return os.open(f"{name}/{file}", mode | os.O_CLOEXEC, dir_fd=self.memory_fd)
        return None

    def give_back(self, slot: Slot) -> None:
        """Make it free for the next run."""
        self.free.append(slot)

    def join(self, slot: Slot) -> None:
        """Move the calling process, which has one thread yet, into the slot."""
        # To move a whole process the kernel waits for its RCU readers, 5 ms and more; version 1 can
        # move a thread instead.
        name = "tasks" if self.group.version == 1 else "cgroup.procs"
        for fd in self.descriptors():
            self._write(fd, f"{slot.name}/{name}", "0")

    def limit(self, slot: Slot, limits: dict[str, Any]) -> None:
        """Set the ceilings of the next run or turn."""
        # Files in the scratch are memory, too.
        wanted = (limits["memory_mib"] + limits["scratch_mib"]) * MIB
        if wanted != slot.limit_bytes:
            self._limit_memory(slot, wanted)
            slot.limit_bytes = wanted
        pids = limits["processes"] + limits["threads"]
        if self.pids_fd is not None and pids != slot.pids:
            self._write(self.pids_fd, f"{slot.name}/pids.max", str(pids))
            slot.pids = pids

    def start_peak(self, slot: Slot) -> None:
        """Count the most memory from here on, where the kernel can."""
        if slot.peak_fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(slot.peak_fd, b"0", 0)

    def _limit_memory(self, slot: Slot, wanted: int) -> None:
        if self.group.version == 2:
            self._write(self.memory_fd, f"{slot.name}/memory.max", str(wanted))
            with contextlib.suppress(OSError):  # no swap in this kernel
                self._write(self.memory_fd, f"{slot.name}/memory.swap.max", "0")
            return
        memory = f"{slot.name}/memory.limit_in_bytes"
        swap = f"{slot.name}/memory.memsw.limit_in_bytes"
        # The two may never cross: raise the outer one first, lower it last.
        for name in (swap, memory) if wanted > slot.limit_bytes > 0 else (memory, swap):
            try:
                self._write(self.memory_fd, name, str(wanted))
            except OSError:
                if name == memory:
                    raise

    def _oom_count(self, slot: Slot) -> int:
        name = "memory.events" if self.group.version == 2 else "memory.oom_control"
        match = re.search(
            r"^oom_kill (\d+)", self._read(self.memory_fd, f"{slot.name}/{name}"), re.MULTILINE
        )
        return int(match[1]) if match else 0

    def was_oom(self, slot: Slot) -> bool:
        """Whether the kernel killed for memory since the slot was taken."""
        return self._oom_count(slot) > slot.ooms

    def peak_mib(self, slot: Slot) -> float:
        """The most memory of the current run."""
        if slot.peak_fd is None:
            return 0.0
        return int(os.pread(slot.peak_fd, 64, 0)) / MIB


def own_cgroups(mountinfo: str, cgroup: str) -> dict[str, tuple[int, str]]:
    """Where our own cgroup lies, per controller.

    Args:
        mountinfo: Text of /proc/self/mountinfo.
        cgroup: Text of /proc/self/cgroup.

    Returns:
        "memory", "pids" or "" (version 2) to (version, directory).
    """
    own: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    found: dict[str, tuple[int, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, mount_point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            if name in ("", "memory", "pids") and name in own:
                path = own[name]
                inside = path[len(root) :] if root != "/" and path.startswith(root) else path
                directory = f"{mount_point}/{inside.strip('/')}".rstrip("/")
                found[name] = (2 if name == "" else 1, directory)
    return found


def make_group(name: str) -> Group | None:
    """Make the group of one zygote beneath our own cgroup; None where that is not allowed."""
    try:
        with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as own:
            found = own_cgroups(mounts.read(), own.read())
    except FileNotFoundError:
        return None
    for controller in ("memory", ""):
        if controller not in found:
            continue
        version, directory = found[controller]
        pids = found.get("pids", (0, None))[1] if version == 1 else directory
        made: list[str] = []
        try:
            group = Group(version, f"{directory}/{name}", f"{pids}/{name}" if pids else None)
            for path in dict.fromkeys(group.paths()):
                os.mkdir(path)
                made.append(path)
            if version == 2:
                _delegate_controllers(directory, group.memory)
            return group
        except OSError:
            for path in made:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
    return None


def _delegate_controllers(parent: str, group: str) -> None:
    for directory in (parent, group):
        with open(f"{directory}/cgroup.subtree_control", "w") as file:
            file.write("+memory +pids")


def open_slots(group: Group, owner: int | None) -> Slots:
    """Open a group for a zygote that will run as `owner`."""
    memory_fd = os.open(group.memory, os.O_PATH | os.O_DIRECTORY)
    pids_fd = None
    if group.pids is not None:
        pids_fd = os.open(group.pids, os.O_PATH | os.O_DIRECTORY)
    if owner is not None:
        for path in group.paths():
            os.chown(path, owner, -1)
            if group.version == 2:
                # A process moves only below a cgroup whose cgroup.procs it may write: see the
                # delegation rules of cgroup v2. So the zygote itself moves in, too.
                for name in ("cgroup.procs", "cgroup.subtree_control"):
                    os.chown(f"{path}/{name}", owner, -1)
    if group.version == 2:
        leaf = f"{group.memory}/zygote"
        if not os.path.isdir(leaf):  # made while a stronger level was tried
            os.mkdir(leaf)
        with open(f"{leaf}/cgroup.procs", "w") as file:
            file.write("0")
    return Slots(group, memory_fd, memory_fd if group.pids == group.memory else pids_fd)


def remove_group(group: Group, deadline_s: float = 2.0) -> None:
    """Remove a group whose processes are gone, or are just going."""
    deadline = time.monotonic() + deadline_s
    for path in dict.fromkeys(group.paths()):
        while os.path.isdir(path):
            try:
                with os.scandir(path) as entries:
                    names = [entry.path for entry in entries if entry.is_dir()]
                for name in names:
                    os.rmdir(name)
                os.rmdir(path)
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.005)
