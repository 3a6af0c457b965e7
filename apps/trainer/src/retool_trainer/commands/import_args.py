"""`import-args`: turn a launch script of slime or vime into a configuration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "scripts",
        nargs="+",
        type=Path,
        metavar="FILE.sh",
        help="a script for SFT, one for RL, or one of each",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the config there (default: print it)"
    )
    parser.add_argument("--name", default="imported", help="of the config (default: imported)")


def run(args: argparse.Namespace) -> int:
    """Write the config; 0 if every flag is known, 1 if some need a look, 2 for a bad script."""
    import yaml
    from pydantic import ValidationError

    from retool_trainer.config import RunConfig
    from retool_trainer.launch.script import ImportArgsError, convert
    from retool_trainer.run_folder import write_text

    try:
        texts = [path.read_text(encoding="utf-8") for path in args.scripts]
        converted = convert(texts, name=args.name)
        RunConfig.model_validate(converted.tree)
    except (OSError, UnicodeDecodeError, ImportArgsError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except ValidationError as error:
        for fault in error.errors():
            where = ".".join(str(part) for part in fault["loc"])
            sys.stderr.write(f"error: {where}: {fault['msg']}\n")
        return 2
    text = yaml.safe_dump(converted.tree, sort_keys=False, allow_unicode=True)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_text(args.output, text)
        sys.stdout.write(f"{args.output}\n")
    for flag, why in converted.gone.items():
        sys.stderr.write(f"gone  {flag}: {why}\n")
    for flag in converted.unknown:
        sys.stderr.write(f"LOOK  {flag}: not known; nothing was set for it\n")
    return 1 if converted.unknown else 0
