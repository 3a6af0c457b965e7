"""Run thousands of good and hostile programs and show that nothing is left over.

    python packages/retool-sandbox/benchmarks/soak.py --runs 10000

Prints one line per level and exits non-zero if a good run was wrong, or if a process, descriptor,
mount, cgroup or file is left, or the memory of the caller or the zygote grew.
"""

# ruff: noqa: ASYNC240, PTH110, PTH208, E501

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from retool_sandbox import Limits, Outcome, Sandbox

GOOD = [
    ("print(sum(range({n})))", lambda n: f"{sum(range(n))}\n"),
    ("open('f', 'w').write('x' * {n})\nimport os\nprint(os.path.getsize('f'))", lambda n: f"{n}\n"),
    ("from math import comb\ncomb({n}, 2)", lambda n: f"{n * (n - 1) // 2}\n"),
    ("import threading\nt = threading.Thread(target=print, args=({n},))\nt.start(); t.join()",
     lambda n: f"{n}\n"),
]  # fmt: skip
HOSTILE = [
    "while True: pass",
    "import os\nwhile True: os.fork()",
    "while True: print('x' * 1000)",
    "keep = []\nwhile True: keep.append(bytearray(10**6))",
    "import os\nos.kill(os.getpid(), 9)",
    "import ctypes\nctypes.string_at(0)",
    "import os\ni = 0\nwhile True:\n    open(f'f{i}', 'w').close(); i += 1",
    "import os\nfor _ in range(100):\n    os.mkdir('d'); os.chdir('d')",
    "import os\nos.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)",
    "import os\nfor fd in range(3, 99):\n    try: os.write(fd, b'\\xff' * 999)\n    except OSError: pass",
    "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    "raise SystemExit(3)",
]
LIMITS = Limits(wall_time_s=10.0, memory_mib=64, scratch_mib=4, scratch_files=128, output_kib=8)
SHORT = Limits(wall_time_s=0.15, memory_mib=64, scratch_mib=4, scratch_files=128, output_kib=8)


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def left_over(name: str) -> list[str]:
    """Scratch folders and cgroups that carry the sandbox's name."""
    found = [str(path) for path in Path(tempfile.gettempdir()).glob(f"{name}*")]
    for folder, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{folder}/{entry}" for entry in folders if entry.startswith(name)]
    return found


async def soak(level: str, runs: int, concurrency: int) -> dict[str, Any]:
    """Run the mix at one level."""
    fds = set(os.listdir("/proc/self/fd"))
    mounts = Path("/proc/self/mounts").read_text()
    wrong: list[str] = []
    outcomes: dict[str, int] = {}
    started = time.monotonic()
    name = f"retool-sandbox-{os.getpid()}-"
    async with Sandbox(
        tier="stdlib", isolation=level, concurrency=concurrency, limits=LIMITS
    ) as sandbox:
        worker = sandbox._worker
        assert worker is not None
        assert worker.pid is not None
        keeper = worker.pid
        (zygote,) = children_of(keeper)

        async def lane(first: int) -> None:
            for number in range(first, runs, concurrency):
                if number % 3 == 2:
                    result = await sandbox.run(HOSTILE[number // 3 % len(HOSTILE)], limits=SHORT)
                else:
                    code, answer = GOOD[number % len(GOOD)]
                    result = await sandbox.run(code.format(n=number + 2))
                    if result.outcome is not Outcome.OK or result.stdout != answer(number + 2):
                        wrong.append(f"{number}: {result}")
                outcomes[result.outcome.value] = outcomes.get(result.outcome.value, 0) + 1
                if number == runs // 5:
                    before.update(caller=rss_mib(os.getpid()), zygote=rss_mib(zygote))

        before: dict[str, float] = {}
        await asyncio.gather(*map(lane, range(concurrency)))
        await asyncio.sleep(1.0)
        alive = len(children_of(zygote))
        spares = len(await sandbox.spare_pids())
        zygote_fds = len(os.listdir(f"/proc/{zygote}/fd"))
        grown = {
            "caller": round(rss_mib(os.getpid()) - before["caller"], 2),
            "zygote": round(rss_mib(zygote) - before["zygote"], 2),
        }
    problems = wrong[:3]
    if os.path.exists(f"/proc/{zygote}") or os.path.exists(f"/proc/{keeper}"):
        problems.append("a process is left")
    if alive > 2 * spares:  # each child may have an init of its own
        problems.append(f"{alive} children for {spares} spares")
    if set(os.listdir("/proc/self/fd")) != fds:
        problems.append("a descriptor is left")
    if Path("/proc/self/mounts").read_text() != mounts:
        problems.append("a mount is left")
    problems += left_over(name)
    # Allocators settle late; a leak of a kilobyte per run would show as 8 MiB and more.
    problems += [f"{who} grew by {by} MiB" for who, by in grown.items() if by > 8]
    return {
        "level": level,
        "runs": runs,
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": outcomes,
        "grown_mib": grown,
        "zygote_fds": zygote_fds,
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--levels", nargs="+", default=["full", "landlock"])
    arguments = parser.parse_args()
    failed = False
    for level in arguments.levels:
        report = asyncio.run(soak(level, arguments.runs, arguments.concurrency))
        print(report, flush=True)
        failed = failed or bool(report["problems"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
