"""Append what the fake vendor stack saw to the file that $FAKE_NPU_LOG names, one JSON a line."""

import json
import os
from pathlib import Path


def record(event: str, **values: object) -> None:
    with Path(os.environ["FAKE_NPU_LOG"]).open("a") as file:
        file.write(json.dumps({"event": event, **values}) + "\n")
