"""The arguments of every command that reads a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--config FILE` and `key=value ...`."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the run")
    add_overrides(parser, "override a key, as for `run`")


def add_overrides(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declare `key=value ...` and `--set key=value`, which may stand anywhere."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help_text)
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="the same as key=value"
    )
