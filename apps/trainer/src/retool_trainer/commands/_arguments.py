"""The arguments of every command that reads a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--config FILE` and `key=value ...`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the run")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="override a key, as for `run`"
    )
