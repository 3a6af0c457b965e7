"""The command line: `retool-data load | convert | validate | dedupe | ... | view`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import _commands as run
from ._files import check_target
from ._write import TARGETS

_EXIT = """\
Exit code: 0 all is well; 1 there are bad rows or findings of severity error (the rest is written);
2 the command could not run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        _check_targets(arguments)
        code = command(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("retool-data: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError, run.MissingExtraError, run.ExecutorError) as error:
        print(f"retool-data: {error}", file=sys.stderr)
        return 2


def _check_targets(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be written before the work, which may take hours, and not behind it."""
    output: str | None = getattr(arguments, "output", None)
    report: str | None = getattr(arguments, "report", None)
    if output and arguments.command is not run.view_command:
        check_target(Path(output))
    for path in (output, report):
        if path and not Path(path).absolute().parent.is_dir():
            raise FileNotFoundError(f"no folder {str(Path(path).parent)!r} to write {path!r} into")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="retool-data",
        description="From raw tool-use files to token-exact training data.",
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version("retool-data"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    load = _command(commands, "load", run.load_command, "read a file and say what it is")
    _source(load)
    _output(load, required=False, what="records, as .jsonl or .parquet")
    load.add_argument("--limit", type=_count, help="stop after so many records")

    convert = _command(commands, "convert", run.convert_command, "write rows in another layout")
    _source(convert)
    _output(convert, what=".jsonl or .parquet")
    convert.add_argument("--to", required=True, choices=sorted(TARGETS), help="layout to write")
    convert.add_argument(
        "--answer-form",
        choices=("boxed", "answer"),
        help="rewrite the instructions of problems to `Answer: \\boxed{...}` or `Answer: ...`",
    )
    convert.add_argument(
        "--plain",
        action="store_true",
        help="only the framework's own columns, without the embedded record",
    )
    convert.add_argument(
        "--no-check", action="store_true", help="do not read each row back and compare"
    )

    validate = _command(commands, "validate", run.validate_command, "run every recorded call again")
    _source(validate)
    _output(validate, what="records with the status of every output")
    validate.add_argument(
        "--state",
        choices=("kept", "fresh"),
        default="kept",
        help="keep variables between the calls of a trajectory, or not (default: kept)",
    )
    validate.add_argument(
        "--action",
        choices=("keep", "repair", "drop"),
        default="keep",
        help="mark bad outputs only, replace them by their replay, or drop the row (default: keep)",
    )
    validate.add_argument(
        "--isolation",
        default="require",
        help="isolation level asked of the sandbox (default: require)",
    )
    validate.add_argument("--concurrency", type=_count, help="programs at a time (default: CPUs)")
    validate.add_argument(
        "--timeout-s", type=float, default=10.0, help="time limit of one call (default: 10)"
    )
    _report(validate)

    dedupe = _command(commands, "dedupe", run.dedupe_command, "keep the first of equal problems")
    _source(dedupe, several=True)
    _output(dedupe, what="records that are kept")
    dedupe.add_argument(
        "--level",
        choices=("exact", "normalised", "near"),
        default="near",
        help="how alike is equal (default: near)",
    )
    dedupe.add_argument("--mark", action="store_true", help="write duplicates too, marked")
    _report(dedupe)

    clean = _command(
        commands, "decontaminate", run.decontaminate_command, "find benchmark problems in the rows"
    )
    _source(clean)
    _output(clean, what="records that are clean")
    clean.add_argument(
        "--against", required=True, nargs="+", metavar="FILE", help="benchmark files"
    )
    clean.add_argument("--mark", action="store_true", help="write contaminated rows too, marked")
    _report(clean)

    tokenize = _command(
        commands, "tokenize", run.tokenize_command, "build token ids and loss masks"
    )
    _source(tokenize)
    _output(tokenize, what="samples, as .parquet or .jsonl")
    _rendering(tokenize, required=True)
    tokenize.add_argument("--max-tokens", type=_count, help="longest sample allowed")
    tokenize.add_argument(
        "--too-long",
        choices=("drop", "refuse"),
        default="drop",
        help="drop and count longer rows, or stop (default: drop); none is ever cut",
    )
    tokenize.add_argument(
        "--compare-template",
        action="store_true",
        help="report rows whose ids differ from the tokenizer's own chat template",
    )
    _report(tokenize)

    pack = _command(commands, "pack", run.pack_command, "join samples into rows of fixed length")
    pack.add_argument("source", help="samples that `tokenize` wrote")
    _output(pack, what="packs, as .parquet or .jsonl")
    pack.add_argument("--max-tokens", type=_count, required=True, help="length of a row")

    lint = _command(commands, "lint", run.lint_command, "check prompts, rows and masks")
    lint.add_argument("source", nargs="*", help="files, or hub ids")
    _reading(lint)
    lint.add_argument(
        "--answer-form",
        choices=("boxed", "answer", "any"),
        default="boxed",
        help="what the loop stops on and the scorer reads (default: boxed)",
    )
    lint.add_argument(
        "--dialect",
        choices=("hermes", "retool", "seed"),
        default="hermes",
        help="what the rows will be rendered in (default: hermes)",
    )
    lint.add_argument("--samples", help="check the masks of a file that `tokenize` wrote, too")
    lint.add_argument("--codes", action="store_true", help="explain every code, and stop")
    lint.add_argument("--all", action="store_true", help="print every finding, not ten of a code")
    _report(lint)

    stats = _command(commands, "stats", run.stats_command, "count what a file holds")
    _source(stats)

    view = _command(commands, "view", run.view_command, "write one HTML page to look at")
    _source(view)
    _output(view, what="an .html file")
    _rendering(view, required=False)
    view.add_argument(
        "--findings",
        action="append",
        default=[],
        metavar="FILE",
        help="show the findings of a --report of validate, tokenize or lint; repeatable",
    )
    view.add_argument("--limit", type=_count, default=200, help="rows on the page (default: 200)")
    return parser


def _command(
    commands: Any,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=f"{help_text[0].upper()}{help_text[1:]}.",
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=function)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def _source(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    parser.add_argument(
        "source",
        nargs="+" if several else None,
        help=".jsonl, .json or .parquet file, a folder, or a Hugging Face id like owner/name@rev",
    )
    _reading(parser)


def _reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="WANTED=COLUMN",
        help="rename a column before the shape is recognised, e.g. --map prompt=question",
    )
    parser.add_argument("--shape", help="take the rows as this shape instead of recognising it")
    parser.add_argument("--split", default="train", help="split of a hub data set (default: train)")
    parser.add_argument("--config", help="configuration of a hub data set")
    parser.add_argument(
        "--unique",
        action="store_true",
        help="skip rows whose prompt occurred before, unparsed; for DAPO's hundred copies",
    )


def _output(parser: argparse.ArgumentParser, *, what: str, required: bool = True) -> None:
    parser.add_argument(
        "-o", "--output", required=required, help=f"file to write: {what}; replaced whole"
    )


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", metavar="FILE", help="write all evidence as JSON")


def _rendering(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--tokenizer",
        required=required,
        metavar="PATH",
        help="folder of a model, or its tokenizer.json",
    )
    parser.add_argument(
        "--dialect", default="hermes", help="dialect of retool-rollout (default: hermes)"
    )
    parser.add_argument("--system-prompt", help="for rows that bring none")


if __name__ == "__main__":
    sys.exit(main())
