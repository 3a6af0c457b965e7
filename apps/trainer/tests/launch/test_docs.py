"""The guides' commands run, and their tables and paths are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retool_trainer.launch.script import FLAGS, Gone
from retool_trainer.launch.script._flags import FILES

ROOT = Path(__file__).resolve().parents[4]
PAGES = ["docs/npu-guide.md", "docs/from-slime-vime.md", "configs/README.md"]


def _blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _commands() -> list[str]:
    return [
        line for page in PAGES for block in _blocks(page, "bash") for line in block.splitlines()
    ]


def _run(command: str) -> subprocess.CompletedProcess[str]:
    """With this interpreter instead of `uv run`, which would sync the environment."""
    line = command.replace("uv run apps/trainer", f"{sys.executable} apps/trainer")
    return subprocess.run(
        ["bash", "-ec", line],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("command", _commands())
def test_every_bash_line_of_the_guides_runs(command: str) -> None:
    result = _run(command)
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_the_npu_guide_shows_is_what_is_printed() -> None:
    plan, _, fault = [c for c in _commands() if " plan " in c][:3]
    shown = " ".join("\n".join(_blocks("docs/npu-guide.md", "text")).split())
    assert " ".join(_run(plan).stdout.splitlines()[-1].split()) in shown
    last = _run(fault).stdout.splitlines()
    assert " ".join(last[-2].split()) in shown
    assert last[-1] in shown
    fetch = next(c for c in _commands() if " fetch " in c)
    for line in _run(fetch).stdout.splitlines():
        if line.startswith(("  hf download", "Without a network", "or set HF_ENDPOINT")):
            assert " ".join(line.split()) in shown


def _table(rows: list[tuple[str, str]], head: tuple[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    return "\n".join(lines)


def _flag_rows() -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for flag, rule in FLAGS.items():
        if isinstance(rule, Gone):
            rows.append((f"`{flag}`", f"gone: {rule.why}"))
        else:
            note = f" ({rule.note})" if rule.note else ""
            rows.append((f"`{flag}`", f"`{rule.key}`{note}"))
    return rows


def test_the_tables_of_the_slime_page_are_those_of_the_code() -> None:
    """RETOOL_UPDATE_GOLDEN=1 writes them anew."""
    file = ROOT / "docs" / "from-slime-vime.md"
    files = _table([(f"`{a}`", b) for a, b in FILES.items()], ("theirs", "here"))
    flags = _table(_flag_rows(), ("flag", "key"))
    if os.environ.get("RETOOL_UPDATE_GOLDEN"):
        text = file.read_text(encoding="utf-8")
        for title, table in (("## Files and habits", files), ("## Flags", flags)):
            head, _, rest = text.partition(f"{title}\n")
            intro, body = re.match(r"((?:\n[^|\n#F][^\n]*)*\n*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
            after = body[body.index("\n## ") :]
            text = f"{head}{title}\n{intro.rstrip()}\n\n{table}\n{after}".replace(
                f"{title}\n\n\n", f"{title}\n\n"
            )
        file.write_text(text, encoding="utf-8")
    text = file.read_text(encoding="utf-8")
    assert files in text
    assert flags in text


@pytest.mark.parametrize("page", [*PAGES, "docker/README.md"])
def test_paths_named_in_the_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"\b((?:configs|docker|docs|apps)/[\w./-]+\.\w+)", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", [*PAGES, "docker/README.md"])
def test_every_page_says_what_was_not_run(page: str) -> None:
    if page == "docs/from-slime-vime.md":
        return  # it claims nothing about hardware
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert re.search(r"not (\*\*)?run on", text) or "**not run on" in text
