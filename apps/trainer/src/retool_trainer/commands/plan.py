"""`plan`: what a configuration would start, where, with what memory; touches no hardware."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys

from ._arguments import add_config_arguments


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_config_arguments(parser)
    parser.add_argument("--nodes", type=_count, metavar="N", help="instead of the config's nodes")
    parser.add_argument(
        "--devices", type=_count, metavar="M", help="devices of a node, instead of devices_per_node"
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def _count(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return number


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 if it can start, 1 if something speaks against it."""
    from retool_trainer.config import load_config
    from retool_trainer.launch import make_plan, render_plan

    config = load_config(args.config, args.overrides)
    plan = make_plan(
        config,
        config_file=str(args.config),
        overrides=args.overrides,
        nodes=args.nodes,
        devices=args.devices,
        environment=os.environ,
    )
    if args.json:
        shown = dataclasses.asdict(plan)
        for tree, estimate in zip(shown["memory"], plan.memory, strict=True):
            tree |= {"total_gib": estimate.total_gib, "fits": estimate.fits}
        for tree, time in zip(shown["times"], plan.times, strict=True):
            tree["total_s"] = time.total_s
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        sys.stdout.write(render_plan(plan))
    return 1 if plan.faults else 0
