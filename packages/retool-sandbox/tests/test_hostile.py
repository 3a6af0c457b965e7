"""Hostile programs against the real isolator; every test ends by proving the host is untouched."""

# ruff: noqa: E501

import asyncio
import importlib.util
import os
import time
from typing import Any

import pytest

from retool_sandbox import Limits, Outcome, RunResult, Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEANING = {
    "ok": Outcome.OK,
    "error": Outcome.FAILED,
    "timeout": Outcome.TIMED_OUT,
    "memory": Outcome.OUT_OF_MEMORY,
    "died": Outcome.DIED,
    "killed": Outcome.DIED,
    "policy": Outcome.REFUSED,
}


def allowed_outcomes(status: str) -> set[Outcome]:
    if status == "output_limit":
        return {Outcome.OUTPUT_LIMIT}
    return {MEANING[word] for word in status.split("_or_")}


async def check_alive(sandbox: Sandbox, host: Any, result: RunResult) -> None:
    host.check_untouched(result.stdout, result.stderr, result.value or "", result.traceback or "")
    after = await sandbox.run("import math\nprint('alive', math.sqrt(4))")
    assert after.stdout == "alive 2.0\n"
    assert after.isolation == sandbox.level.value


async def test_shared_case(jailed: Sandbox, host: Any, hostile_case: dict[str, Any]) -> None:
    expect = hostile_case["expect"]
    started = time.monotonic()
    # What must be timed out may be timed out soon; the rest gets time on a busy machine.
    wall_time_s = 0.7 if "timeout" in expect["status"] else 60.0
    limits = Limits(wall_time_s=wall_time_s, memory_mib=256)
    result = await jailed.run(hostile_case["code"], limits=limits)
    took_s = time.monotonic() - started
    assert result.outcome in allowed_outcomes(expect["status"]), result
    if "stdout" in expect:
        assert result.stdout == expect["stdout"]
    assert took_s < 90
    assert len(result.stdout) + len(result.stderr) < 400_000
    check_invariant(hostile_case["id"], result)
    await check_alive(jailed, host, result)


def check_invariant(case: str, result: RunResult) -> None:
    """The part of a case's invariant that is not the same for all of them."""
    if case == "proc-os-system":
        assert "uid=" not in result.stdout
    elif case == "proc-segfault":
        assert result.signal == 11
    elif case == "proc-exit-nonzero":
        assert result.exit_code == 3
    elif case == "sig-raise-kill-self":
        assert result.signal == 9
    elif case == "sig-systemexit-str":
        assert result.stderr == "bad\n"
    elif case in ("out-one-line", "out-flood"):
        assert result.stdout.count("bytes cut") == 1
        assert result.truncated == ("stdout",)
        assert result.stdout.startswith("x")
        assert result.stdout.rstrip().endswith("x")
    elif case == "fs-davinci-device":
        assert result.outcome is Outcome.FAILED or result.stdout == "[]\n"
    elif case == "esc-gc-objects":
        assert result.stdout == "[]\n"
    elif case == "esc-traceback-frame":
        assert set(result.stdout.split()) <= {"[]"}
    elif case == "net-inherited-fd":
        assert len(result.stdout.splitlines()) <= 3
    elif case == "net-raw-iouring" or case == "proc-ptrace":
        assert result.stdout == "-1\n"
    elif case == "state-stdin":
        assert "EOFError" in (result.traceback or "")
    elif case == "enc-tabs-mixed":
        assert "TabError" in (result.traceback or "")


