"""`doctor`: is this machine ready for that configuration? Looks at everything, changes nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from ._arguments import add_config_arguments


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where the run would write (default: runs/NAME)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 if all is well, 1 if a check failed."""
    from retool_trainer.config import load_config
    from retool_trainer.launch.doctor import LocalMachine, examine, render

    config = load_config(args.config, args.overrides)
    folder = str(Path(args.run_dir or f"runs/{config.name}").absolute())
    findings = examine(config, LocalMachine(), folder)
    if args.json:
        shown = [dataclasses.asdict(finding) for finding in findings]
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        sys.stdout.write(render(findings))
    return 1 if any(finding.status == "FAIL" for finding in findings) else 0
