"""`retool-rollout`: evaluate an endpoint, look at trajectories, try a model by hand."""

import argparse
import asyncio
import json
import logging
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import Any, TextIO, cast

from ._dialect import Dialect, make_dialect
from ._engine import EngineError, Sampling
from ._evaluate import Grader, evaluate, grade_exactly, grade_with
from ._framework import import_extra
from ._http import HttpEngine
from ._limits import Limits
from ._problems import read_problems
from ._retool import RETOOL_INSTRUCTION
from ._sglang import SglangEngine
from ._tokenizer import Tokenizer
from ._tools import NoTools, ToolExecutor
from ._view import MAX_SHOWN, view
from ._vllm import VllmEngine

ENGINES = {"vllm": VllmEngine, "sglang": SglangEngine}
BOXED = "\n\nPut the final answer in \\boxed{}."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (0 done, 1 incomplete, 2 cannot work)."""
    arguments = _parser().parse_args(argv)
    try:
        return cast("int", arguments.run(arguments))
    except (ValueError, OSError, EngineError, ImportError) as error:
        print(f"retool-rollout: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "; the same command goes on where it was" if arguments.run is _eval else ""
        print(f"retool-rollout: stopped{hint}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="retool-rollout", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser(
        "eval",
        help="score an endpoint on a file of problems",
        description="Sample each problem n times with tools, grade the answers, report avg@n and "
        "pass@k with 95 %% intervals. Stopped and started again with the same settings, it goes on "
        "where it was.",
    )
    _add_model(command)
    command.add_argument(
        "--data", type=Path, required=True, help="problems: JSONL, one object a line"
    )
    command.add_argument("--question-key", help="field of the question (default: the usual names)")
    command.add_argument(
        "--answer-key", help="field of the right answer (default: the usual names)"
    )
    command.add_argument(
        "--suffix", default=BOXED, help="text put behind each question (default: asks for a box)"
    )
    command.add_argument("--n", type=int, default=1, help="samples of each problem (default: 1)")
    command.add_argument("--first", type=int, help="only the first so many problems")
    command.add_argument(
        "--output", type=Path, required=True, help="folder for samples.jsonl and summary.json"
    )
    command.add_argument(
        "--concurrency", type=int, default=64, help="trajectories at once (default: 64)"
    )
    command.add_argument(
        "--grader",
        choices=("math", "exact"),
        default="math",
        help="math: retool-reward's grader; exact: the same number or text (default: math)",
    )
    command.add_argument(
        "--json", action="store_true", help="print the summary as JSON, and no progress bar"
    )
    command.set_defaults(run=_eval)

    command = commands.add_parser(
        "view",
        help="turn trajectories into one HTML page",
        description="Write a page with turns, tokens coloured by who spoke and how likely they "
        "were, tool outcomes, and filters. It needs no server: open it in a browser.",
    )
    command.add_argument(
        "file", type=Path, help="samples.jsonl of an evaluation, or other trajectories as JSONL"
    )
    command.add_argument("--output", type=Path, help="the HTML file (default: beside the input)")
    command.add_argument("--tokenizer", type=Path, help="for files without token texts")
    command.add_argument(
        "--limit",
        type=int,
        default=MAX_SHOWN,
        help=f"show the first so many (default: {MAX_SHOWN})",
    )
    command.set_defaults(run=_view)

    command = commands.add_parser(
        "chat",
        help="talk to a model that has tools",
        description="Each line that you type is a message; an empty line or end of input ends it.",
    )
    _add_model(command)
    command.set_defaults(run=_chat)
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--endpoint",
        action="append",
        required=True,
        help="URL of a server; give it again for each replica",
    )
    command.add_argument(
        "--engine",
        choices=sorted(ENGINES),
        default="vllm",
        help="what serves there (default: vllm)",
    )
    command.add_argument("--model", help="served name (vLLM; default: whatever it serves)")
    command.add_argument("--api-key", help="sent as a bearer token")
    command.add_argument(
        "--tokenizer", type=Path, required=True, help="folder with the model's tokenizer.json"
    )
    command.add_argument(
        "--dialect",
        choices=("hermes", "retool", "seed"),
        default="hermes",
        help="format (default: hermes)",
    )
    command.add_argument("--system", help="system prompt")
    command.add_argument(
        "--tools",
        choices=("sandbox", "none"),
        default="sandbox",
        help="sandbox: a Python interpreter in retool-sandbox; none (default: sandbox)",
    )
    command.add_argument(
        "--no-tool-specs",
        action="store_true",
        help="leave the tools' specification out of the prompt, for a model that was trained so",
    )
    command.add_argument(
        "--stateful", action="store_true", help="variables live on from call to call"
    )
    command.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: 1)")
    command.add_argument("--top-p", type=float, default=1.0, help="(default: 1)")
    command.add_argument("--max-turns", type=int, default=16, help="(default: 16)")
    command.add_argument("--max-calls", type=int, default=16, help="(default: 16)")
    command.add_argument(
        "--max-response", type=int, default=16_384, help="tokens after the prompt (default: 16384)"
    )
    command.add_argument(
        "--max-context", type=int, default=32_768, help="tokens in all (default: 32768)"
    )


def _eval(arguments: argparse.Namespace) -> int:
    if arguments.first is not None and arguments.first < 1:
        raise ValueError(f"--first must be >= 1, got {arguments.first}")
    problems = read_problems(
        arguments.data,
        question_key=arguments.question_key,
        answer_key=arguments.answer_key,
        suffix=arguments.suffix,
    )[: arguments.first]
    if arguments.n < 1:
        raise ValueError(f"--n must be >= 1, got {arguments.n}")
    grader = _grader(arguments.grader)
    left_out = ("run", "endpoint", "api_key", "output", "concurrency", "json", "n", "first")
    settings = {key: str(value) for key, value in vars(arguments).items() if key not in left_out}

    async def run() -> dict[str, Any]:
        with _progress(len(problems) * arguments.n, shown=not arguments.json) as advance:
            async with _engine(arguments) as engine, _tools(arguments) as tools:
                return await evaluate(
                    problems,
                    num_samples=arguments.n,
                    folder=arguments.output,
                    settings=settings,
                    engine=engine,
                    tools=tools,
                    dialect=_dialect(arguments),
                    limits=_limits(arguments),
                    sampling=_sampling(arguments),
                    concurrency=arguments.concurrency,
                    grader=grader,
                    stateful=arguments.stateful,
                    on_sample=advance,
                )

    summary = asyncio.run(run())
    if arguments.json:
        print(json.dumps(summary))
    else:
        _print_summary(summary, arguments.output)
    return 1 if summary["missing"] else 0


def _view(arguments: argparse.Namespace) -> int:
    tokenizer = Tokenizer.load(arguments.tokenizer) if arguments.tokenizer else None
    target = arguments.output or arguments.file.with_suffix(".html")
    shown = view(arguments.file, target, tokenizer=tokenizer, limit=arguments.limit)
    print(f"{target}: {shown} trajectories")
    return 0


def _chat(arguments: argparse.Namespace) -> int:
    from ._chat import chat

    logging.getLogger("retool_rollout").setLevel(logging.ERROR)  # what it warns of is shown here

    async def questions() -> AsyncIterator[str]:
        source = _input()
        while True:
            print("you> ", end="", flush=True)
            line = (await _read_line(source)).strip()
            if not line:
                return
            yield line

    async def run() -> bool:
        async with _engine(arguments) as engine, _tools(arguments) as tools:
            done = await chat(
                questions(),
                engine=engine,
                tools=tools,
                dialect=_dialect(arguments),
                limits=_limits(arguments),
                sampling=_sampling(arguments),
                show=lambda who, text: print(f"{who}> {text}"),
                stateful=arguments.stateful,
            )
        return all(trajectory.error is None for trajectory in done)

    return 0 if asyncio.run(run()) else 1


def _input() -> TextIO:
    # Not sys.stdin itself: Python closes that at its end, and fails if a thread still reads.
    return open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False)


async def _read_line(source: TextIO) -> str:
    """Read in a thread that nobody waits for, so that Ctrl-C at the prompt ends the program."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def answer(text: str) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        text = source.readline()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(answer, text)

    threading.Thread(target=read, daemon=True).start()
    return await line