ATTACKS = {
    "reads the planted file": "print(open({secret!r}).read())",
    "reads it through a link": "import os\nos.symlink({secret!r}, 'l')\nprint(open('l').read())",
    "reads it by a raw call": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nfd = libc.open({secret!r}.encode(), 0)\n"
        "b = ctypes.create_string_buffer(99)\nlibc.read(fd, b, 99)\nprint(b.value)"
    ),
    "appends to a world-writable file": "open({writable!r}, 'a').write('x')",
    "truncates it": "import os\nos.truncate({writable!r}, 0)",
    "deletes it": "import os\nos.unlink({writable!r})",
    "renames it": "import os\nos.rename({writable!r}, 'mine')",
    "reads every environment": (
        "import os\nprint(dict(os.environ))\nfor p in [*range(1, 5000), 'self']:\n"
        "    try: print(open(f'/proc/{{p}}/environ').read())\n    except OSError: pass"
    ),
    "searches its memory for the environment": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.getenv.restype = ctypes.c_char_p\n"
        "print(libc.getenv(b'RETOOL_TEST_SECRET'))"
    ),
    "connects to the listener": (
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1).send(b'x')"
    ),
    "connects with a datagram pair": (
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "a.sendto(b'x', {abstract!r})"
    ),
    "reconnects a stream pair": (
        "import socket\na, b = socket.socketpair()\na.connect({abstract!r})"
    ),
    "kills the sibling": "import os\nos.kill({sibling}, 9)",
    "kills everybody": "import os\nfor p in range(2, 70000):\n    try: os.kill(p, 9)\n    except OSError: pass",
    "kills by a file owner signal": (
        "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, {sibling})\n"
        "fcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\nos.write(w, b'x')"
    ),
    "stops its supervisor": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nos.kill(1, 19)",
    "traces the sibling": "import ctypes\nprint(ctypes.CDLL(None).ptrace(16, {sibling}, 0, 0))",
    "kills itself by a timer": (
        "import ctypes, struct, time\nlibc = ctypes.CDLL(None)\nmade = ctypes.c_void_p()\n"
        "event = struct.pack('Pii48x', 0, 9, 0)\n"
        "assert libc.timer_create(1, event, ctypes.byref(made)) == 0\n"
        "libc.timer_settime(made, 0, struct.pack('4l', 0, 0, 0, 10**6), None)\ntime.sleep(2)"
    ),
    "limits the sibling": "import resource\nresource.prlimit({sibling}, resource.RLIMIT_NOFILE, (0, 0))",
    "raises its own limit": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nx = bytearray(10**10)"
    ),
    "makes namespaces": "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.unshare(0x10000000))",
    "mounts": "import ctypes\nprint(ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "clones by number": "import ctypes\nprint(ctypes.CDLL(None).syscall({clone}, 17, 0, 0, 0, 0))",
    "leaves the root": (
        "import os\nfor _ in range(50): os.chdir('..')\n"
        "print(open('.' + {secret!r}).read())"
    ),
    "becomes root": "import os\nos.setuid(0)",
    "forges a good report": (
        "import os, struct\n"
        "for fd in range(3, 200):\n"
        "    try: os.write(fd, struct.pack('>IiBII', 13, 0, 0, 0, 0))\n"
        "    except OSError: pass\n"
        "while True: pass"
    ),
    "sends a report of four gigabytes": (
        "import os\nfor fd in range(3, 200):\n"
        "    try: os.write(fd, b'\\xff' * 65536)\n    except OSError: pass"
    ),
    "loads a library from the scratch": (
        "import shutil, ctypes, sys, _ctypes\nshutil.copy(_ctypes.__file__, 'x.so')\n"
        "ctypes.CDLL('./x.so')\nprint('loaded')\nopen({secret!r})"
    ),
    "starts a thread bomb": (
        "import threading, time\nn = 0\n"
        "try:\n    while True:\n        threading.Thread(target=time.sleep, args=(9,)).start(); n += 1\n"
        "except RuntimeError: print('bounded')\nassert n < 2000"
    ),
    "writes until memory ends": "d = {{}}\ni = 0\nwhile True:\n    d[i] = 'x' * 4096; i += 1",
    "fills shared memory": (
        "import mmap\nkeep = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 24); m.write(b'x' * (1 << 24)); keep.append(m)"
    ),
    "holds deleted files": (
        "keep = []\nimport os\nwhile True:\n    f = open('f', 'wb'); os.unlink('f'); f.write(b'x' * (1 << 23)); f.flush(); keep.append(f)"
    ),
}  # fmt: skip
MAY_END_WELL = {
    "reads it by a raw call",
    "reads every environment",
    "searches its memory for the environment",
    "kills everybody",
    "traces the sibling",
    "makes namespaces",
    "mounts",
    "clones by number",
    "sends a report of four gigabytes",
    "starts a thread bomb",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_attack_fails_and_touches_nothing(jailed: Sandbox, host: Any, attack: str) -> None:
    code = ATTACKS[attack].format(
        secret=str(host.secret_file),
        writable=str(host.writable_file),
        port=host.port,
        abstract=host.abstract_name,
        sibling=host.sibling.pid,
        clone=56 if os.uname().machine == "x86_64" else 220,
    )
    result = await jailed.run(code, limits=Limits(wall_time_s=2.5, memory_mib=256))
    if attack not in MAY_END_WELL:
        assert result.outcome is not Outcome.OK, result
    await check_alive(jailed, host, result)


async def test_runs_do_not_see_each_other(jailed: Sandbox) -> None:
    first = await jailed.run(
        "import math, os, sys, builtins\nmath.sqrt = lambda x: 666\nopen('a.txt', 'w').write('x')\n"
        "builtins.print = None\nos.environ['A'] = 'b'\nsys.path.clear()"
    )
    assert first.outcome is Outcome.OK
    second = await jailed.run(
        "import math, os\nprint(math.sqrt(4), os.listdir('.'), os.environ.get('A'))"
    )
    assert second.stdout == "2.0 [] None\n"


SEARCH = """
import gc, sys
frames, frame = [], sys._getframe()
while frame: frames.append(frame); frame = frame.f_back
seen, todo = set(), [sys.modules, *frames, *gc.get_objects()]
while todo:
    found = todo.pop()
    if id(found) in seen: continue
    seen.add(id(found))
    if str(type(found).__module__).startswith('retool'): print(type(found))
    todo += gc.get_referents(found)
print(len(seen) > 1000)
"""


async def test_nothing_of_the_zygote_can_be_reached(jailed: Sandbox) -> None:
    async with jailed.session() as session:
        await session.run("x = 1")
        other = asyncio.create_task(jailed.run("import time\ntime.sleep(1)"))
        await asyncio.sleep(0.2)
        result = await session.run(SEARCH, limits=Limits(wall_time_s=60.0))
        assert result.stdout == "True\n", result
        await other


async def test_random_numbers_differ_unless_seeded(jailed: Sandbox) -> None:
    code = "import random, numpy as np\nprint(random.random(), np.random.rand())"
    free = {(await jailed.run(code)).stdout for _ in range(3)}
    assert len(free) == 3
    seeded = {(await jailed.run(code, seed=7)).stdout for _ in range(2)}
    assert len(seeded) == 1


async def test_realistic_case(jailed: Sandbox, realistic_case: dict[str, Any]) -> None:
    for module in realistic_case["modules"]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    result = await jailed.run(realistic_case["code"], limits=Limits(wall_time_s=60))
    expect = realistic_case["expect"]
    assert result.stdout == expect["stdout"], result
    assert result.outcome is MEANING[expect["status"]]
    if "exception" in expect:
        assert expect["exception"] in (result.traceback or "")
