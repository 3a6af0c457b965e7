"""Make `uv run apps/trainer` the command line of the trainer."""

import sys

from retool_trainer.cli import main

if __name__ == "__main__":
    sys.exit(main())