def _engine(arguments: argparse.Namespace) -> HttpEngine:
    options: dict[str, Any] = {"api_key": arguments.api_key}
    if arguments.engine == "vllm":
        options["model"] = arguments.model
    return ENGINES[arguments.engine](arguments.endpoint, **options)


@asynccontextmanager
async def _tools(arguments: argparse.Namespace) -> AsyncGenerator[ToolExecutor]:
    if arguments.tools == "none":
        yield NoTools()
        return
    retool_sandbox = import_extra("retool_sandbox", "sandbox")
    async with AsyncExitStack() as opened:
        try:
            sandbox = await opened.enter_async_context(retool_sandbox.Sandbox())
        except retool_sandbox.SandboxError as error:
            raise OSError(f"{error} (or --tools none)") from error
        yield retool_sandbox.code_interpreter(sandbox)


def _dialect(arguments: argparse.Namespace) -> Dialect:
    system = arguments.system
    if system is None and arguments.dialect == "retool":
        system = RETOOL_INSTRUCTION
    return make_dialect(
        arguments.dialect,
        Tokenizer.load(arguments.tokenizer),
        system_prompt=system,
        tool_specs=() if arguments.no_tool_specs else None,
    )


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(
        turns=arguments.max_turns,
        calls=arguments.max_calls,
        response_tokens=arguments.max_response,
        context_tokens=arguments.max_context,
    )


