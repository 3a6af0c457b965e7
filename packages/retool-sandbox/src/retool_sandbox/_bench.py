"""Measure, interleaved in one run, what a program costs here and by the usual ways."""

import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ._sandbox import ALLOW_NONE, Sandbox
from ._types import Limits, Outcome

CASES = {
    "print": ("print(sum(range(100)))", "4950\n"),
    "sympy": (
        "from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))",
        "[2, 3]\n",
    ),
}
Back = Callable[[str, int], Awaitable[str]]
Report = dict[str, Any]
LIMITS = Limits(wall_time_s=60.0)
WIDTHS = (1, 8)
WARM_UP_S = 3.0  # the zygotes warm their libraries up while nobody asks


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


async def _process(command: list[str], code: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(code)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, file.name, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, _ = await process.communicate()
    finally:
        Path(file.name).unlink()  # noqa: ASYNC240
    return out.decode()


def _bwrap() -> list[str] | None:
    path = shutil.which("bwrap")
    if path is None:
        return None
    command = [
        path,
        "--ro-bind",
        "/",
        "/",
        "--tmpfs",
        "/dev/shm",
        "--unshare-all",
        "--die-with-parent",
    ]
    command += ["--proc", "/proc", "--dev", "/dev", sys.executable, "-I"]
    probe = subprocess.run([*command, "-c", "print(1)"], capture_output=True, check=False)
    return command if probe.returncode == 0 else None


async def run_bench(rounds: int = 20, progress: Callable[[str], None] = print) -> Report:
    """Measure every back end, interleaved, and what else a target speaks of.

    Args:
        rounds: Repetitions at concurrency 1; every round visits every back end.
        progress: Receives one line per step.
    """
    report: Report = {}
    async with AsyncExitStack() as stack:
        backs, skipped = await _open_backs(stack)
        samples: dict[tuple[str, str, int], list[float]] = {}
        spent: dict[tuple[str, str, int], float] = {}
        for case, (code, expected) in CASES.items():
            for width in WIDTHS:
                for turn in range(max(2, rounds // (1 if width == 1 else 2))):
                    for name, back in backs.items():
                        key = (name, case, width)
                        took, wall = await _measure(back, code, expected, width)
                        if turn:  # the first visit warms caches
                            samples.setdefault(key, []).extend(took)
                            spent[key] = spent.get(key, 0.0) + wall
                progress(f"{case} at concurrency {width}: done")
        for (name, case, width), took in samples.items():
            report.setdefault(name, {}).setdefault(case, {})[f"c{width}"] = {
                "p50_ms": round(percentile(took, 0.5) * 1000, 3),
                "p99_ms": round(percentile(took, 0.99) * 1000, 3),
                "per_s": round(len(took) / spent[name, case, width], 2),
            }
    for name, reason in skipped.items():
        report[name] = {"skipped": reason}
    report["extra"] = await _extras()
    report["targets"] = judge(report)
    return report


async def _open_backs(stack: AsyncExitStack) -> tuple[dict[str, Back], dict[str, str]]:
    async def subprocess_back(code: str, lane: int) -> str:
        return await _process([sys.executable], code)

    backs: dict[str, Back] = {"subprocess": subprocess_back}
    skipped: dict[str, str] = {}
    bwrap = _bwrap()
    if bwrap is None:
        skipped["bwrap"] = "bubblewrap is not installed, or cannot make namespaces here"
    else:

        async def bwrap_back(code: str, lane: int) -> str:
            return await _process(bwrap, code)

        backs["bwrap"] = bwrap_back
    os.environ[ALLOW_NONE] = "1"  # the bench's own programs, to see what isolation costs
    bare = Sandbox(isolation="none", concurrency=8, spares=8, limits=LIMITS, cgroups=False)
    full = Sandbox(concurrency=8, spares=8, limits=LIMITS)
    for name, sandbox in (("fork_only", bare), ("sandbox", full)):
        await stack.enter_async_context(sandbox)
        backs[name] = _run_back(sandbox)
    sessions = [await stack.enter_async_context(full.session()) for _ in range(max(WIDTHS))]

    async def session_back(code: str, lane: int) -> str:
        return (await sessions[lane].run(code)).stdout

    backs["session"] = session_back
    await asyncio.sleep(WARM_UP_S)
    return backs, skipped


def _run_back(sandbox: Sandbox) -> Back:
    async def back(code: str, lane: int) -> str:
        return (await sandbox.run(code)).stdout

    return back


async def _measure(back: Back, code: str, expected: str, width: int) -> tuple[list[float], float]:
    """Run `width` lanes of four programs each; seconds per program and in all."""

    async def lane(number: int) -> list[float]:
        took: list[float] = []
        for _ in range(4 if width > 1 else 1):
            started = time.perf_counter()
            out = await back(code, number)
            took.append(time.perf_counter() - started)
            if out != expected:
                raise RuntimeError(f"a back end answered {out!r}, expected {expected!r}")
        return took

    # The spares of the last visit are made in the background; do not measure their making.
    await asyncio.sleep(0.02)
    started = time.perf_counter()
    lanes = await asyncio.gather(*(lane(number) for number in range(width)))
    wall = time.perf_counter() - started
    return [value for part in lanes for value in part], wall


async def _extras() -> Report:
    extra: Report = {}
    for tier in ("stdlib", "math"):
        times: list[float] = []
        for _ in range(5):
            started = time.perf_counter()
            async with Sandbox(tier=tier, spares=1):  # pyright: ignore[reportArgumentType]
                times.append(time.perf_counter() - started)
        extra[f"cold_start_{tier}_s"] = round(percentile(times, 0.5), 4)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)  # noqa: ASYNC221
    extra["python_start_s"] = round(time.perf_counter() - started, 4)
    async with Sandbox(concurrency=1, spares=1) as sandbox:
        await asyncio.sleep(WARM_UP_S)
        late: list[float] = []
        for _ in range(40):
            result = await sandbox.run("while True: pass", limits=Limits(wall_time_s=0.05))
            if result.outcome is not Outcome.TIMED_OUT:
                raise RuntimeError(f"an endless loop ended {result.outcome.value}")
            late.append(result.wall_time_s - 0.05)
        extra["kill_overshoot_p50_ms"] = round(percentile(late, 0.5) * 1000, 2)
        extra["kill_overshoot_p99_ms"] = round(percentile(late, 0.99) * 1000, 2)
        quick: list[float] = []
        for _ in range(60):
            await asyncio.sleep(0.02)
            started = time.perf_counter()
            await sandbox.run("print(1)")
            quick.append(time.perf_counter() - started)
        extra["warm_print_p50_ms"] = round(percentile(quick, 0.5) * 1000, 3)
        turns: list[float] = []
        async with sandbox.session() as session:
            for _ in range(300):
                started = time.perf_counter()
                await session.run("1 + 1")
                turns.append(time.perf_counter() - started)
        extra["session_turn_p50_ms"] = round(percentile(turns, 0.5) * 1000, 3)
        await asyncio.sleep(0.5)
        extra["idle_spare_private_mib"] = await _spare_mib(sandbox)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    extra["caller_peak_rss_mib"] = round(usage.ru_maxrss / 1024, 1)
    return extra


async def _spare_mib(sandbox: Sandbox) -> float | None:
    """Private memory of an idle spare, by the caller's own view of its descendants."""
    pids = await sandbox.spare_pids()
    sizes: list[float] = []
    for pid in pids:
        try:
            text = await asyncio.to_thread(Path(f"/proc/{pid}/smaps_rollup").read_text)
        except OSError:
            continue
        kib = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")]
        sizes.append(sum(kib) / 1024)
    return round(min(sizes), 2) if sizes else None


def judge(report: Report) -> list[Report]:
    """Each target with the number reached."""

    def ratio(upper: tuple[str, str, str, str], lower: tuple[str, str, str, str]) -> float | None:
        try:
            top: Any = report
            for key in upper:
                top = top[key]
            bottom: Any = report
            for key in lower:
                bottom = bottom[key]
            return round(top / bottom, 2)
        except (KeyError, TypeError, ZeroDivisionError):
            return None

    extra = report["extra"]
    rows: list[tuple[str, float | None, float, bool]] = [
        (
            "print c1, times faster than subprocess",
            ratio(("subprocess", "print", "c1", "p50_ms"), ("sandbox", "print", "c1", "p50_ms")),
            6, True,
        ),
        (
            "sympy c8, times the runs/s of subprocess",
            ratio(("sandbox", "sympy", "c8", "per_s"), ("subprocess", "sympy", "c8", "per_s")),
            40, True,
        ),
        (
            "sympy c8, times the runs/s of bwrap",
            ratio(("sandbox", "sympy", "c8", "per_s"), ("bwrap", "sympy", "c8", "per_s")),
            20, True,
        ),
        (
            "isolation, times the time of fork_only (print c8)",
            ratio(("fork_only", "print", "c8", "per_s"), ("sandbox", "print", "c8", "per_s")),
            1.5, False,
        ),
        ("session turn p50, ms", extra["session_turn_p50_ms"], 0.3, False),
        ("print p50 with a warm spare, ms", extra["warm_print_p50_ms"], 3, False),
        ("idle spare, private MiB", extra["idle_spare_private_mib"], 2, False),
        ("cold start, s", extra["cold_start_math_s"], 0.6, False),
        ("cold start of the stdlib tier, s", extra["cold_start_stdlib_s"], 0.1, False),
        ("kill overshoot p99, ms", extra["kill_overshoot_p99_ms"], 20, False),
    ]  # fmt: skip
    return [
        {
            "target": name,
            "measured": value,
            "wanted": f"{'>=' if at_least else '<='} {bound:g}",
            "met": None if value is None else (value >= bound if at_least else value <= bound),
        }
        for name, value, bound, at_least in rows
    ]


def to_json(report: Report) -> str:
    """The report as text."""
    return json.dumps(report, indent=2)
