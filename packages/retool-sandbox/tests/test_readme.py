"""Every python and bash block of the README runs and prints what the README shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(
    r"```(python|bash)\n(.*?)```\n+(?:```text\n(.*?)```)?",
    README.read_text(encoding="utf-8"),
    re.DOTALL,
)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_prints_what_the_readme_shows(number: int) -> None:
    language, code, expected = BLOCKS[number]
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-ec", code]
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3
