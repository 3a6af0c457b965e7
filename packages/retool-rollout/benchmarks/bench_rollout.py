"""Measure the loop: throughput against a blocking loop, stalls, CPU per turn, memory, parser.

usage: python benchmarks/bench_rollout.py --tokenizer FOLDER [--trajectories 512] [--memory 10000]
    [--json]

The engine is scripted, with latencies; the tool is a real Python process that takes a tenth of a
second, run in a
blocking way as the field's retool example does. Our loop runs that same function in threads, behind
one limiter.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_rollout import (
    Latency,
    Limits,
    Reply,
    RolloutMetrics,
    Sampling,
    ScriptedEngine,
    StallMeter,
    Tokenizer,
    make_dialect,
    rollout,
    rollout_groups,
)

TOKENS_PER_TURN = 500
TURNS = 4
TOOL_SLOTS = 64
PROGRAM = "import time; time.sleep(0.1); print(42)"
# 60 ms to the first token and 2 ms a token: a turn of 500 tokens takes a second, give or take half.
LATENCY = Latency(first_token_s=0.06, per_token_s=0.002, spread=0.5)
TARGETS = {
    "speedup": (8.0, "at least"),
    "stall_p99_ms": (20.0, "at most"),
    "stall_p99_own_cpu_ms": (20.0, "at most"),
    "cpu_ms_per_turn": (1.0, "at most"),
    "memory_growth_mib": (8.0, "at most"),
    "parse_1mb_ms": (50.0, "at most"),
}


@dataclass(frozen=True)
class Question:
    problem_id: str
    messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "What is 6 * 7?"},)


def run_program() -> str:
    """The tool of both loops."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    return done.stdout


class Tools:
    """The program in threads, behind one limiter; or nothing at all, to see the loop's own cost."""

    specs: Sequence[Mapping[str, Any]] = ()

    def __init__(self, *, real: bool) -> None:
        self.threads = ThreadPoolExecutor(TOOL_SLOTS) if real else None

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        if self.threads is None:
            return Reply(text="42\n")
        return Reply(
            text=await asyncio.get_running_loop().run_in_executor(self.threads, run_program)
        )

    @asynccontextmanager
    async def session(self):
        yield self


def make_turns(dialect) -> list[list[int]]:
    """Three turns with a call and one with the answer, each of about 500 tokens."""
    call = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}
    prose = "We look at the sum and then at the product of the two numbers once more. "
    turns: list[list[int]] = []
    for number in range(TURNS):
        last = number == TURNS - 1
        text = prose
        while len(dialect.turn_ids(text, [] if last else [call])) < TOKENS_PER_TURN:
            text += prose
        turns.append(
            dialect.turn_ids(text + (r"\boxed{42}" if last else ""), [] if last else [call])
        )
    return turns


async def naive(dialect, turns, count: int) -> float:
    """The field's loop, with a tool that blocks the event loop. Returns trajectories/s."""
    engine = ScriptedEngine(turns, latency=LATENCY)
    slots = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        ids = dialect.prompt_ids(Question("q").messages, ())
        for turn in range(TURNS):
            made = await engine.generate(ids, Sampling(max_tokens=2000), session_id=str(number))
            ids = [*ids, *made.ids]
            dialect.tokenizer.decode(made.ids)
            if turn < TURNS - 1:
                async with slots:
                    text = run_program()
                ids += dialect.observation_ids([text])

    began_s = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(count)))
    return count / (time.perf_counter() - began_s)


