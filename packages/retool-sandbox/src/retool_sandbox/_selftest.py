"""Attack every guarantee that a level claims; a sandbox whose attack succeeds does not open."""

# One small file in a temporary folder.
# ruff: noqa: ASYNC240

import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ._types import Level, Limits, Outcome, RunResult

Run = Callable[[str, Limits], Awaitable[RunResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One guarantee, attacked."""

    name: str
    ok: bool
    measured: str
    advice: str = ""


_CONFINED = frozenset({Level.FULL, Level.LANDLOCK, Level.CHROOT})
_FILTERED = _CONFINED | {Level.SECCOMP}
_ALL = _FILTERED | {Level.NONE}

# One program holds every attack that ends at once. Each prints `ok`, or what it reached. It imports
# little: every start of a sandbox waits for it.
_PROGRAM = """
import ctypes, errno, os, _socket
libc = ctypes.CDLL(None, use_errno=True)
def attack(name, action):
    if name not in {claims!r}: return  # at a level that does not claim it, it would succeed
    try:
        print(name, 'reached', repr(action()))
    except OSError as error:
        print(name, 'ok', errno.errorcode.get(error.errno, ''))
    except MemoryError:
        print(name, 'ok MemoryError')
def read(path):
    with open(path) as file: return file.read(64)
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), 'refused')
    return result
def beyond(names, known):
    found = sorted(set(names) - known)
    if not found: raise OSError(0, 'nothing')
    return found[:5]
def connect(family, address):
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    sock.settimeout(1)
    sock.connect(address)
def fill():
    keep = []
    while len(keep) < 1024: keep.append(bytes(1 << 20))  # zeros that nobody touched use no memory
    return len(keep)
def fork():
    pid = os.fork()
    if pid == 0: os._exit(0)
    return os.waitpid(pid, 0)
def execute():
    try: os.execv('./nothing', ['nothing'])
    except OSError as error:
        if error.errno == errno.EPERM: raise
        return error.strerror
