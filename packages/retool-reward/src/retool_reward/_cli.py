"""The command `retool-reward`: grade a file, explain one verdict, measure the grader."""

import argparse
import asyncio
import importlib.metadata
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ._async_grader import AsyncGrader
from ._explain import explain
from ._grade import close_shared_pools
from ._types import Grade, GradeConfig, Multiple

_CHUNK = 256
_MAX_WORKERS = 256
_DEADLINE_S = 3_600.0
_OK, _BAD_ROWS, _USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    finally:
        close_shared_pools()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="retool-reward", description="Grade math answers and see why they were graded so."
    )
    parser.add_argument(
        "--version", action="version", version=importlib.metadata.version("retool-reward")
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    grade = commands.add_parser(
        "grade",
        help="grade every row of a JSONL file",
        description="Grade every row of a JSONL file. Exit code 0: all rows graded; 1: some rows "
        "were bad (they are named by line number, the rest is graded); 2: the file was not read.",
    )
    grade.add_argument("file", type=Path, metavar="FILE", help="rows with prediction_text and gold")
    grade.add_argument(
        "--json", action="store_true", help="print every row with correct, pred and reason added"
    )
    grade.add_argument("--workers", type=_count, default=2, help="processes for hard answers (2)")
    grade.add_argument(
        "--multiple",
        choices=[policy.value for policy in Multiple],
        default=Multiple.ADJACENT.value,
        help="what several boxes mean (adjacent: boxes listed side by side are one answer)",
    )
    grade.set_defaults(run=_grade)

    why = commands.add_parser(
        "explain",
        help="say what each layer makes of one answer",
        description="Say what each layer makes of one answer. An answer without a box or an "
        "`Answer:` is put into a box first.",
    )
    why.add_argument("answer", metavar="ANSWER", help="a response, or just its answer")
    why.add_argument("gold", metavar="GOLD", help="the reference answer")
    why.add_argument("--json", action="store_true", help="for machines")
    why.set_defaults(run=_explain)

    bench = commands.add_parser(
        "bench",
        help="measure speed and safety side by side with Math-Verify",
        description="Measure speed and safety side by side with Math-Verify, one thread each.",
    )
    bench.add_argument("--json", action="store_true", help="for machines")
    bench.add_argument("--quick", action="store_true", help="a tenth of the work")
    bench.add_argument(
        "--math500",
        type=Path,
        metavar="FILE",
        help="JSONL with `answer`: MATH-500 (default: data/math500_llmeval.jsonl of RETOOL_SHARED)",
    )
    bench.set_defaults(run=_bench)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"must be in 1..{_MAX_WORKERS}, got {text!r}")
    return int(text)


# --- grade ---


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    fields: dict[str, Any]


def _grade(options: argparse.Namespace) -> int:
    try:
        rows, problems = _read(options.file)
    except (OSError, UnicodeDecodeError) as error:
        print(f"retool-reward: cannot read {options.file}: {error}", file=sys.stderr)
        return _USAGE
    for problem in problems:
        print(f"{options.file}:{problem}", file=sys.stderr)
    config = GradeConfig(multiple=Multiple(options.multiple))
    counts = asyncio.run(_grade_rows(rows, config, options.workers, as_json=options.json))
    _summarise(counts, len(problems), to_stderr=options.json)
    return _BAD_ROWS if problems else _OK


def _read(file: Path) -> tuple[list[_Row], list[str]]:
    """Return the rows, and what is wrong with the other lines."""
    rows: list[_Row] = []
    problems: list[str] = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:  # also for a number of 4,300 digits
                problems.append(f"{number}: no JSON: {error}")
                continue
            problem = _problem(fields)
            if problem is None:
                rows.append(_Row(number, fields))
            else:
                problems.append(f"{number}: {problem}")
    return rows, problems