async def ours(dialect, turns, count: int) -> tuple[float, dict[str, Any]]:
    """Our loop with the same engine and tool. Returns trajectories/s and the metrics."""
    metrics, tools = RolloutMetrics(), Tools(real=True)
    began_s = time.perf_counter()
    async for _ in rollout_groups(
        [Question(f"q{number}") for number in range(count // 8)],
        group_size=8,
        concurrency=count,
        engine=ScriptedEngine(turns, latency=LATENCY),
        tools=tools,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=2000),
        metrics=metrics,
    ):
        pass
    took_s = time.perf_counter() - began_s
    tools.threads.shutdown()
    assert metrics.statuses["completed"] == count
    return count / took_s, metrics.summary()


async def quiet_stalls(dialect, turns, count: int) -> tuple[float, float]:
    """p99 of the stalls with the loop alone, by the clock and by its thread's CPU time. In ms."""
    async with StallMeter() as meter:
        engine = ScriptedEngine(turns, latency=LATENCY)
        await asyncio.gather(*(_one(dialect, engine, number) for number in range(count)))
    return 1000 * meter.percentile_s(0.99), 1000 * meter.percentile_s(0.99, cpu=True)


async def own_cost(dialect, turns, count: int) -> float:
    """CPU seconds of a turn with an engine and a tool that cost nothing, in ms."""
    engine = ScriptedEngine(turns)
    for number in range(20):
        await _one(dialect, engine, number)
    began_s = time.process_time()
    for number in range(count):
        await _one(dialect, engine, number)
    return 1000 * (time.process_time() - began_s) / (count * TURNS)


async def _one(dialect, engine, number: int) -> None:
    done = await rollout(
        Question(f"q{number}"),
        engine=engine,
        tools=Tools(real=False),
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=2000),
    )
    assert done.answer == "42"


async def memory(dialect, turns, count: int) -> tuple[float, float]:
    """Resident MiB after a fifth of the trajectories and after all of them."""
    seen, first = 0, 0.0
    async for group in rollout_groups(
        (Question(f"q{number}") for number in range(count // 8)),
        group_size=8,
        concurrency=64,
        engine=ScriptedEngine(turns),
        tools=Tools(real=False),
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=2000),
    ):
        seen += len(group.trajectories)
        if not first and seen >= count // 5:
            gc.collect()
            first = resident_mib()
    gc.collect()
    return first, resident_mib()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def parse_1mb(dialect) -> float:
    """The slowest of some hostile turns of a megabyte, in ms of CPU."""
    slowest = 0.0
    for part in (
        "<tool_call>{",
        "<think></think>",
        '<tool_call>{"name": 1}</tool_call>',
        "{",
        "plain ",
    ):
        text = part * (1_000_000 // len(part)) + "<tool_call>"
        best = min(_parse_s(dialect, text) for _ in range(5))
        slowest = max(slowest, 1000 * best)
    return slowest


def _parse_s(dialect, text: str) -> float:
    began_s = time.process_time()
    dialect.parse(text)
    return time.process_time() - began_s


async def measure(arguments: argparse.Namespace) -> dict[str, float]:
    dialect = make_dialect("hermes", Tokenizer.load(arguments.tokenizer), tool_specs=())
    turns = make_turns(dialect)
    figures: dict[str, float] = {
        "cpu_ms_per_turn": await own_cost(dialect, turns, 300),
        "parse_1mb_ms": parse_1mb(dialect),
    }
    clock, cpu = await quiet_stalls(dialect, turns, arguments.trajectories)
    figures |= {"stall_p99_ms": clock, "stall_p99_own_cpu_ms": cpu}
    # The blocking loop's rate does not depend on how many there are: it does one program
    # after another.
    figures["naive_per_s"] = await naive(dialect, turns, max(8, arguments.trajectories // 8))
    figures["ours_per_s"], metrics = await ours(dialect, turns, arguments.trajectories)
    figures["speedup"] = figures["ours_per_s"] / figures["naive_per_s"]
    figures["stall_p99_with_tool_processes_ms"] = metrics["stall/p99_ms"]
    first, last = await memory(dialect, turns, arguments.memory)
    figures |= {
        "memory_first_mib": first,
        "memory_last_mib": last,
        "memory_growth_mib": last - first,
    }
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--memory", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    missed = 0
    if arguments.json:
        print(json.dumps(figures))
    for name, value in figures.items():
        target, sense = TARGETS.get(name, (None, ""))
        met = target is None or (value >= target if sense == "at least" else value <= target)
        missed += not met
        if not arguments.json:
            wanted = "" if target is None else f"  ({sense} {target:g})"
            print(f"{'ok  ' if met else 'MISS'}  {name:<34} {value:10.2f}{wanted}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
