"""`plan`: what a configuration would start, where, with what memory; touches no hardware."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the run")
    parser.add_argument("--nodes", type=int, metavar="N", help="instead of the config's nodes")
    parser.add_argument(
        "--devices", type=int, metavar="M", help="devices of a node, instead of devices_per_node"
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="override a key, as for `run`"
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 if it can start, 1 if something speaks against it, 2 for a bad config."""
    from retool_trainer.config import ConfigError, load_config
    from retool_trainer.launch import make_plan, render_plan

    try:
        config = load_config(args.config, args.overrides)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    plan = make_plan(
        config,
        config_file=str(args.config),
        nodes=args.nodes,
        devices=args.devices,
        environment=os.environ,
    )
    if args.json:
        sys.stdout.write(json.dumps(dataclasses.asdict(plan), indent=2) + "\n")
    else:
        sys.stdout.write(render_plan(plan))
    return 1 if plan.faults else 0
