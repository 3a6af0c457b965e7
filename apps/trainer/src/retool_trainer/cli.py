"""The command line: `uv run apps/trainer COMMAND`; without a command it runs the quickstart."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from retool_trainer.errors import RunFailedError, RunRefusedError

# Command -> (module with `configure(parser)` and `run(args) -> int`, one line of help). The modules
# are light; what is heavy (torch, ray) is imported inside their `run`.
_COMMANDS = {
    "run": ("retool_trainer.commands.run", "train: prepare, SFT, evaluate, RL, export, summary"),
    "report": ("retool_trainer.commands.report", "write a run as one HTML file"),
    "plan": ("retool_trainer.commands.plan", "show what a config would start; needs no hardware"),
    "doctor": ("retool_trainer.commands.doctor", "check this machine for a config; read-only"),
    "fetch": ("retool_trainer.commands.fetch", "get a config's model and data from the hub"),
    "convert": (
        "retool_trainer.commands.convert",
        "convert weights between Hugging Face and Megatron",
    ),
    "import-args": (
        "retool_trainer.commands.import_args",
        "turn a slime or vime launch script into a config",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 if it was refused, 1 if it failed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = arguments[0] if arguments else ""
    if first not in {*_COMMANDS, "-h", "--help"} and (first[:1] in {"", "-"} or "=" in first):
        arguments = ["run", *arguments]
    parser = argparse.ArgumentParser(
        prog="uv run apps/trainer",
        description="Take a language model from SFT to RL with a Python tool. "
        "Without a command: the quickstart, a tiny model that learns to use Python on this CPU.",
        epilog="`uv run apps/trainer COMMAND --help` explains a command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, line) in _COMMANDS.items():
        sub = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        importlib.import_module(module_name).configure(sub)
    args = parser.parse_args(arguments)
    if "set" in args:
        args.overrides += args.set
    try:
        return importlib.import_module(_COMMANDS[args.command][0]).run(args)
    except RunRefusedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except (RunFailedError, OSError) as error:
        # An OSError is a full disk, a folder that may not be written, a file that went away.
        sys.stderr.write(f"error: {error}\n")
        return 1
