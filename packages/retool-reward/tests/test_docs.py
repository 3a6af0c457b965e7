"""What README.md and RULES.md say is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retool_reward import GradeConfig, grade

PACKAGE = Path(__file__).resolve().parents[1]
README = (PACKAGE / "README.md").read_text()
RULES = (PACKAGE / "RULES.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RULE = re.compile(r"^\| `(.*?)` \| `(.*?)` \| (true|false) \| .* \|$", re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(README) if name == language]


@pytest.mark.parametrize("code", blocks("python"), ids=range(len(blocks("python"))))
def test_python_blocks_run(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("command", blocks("bash"), ids=range(len(blocks("bash"))))
def test_bash_blocks_print_what_the_readme_shows(command: str, tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shown = README[README.index(command) :].split("```text\n", 1)[1].split("```", 1)[0]
    assert without_times(done.stdout) == without_times(shown)


def without_times(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if not line.startswith("ms ")]


def test_every_block_is_run_or_is_output() -> None:
    assert {name for name, _ in BLOCK.findall(README)} <= {"python", "bash", "text"}


@pytest.mark.parametrize(("answer", "gold", "verdict"), RULE.findall(RULES))
def test_every_rule_holds(answer: str, gold: str, verdict: str) -> None:
    # a busy machine may be slow to agree
    config = GradeConfig(symbolic_time_s=20.0 if verdict == "true" else 0.8)
    assert grade(f"Answer: \\boxed{{{answer}}}", gold, config).correct is (verdict == "true")


def test_there_are_rules() -> None:
    assert len(RULE.findall(RULES)) > 50
