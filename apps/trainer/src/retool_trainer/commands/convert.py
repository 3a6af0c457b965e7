"""`convert`: weights between Hugging Face folders and Megatron checkpoints, both ways."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Convert a Hugging Face folder into a Megatron checkpoint, or back; the source decides. "
        "Sizes, rope theta and norm epsilon are read from config.json, and a checkpoint that was "
        "made with others is refused. Runs on the CPU; the model has to fit in memory."
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="what to convert")
    parser.add_argument("target", type=Path, metavar="TARGET", help="folder to write; must be new")
    parser.add_argument(
        "--hf",
        type=Path,
        metavar="FOLDER",
        help="from Megatron: the Hugging Face folder of the model, for config.json and tokenizer",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the result (default: as the Hugging Face source; bfloat16 from Megatron)",
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Convert; 0, or 1 with the reason on stderr."""
    from retool_trainer.errors import CheckpointError
    from retool_trainer.policy import convert

    try:
        done = convert(args.source, args.target, hf=args.hf, dtype=args.dtype)
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if args.json:
        shown = {**dataclasses.asdict(done), "target": str(done.target)}
        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        sys.stdout.write(
            f"ok    {done.format:<12} {done.num_parameters:,} parameters in {done.dtype}: "
            f"{done.target}\n"
        )
    return 0
