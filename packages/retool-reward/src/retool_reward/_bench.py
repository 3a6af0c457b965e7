"""Measure speed and safety side by side with Math-Verify, in one interleaved run."""

import asyncio
import importlib
import json
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ._async_grader import AsyncGrader
from ._bench_cases import HOSTILE, integer_pairs, symbolic_pairs
from ._grade import grade
from ._types import Reason

_ROUNDS = 3
_BATCH = 2_000
_HOSTILE_SHARE = 0.01

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the report."""

    name: str
    value: float
    unit: str
    target: str
    met: bool
    note: str = ""


def run(*, quick: bool, math500: Path | None, step: Callable[[str], None]) -> list[Measure]:
    """Return the measures; `step` is told what comes next."""
    scale, rounds = (10, 1) if quick else (1, _ROUNDS)
    theirs = _math_verify()
    measures: list[Measure] = []
    step("integers")
    measures += _versus(
        "integers",
        integer_pairs(20_000 // scale),
        theirs,
        600 // scale,
        rounds=rounds,
        ratio=100.0,
        least=120_000.0,
    )
    step("symbolic")
    pairs = symbolic_pairs(100)
    right = sum(grade(_boxed(pred), gold).correct is True for pred, gold in pairs)
    measures.append(_measure("symbolic right", right, "of 100", right == 100, "100"))
    measures += _versus("symbolic", pairs, theirs, 100 // scale, rounds=rounds, ratio=2.5)
    if math500 is not None:
        step("MATH-500 golds against themselves")
        golds = [str(json.loads(line)["answer"]) for line in math500.read_text().splitlines()]
        measures += _versus(
            "math500 self",
            [(gold, gold) for gold in golds],
            theirs,
            200 // scale,
            rounds=rounds,
            ratio=30.0,
        )
    step("hostile inputs")
    measures += _hostile(quick=quick)
    step("hostile rows in a batch")
    measures += asyncio.run(_mixed(_BATCH // scale, rounds))
    return measures


def as_json(measures: Sequence[Measure]) -> str:
    """Return the report for machines."""
    return json.dumps({measure.name: asdict(measure) for measure in measures}, indent=2)


def _measure(name: str, value: float, unit: str, met: bool, target: str, note: str = "") -> Measure:
    return Measure(name=name, value=value, unit=unit, met=met, target=target, note=note)


def _boxed(answer: str) -> str:
    return f"So the result follows from the steps above.\n\nAnswer: \\boxed{{{answer}}}"


# --- speed ---


def _versus(
    name: str,
    pairs: Sequence[Pair],
    theirs: Callable[[str, str], bool] | None,
    num_theirs: int,
    *,
    rounds: int,
    ratio: float,
    least: float = 0.0,
) -> list[Measure]:
    """Time both graders in turn, round by round, so that a busy machine is busy for both."""
    ours_per_s: list[float] = []
    theirs_per_s: list[float] = []
    boxed = [(_boxed(pred), gold) for pred, gold in pairs]
    for pred, gold in boxed[:20]:
        grade(pred, gold)
    for _ in range(rounds):
        ours_per_s.append(_rate(lambda pred, gold: grade(pred, gold).correct, boxed))
        if theirs is not None:
            theirs_per_s.append(_rate(theirs, boxed[:num_theirs]))
    ours = statistics.median(ours_per_s)
    found = [_measure(f"{name} per s", ours, "/s", ours >= least, f">= {least:,.0f}")]
    if theirs_per_s:
        other = statistics.median(theirs_per_s)
        times = statistics.median(a / b for a, b in zip(ours_per_s, theirs_per_s, strict=True))
        found += [
            _measure(f"{name} per s, Math-Verify", other, "/s", True, ""),
            _measure(f"{name} ratio", times, "x", times >= ratio, f">= {ratio:g}"),
        ]
    return found


def _rate(judge: Callable[[str, str], object], pairs: Sequence[Pair]) -> float:
    """Return pairs per second of processor time: per core, however busy the machine is."""
    started = time.process_time()
    for pred, gold in pairs:
        judge(pred, gold)
    return len(pairs) / (time.process_time() - started)


def _math_verify() -> Callable[[str, str], bool] | None:
    """Return Math-Verify as its README uses it, or None if it is not installed."""
    try:
        mv: Any = importlib.import_module("math_verify")
    except ImportError:
        return None
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    latex = [mv.LatexExtractionConfig(), mv.ExprExtractionConfig()]

    def judge(pred: str, gold: str) -> bool:
        return bool(mv.verify(mv.parse(f"${gold}$", latex), mv.parse(pred, latex)))

    return judge


# --- safety ---


def _hostile(*, quick: bool) -> list[Measure]:
    """Time every hostile input, twice, after the workers are up."""
    grade(_boxed(r"\sum_{k=1}^{\infty} 2^{-k}"), "1")
    times: list[float] = []
    unsafe: list[str] = []
    for _ in range(1 if quick else 3):
        for answer, gold in HOSTILE:
            started = time.perf_counter()
            found = grade(_boxed(answer), gold)
            times.append(time.perf_counter() - started)
            if found.correct is not False or found.reason is Reason.ABORTED:
                unsafe.append(answer[:40])
    times.sort()
    worst, p99 = times[-1], times[int(0.99 * (len(times) - 1))]
    return [
        _measure("hostile p99", p99, "s", p99 <= 1.2, "<= 1.2"),
        _measure("hostile worst", worst, "s", worst <= 1.2, "<= 1.2"),
        _measure("hostile judged wrong", len(unsafe), "inputs", not unsafe, "0", str(unsafe)),
        _peak_memory(),
    ]


def _peak_memory() -> Measure:
    """Return the peak resident memory of this process and of the workers that live."""
    peaks = [_peak_mib("self")]
    peaks += [_peak_mib(str(pid)) for pid in _descendants()]
    peak = max(peaks)
    return _measure("peak memory of a process", peak, "MiB", peak <= 512, "<= 512")


def _descendants() -> Iterator[int]:
    import os

    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(fields[1])
    for pid in parents:
        ancestor = parents[pid]
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            yield pid


def _peak_mib(process: str) -> float:
    try:
        status = Path("/proc", process, "status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def _mixed(num_rows: int, num_rounds: int) -> list[Measure]:
    """Grade a batch, and the batch with 1 % of its rows hostile, with two workers each."""
    shuffled = random.Random(0)
    rounds: list[tuple[float, float]] = []
    for turn in range(num_rounds):
        clean = [(_boxed(pred), gold) for pred, gold in symbolic_pairs(num_rows, salt=turn * 2)]
        dirty = [(_boxed(pred), gold) for pred, gold in symbolic_pairs(num_rows, salt=turn * 2 + 1)]
        places = shuffled.sample(range(num_rows), max(1, int(num_rows * _HOSTILE_SHARE)))
        for k, place in enumerate(places):
            answer, gold = HOSTILE[k % len(HOSTILE)]
            dirty[place] = (_boxed(answer), gold)
        async with AsyncGrader(workers=2) as grader:
            await grader.grade_many([(_boxed(r"\sum_{k=1}^{\infty} 2^{-k}"), "1")])
            rounds.append((await _timed(grader, clean), await _timed(grader, dirty)))
    kept = statistics.median(clean_s / dirty_s for clean_s, dirty_s in rounds)
    rate = num_rows / statistics.median(clean_s for clean_s, _ in rounds)
    return [
        _measure("batch per s, clean", rate, "/s", True, ""),
        _measure("batch kept with 1 % hostile", kept, "x", kept >= 0.9, ">= 0.9"),
    ]


async def _timed(grader: AsyncGrader, rows: Sequence[Pair]) -> float:
    started = time.perf_counter()
    await grader.grade_many(rows, deadline_s=300.0)
    return time.perf_counter() - started
