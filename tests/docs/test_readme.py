"""The code in README.md runs, and its commands are those that other tests run whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    line for language, text in BLOCKS if language == "bash" for line in text.splitlines() if line
]
# These take minutes: tests/e2e/trainer runs the first one whole and the others in short, and this
# test is part of the second.
# In two halves: this file must not name them either.
HOSTS = (("pypi", r"\.org"), ("python", "hosted"), ("registry.", "npmjs"), ("deb", r"\.debian\."))
RUN_ELSEWHERE = {"uv run apps/trainer", "uv run pytest"}


@pytest.mark.parametrize("code", PYTHON, ids=[text.splitlines()[-1][:40] for text in PYTHON])
def test_a_python_block_runs_and_prints(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_that_the_trainer_understands(command: str, tmp_path: Path) -> None:
    if command in RUN_ELSEWHERE:
        return
    words = command.split()
    assert words[:3] == ["uv", "run", "apps/trainer"]
    words[words.index("--run-dir") + 1] = str(tmp_path / "run")
    # Everything is checked up to where the run would start: there is not that much memory.
    done = subprocess.run(
        [sys.executable, str(ROOT / "apps" / "trainer"), *words[3:], "ray.min_free_memory_gib=1e6"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert "ray.min_free_memory_gib asks for" in done.stderr, done.stderr


def test_only_known_kinds_of_blocks_are_in_the_readme() -> None:
    assert {language for language, _ in BLOCKS} == {"bash", "python", "text"}
    assert {command for command in COMMANDS if command in RUN_ELSEWHERE} == RUN_ELSEWHERE


def test_every_link_into_the_repository_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_no_registry_host_and_no_path_of_a_machine_is_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    ).stdout.splitlines()
    hosts = re.compile(
        "pypi" + r"\.org|python" + r"hosted|registry\." + "npmjs|deb" + r"\.debian\.org"
    )
    for name in listed:
        if name == "uv.lock":
            continue
        text = (ROOT / name).read_bytes().decode("utf-8", errors="ignore")
        assert not hosts.search(text), f"{name} names a registry host"
