"""`report RUN`: write a run as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="folder of a run")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: RUN/report.html)"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=300,
        metavar="N",
        help="trajectories that can be browsed, spread over the run (default: 300)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the report and print where it is."""
    from retool_trainer.observe import ReportError, write_report

    try:
        path = write_report(args.run_dir, args.output, max_samples=args.samples)
    except (ReportError, OSError) as error:
        sys.stderr.write(f"report: {error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0
