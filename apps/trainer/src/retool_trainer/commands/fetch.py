"""`fetch`: get a configuration's model and data from the Hugging Face hub, verified."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ._arguments import add_config_arguments


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch everything; 0 if all of it is there and right, 1 if not, 130 after Ctrl-C."""
    from retool_trainer.config import load_config
    from retool_trainer.launch import FetchError, NoNetworkError, download_command, fetch_item

    config = load_config(args.config, args.overrides)
    if not config.fetch:
        sys.stdout.write("the config names nothing to fetch\n")
        return 0
    unreachable = False
    failed = False
    for item in config.fetch:
        try:
            fetch_item(item, _say)
        except NoNetworkError as error:
            unreachable = failed = True
            _say(f"FAIL  {error}")
        except (FetchError, OSError) as error:
            failed = True
            _say(f"FAIL  {error}")
        except KeyboardInterrupt:
            _say("stopped; the same command goes on where it stopped")
            return 130
    if unreachable:
        _say("")
        _say("Without a network here: run these lines on a machine that has one,")
        _say("or set HF_ENDPOINT to a mirror and run `fetch` again.")
        for item in config.fetch:
            _say(f"  {download_command(item)}")
        _say("Then bring the folders to the same paths, below")
        _say(f"  {Path.cwd()}")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