attack('files', lambda: read({secret!r}))
attack('folders', lambda: os.listdir({folder!r}))
attack('writes', lambda: open({secret!r}, 'a').write('x'))
attack('environment', lambda: beyond(os.environ, {known!r}))
attack('other environments', lambda: read('/proc/{host}/environ'))
attack('signals', lambda: os.kill({host}, 0))
attack('network', lambda: connect(_socket.AF_INET, ('127.0.0.1', {port})))
attack('abstract sockets', lambda: connect(_socket.AF_UNIX, {abstract!r}))
attack('devices', lambda: beyond(os.listdir('/dev'), {devices!r}))
attack('ptrace', lambda: check(libc.ptrace(0x4206, {host}, 0, 0)))  # seize: does not stop it
attack('namespaces', lambda: check(libc.unshare(0x10000000)))
attack('mounts', lambda: check(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)))
attack('fork', fork)
attack('exec', execute)
attack('address space', fill)
"""
_CLAIMS: dict[str, tuple[frozenset[Level], str]] = {
    "files": (_CONFINED, "a file of the host was read"),
    "folders": (_CONFINED, "a folder of the host was listed"),
    "writes": (_CONFINED, "a file of the host was written"),
    "environment": (_ALL, "variables of the caller are visible"),
    "other environments": (_CONFINED, "/proc of the host was read"),
    "signals": (_FILTERED, "a process of the host can be signalled"),
    "network": (_FILTERED, "a service on loopback was reached"),
    "abstract sockets": (_FILTERED, "an abstract socket was reached"),
    "devices": (_CONFINED, "devices of the host are visible"),
    "ptrace": (_FILTERED, "a process of the host can be traced"),
    "namespaces": (_FILTERED, "namespaces can be made"),
    "mounts": (_FILTERED, "file systems can be mounted"),
    "fork": (_FILTERED, "processes can be started"),
    "exec": (_FILTERED, "programs can be executed"),
    "address space": (_ALL, "more memory than allowed was handed out"),
}
_ADVICE = "do not use this level here; report the kernel and container runtime"
_SMALL = Limits(wall_time_s=20.0, memory_mib=32)
_MEMORY = "keep = []\nwhile True: keep.append(b'x' * (1 << 20))"
_SPIN = "while True: pass"
_FLOOD = "while True: print('x' * 10000)"


async def quick_checks(run: Run, level: Level, known: frozenset[str]) -> list[Check]:
    """The attacks of every start: files, processes, network, memory. Takes milliseconds."""
    return await _attacks(run, level, known, _SMALL)


async def thorough_checks(run: Run, level: Level, known: frozenset[str]) -> list[Check]:
    """All attacks, with what was measured."""
    checks = await quick_checks(run, level, known)
    checks.append(_memory_check(await run(_MEMORY, _SMALL)))
    limit_s = 0.2
    spin = await run(_SPIN, Limits(wall_time_s=limit_s))
    late_ms = (spin.wall_time_s - limit_s) * 1000
    checks.append(
        Check(
            name="time limit",
            ok=spin.outcome is Outcome.TIMED_OUT and late_ms < 1000,
            measured=f"killed {late_ms:.1f} ms after {limit_s:g} s",
            advice="the machine is overloaded; lower the concurrency",
        )
    )
    flood = await run(_FLOOD, Limits(wall_time_s=20.0, output_kib=16))
    checks.append(
        Check(
            name="output limit",
            ok=flood.outcome is Outcome.OUTPUT_LIMIT,
            measured=flood.detail or flood.outcome.value,
            advice=_ADVICE,
        )
    )
    files = await run(
        "i = 0\nwhile True:\n    open(f'f{i}', 'w').close(); i += 1",
        Limits(wall_time_s=20.0, scratch_files=64),
    )
    checks.append(
        Check(
            name="file count",
            ok=files.outcome is Outcome.FAILED,
            measured=files.detail or "ended by ENOSPC",
            advice=_ADVICE,
        )
    )
    return checks


def _memory_check(result: RunResult) -> Check:
    stopped = result.outcome is Outcome.OUT_OF_MEMORY or (
        result.outcome is Outcome.FAILED and "MemoryError" in (result.traceback or "")
    )
    how = "killed" if result.outcome is Outcome.OUT_OF_MEMORY else "MemoryError"
    return Check(
        name="memory limit",
        ok=stopped,
        measured=f"{how} at 32 MiB" if stopped else f"ended {result.outcome.value}",
        advice="give the container a writable memory cgroup",
    )


async def _attacks(run: Run, level: Level, known: frozenset[str], limits: Limits) -> list[Check]:
    token = secrets.token_hex(16)
    name = f"\0retool-{token}"
    with tempfile.TemporaryDirectory(prefix="retool-selftest-") as folder:
        secret = Path(folder, "secret")
        secret.write_text(token)
        secret.chmod(0o666)
        Path(folder).chmod(0o777)
        with (
            closing(socket.create_server(("127.0.0.1", 0))) as listener,
            closing(socket.socket(socket.AF_UNIX)) as abstract,
        ):
            abstract.bind(name)
            abstract.listen()
            code = _PROGRAM.format(
                secret=str(secret),
                folder=folder,
                claims={name for name, (levels, _) in _CLAIMS.items() if level in levels},
                known=set(known),
                devices={"null", "zero", "random", "urandom", "shm"},
                host=os.getpid(),
                port=listener.getsockname()[1],
                abstract=name,
            )
            result = await run(code, limits)
        touched = secret.read_text() != token
    return _judge(result, level, touched=touched)


def _judge(result: RunResult, level: Level, *, touched: bool) -> list[Check]:
    answers: dict[str, str] = {}
    for line in result.stdout.splitlines():
        for name in _CLAIMS:
            if line.startswith(f"{name} "):
                answers[name] = line[len(name) + 1 :].strip()
    checks: list[Check] = []
    for name, (levels, meaning) in _CLAIMS.items():
        if level not in levels:
            continue
        answer = answers.get(name, f"no answer: {result.stderr[-200:] or result.detail}")
        ok = answer.split(" ", 1)[0] == "ok" and not (name == "writes" and touched)
        measured = answer.removeprefix("ok").strip() or "nothing there"
        checks.append(
            Check(
                name=name,
                ok=ok,
                measured=measured if ok else f"{meaning} ({answer[:120]})",
                advice="" if ok else _ADVICE,
            )
        )
    return checks