def _sampling(arguments: argparse.Namespace) -> Sampling:
    return Sampling(
        max_tokens=arguments.max_response,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
    )


def _grader(name: str) -> Grader:
    return (
        grade_exactly
        if name == "exact"
        else grade_with(import_extra("retool_reward", "reward").grade)
    )


def _progress(total: int, *, shown: bool) -> AbstractContextManager[Any]:
    if not shown or not sys.stderr.isatty():
        return nullcontext(_show_nothing)
    return _progress_bar(total)


def _show_nothing(record: Mapping[str, Any]) -> None:
    """Instead of a progress bar."""


@contextmanager
def _progress_bar(total: int) -> Generator[Callable[[Mapping[str, Any]], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    right = graded = 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("sampling", total=total)

        def advance(record: Mapping[str, Any]) -> None:
            nonlocal right, graded
            right += record["correct"] is True
            graded += record["correct"] is not None
            bar.update(task, advance=1, description=f"right {right / max(1, graded):.1%}")

        yield advance


def _print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    lacking = f"{summary['missing']} missing, {summary['ungraded']} not graded"
    lines = {"problems": summary["problems"], "samples": f"{summary['samples']} ({lacking})"}
    for name, score in summary["scores"].items():
        lines[name] = f"{score['mean']:.1%}  [{score['low']:.1%}, {score['high']:.1%}]"
    tokens = f"{summary['sampled_tokens_mean']:.0f} sampled tokens"
    lines["turns"] = f"{summary['turns_mean']:.1f}, {tokens}"
    outcomes = ", ".join(f"{name} {count}" for name, count in summary["tool_outcomes"].items())
    lines["tool calls"] = f"{summary['tool_calls_mean']:.1f} a sample; {outcomes or 'none'}"
    reasons = summary["stop_reasons"].items()
    lines["ended by"] = ", ".join(f"{name} {count}" for name, count in reasons)
    lines["kept in"] = folder
    for name, text in lines.items():
        print(f"{name:<12} {text}")


if __name__ == "__main__":
    sys.exit(main())