def _problem(fields: object) -> str | None:
    if not isinstance(fields, dict):
        return f"a row must be an object, not {type(fields).__name__}"
    row = cast("dict[str, object]", fields)
    if not isinstance(row.get("prediction_text"), str):
        return f"prediction_text must be a string, not {row.get('prediction_text')!r}"
    if not isinstance(row.get("gold"), str | int | float) or isinstance(row["gold"], bool):
        return f"gold must be a string or a number, not {row.get('gold')!r}"
    return None


async def _grade_rows(
    rows: list[_Row], config: GradeConfig, workers: int, *, as_json: bool
) -> Counter[str]:
    from rich.console import Console
    from rich.progress import Progress

    counts: Counter[str] = Counter()
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True) if console.is_terminal else nullcontext()
    async with AsyncGrader(workers=workers, config=config) as grader:
        with bar as progress:
            task = None if progress is None else progress.add_task("grading", total=len(rows))
            for at in range(0, len(rows), _CHUNK):
                chunk = rows[at : at + _CHUNK]
                pairs = [(row.fields["prediction_text"], row.fields["gold"]) for row in chunk]
                grades = await grader.grade_many(pairs, deadline_s=_DEADLINE_S)
                for row, found in zip(chunk, grades, strict=True):
                    counts[found.reason.value] += 1
                    if as_json:
                        print(_as_json({**row.fields, **_added(found)}))
                if progress is not None and task is not None:
                    progress.advance(task, len(chunk))
    return counts


def _as_json(fields: dict[str, Any]) -> str:
    """Return one line of JSON; half a surrogate pair, which no stream takes, stays escaped."""
    line = json.dumps(fields, ensure_ascii=False)
    return line.encode("utf-8", "backslashreplace").decode()


def _added(found: Grade) -> dict[str, Any]:
    return {"correct": found.correct, "pred": found.pred, "reason": found.reason.value}


def _summarise(counts: Counter[str], num_bad: int, *, to_stderr: bool) -> None:
    stream = sys.stderr if to_stderr else sys.stdout
    total = sum(counts.values())
    for reason, count in counts.most_common():
        print(f"{reason:<16}{count:>8}{count / total:>8.1%}", file=stream)
    if num_bad:
        print(f"{'bad rows':<16}{num_bad:>8}", file=stream)
    verdicts = total - counts["gold_unparsable"] - counts["aborted"]
    if verdicts:
        print(f"{'accuracy':<16}{counts['match'] / verdicts:>8.1%} of {verdicts}", file=stream)


# --- explain ---


def _explain(options: argparse.Namespace) -> int:
    layers = explain(options.answer, options.gold)
    if options.json:
        print(json.dumps(dict(layers), ensure_ascii=False, indent=2))
    else:
        for name, verdict in layers:
            print(f"{name:<12}{verdict}")
    return _OK


# --- bench ---


def _bench(options: argparse.Namespace) -> int:
    from . import _bench

    math500 = options.math500
    if math500 is None and "RETOOL_SHARED" in os.environ:
        math500 = Path(os.environ["RETOOL_SHARED"], "data", "math500_llmeval.jsonl")
    if math500 is None:
        beside = Path.cwd().parent / "shared" / "data" / "math500_llmeval.jsonl"
        math500 = beside if beside.is_file() else None
    if math500 is not None and not math500.is_file():
        print(f"retool-reward: no file {math500}; pass --math500 FILE", file=sys.stderr)
        return _USAGE
    measures = _bench.run(
        quick=options.quick, math500=math500, step=lambda name: print(name, "...", file=sys.stderr)
    )
    if options.json:
        print(_bench.as_json(measures))
        return _OK
    for measure in measures:
        mark = "ok  " if measure.met else "MISS"
        target = f"target {measure.target}" if measure.target else ""
        print(f"{mark}  {measure.name:<32}{measure.value:>12,.3f} {measure.unit:<7} {target}")
    return _OK


if __name__ == "__main__":
    sys.exit(main())
