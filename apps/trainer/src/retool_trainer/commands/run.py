"""`run`: train what a configuration describes."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from retool_trainer.config import load_config

from ._arguments import add_overrides


def quickstart_config() -> Path:
    """`configs/quickstart.yaml` of the repository that this package is installed from."""
    return Path(__file__).resolve().parents[5] / "configs" / "quickstart.yaml"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="default: configs/quickstart.yaml"
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where everything is written (default: runs/NAME, NAME as in the config); "
        "a run that was interrupted there is continued",
    )
    parser.add_argument(
        "--stages",
        metavar="LIST",
        help="only these, e.g. sft or rl or sft,rl (default: the config's)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="delete what is in the run folder and start again"
    )
    add_overrides(
        parser, "override a key of the config, e.g. rl.steps=3 policy.data_parallel=2 engine=vllm"
    )


def run(args: argparse.Namespace) -> int:
    """Train; 0 when all is done, 130 after Ctrl-C."""
    overrides = list(args.overrides)
    if args.stages is not None:
        overrides.append(f"stages=[{args.stages}]")
    config = load_config(args.config or quickstart_config(), overrides)
    run_dir = args.run_dir or Path("runs") / config.name
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Imported late: --help and a mistyped key answer at once.
    from retool_trainer.pipeline import run as run_pipeline

    try:
        run_pipeline(config, run_dir, fresh=args.fresh)
    except KeyboardInterrupt:
        print(
            f"\nstopped; the same command continues from the last checkpoint in {run_dir}",
            file=sys.stderr,
        )
        return 130
    return 0
