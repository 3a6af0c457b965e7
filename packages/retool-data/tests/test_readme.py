"""Every block of the README runs, in order, in one folder; its output is what the README shows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from retool_data._cli import main

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> Iterator[tuple[str, bool, str]]:
    """Language, whether it needs sibling packages and a model's tokenizer, and text."""
    for language, options, code in BLOCK.findall(README.read_text()):
        yield language, "norun" in options, code


def run_line(line: str, capsys: pytest.CaptureFixture[str] | None = None) -> None:
    """Run a command in this process: a start of Python per line would take most of the time."""
    command, _, otherwise = line.partition(" || ")
    program, *arguments = shlex.split(command)
    assert program == "retool-data"
    code = main(arguments)
    if (
        code == 2
        and capsys is not None
        and "IsolationUnavailable" in (error := capsys.readouterr().err)
    ):
        pytest.skip(f"no sandbox on this machine: {error}")
    if otherwise:
        assert code == 1
        print(shlex.split(otherwise)[1])
    else:
        assert code == (1 if "validate" in line else 0)


def check(shown: str, said: list[str]) -> None:
    assert [line for line in shown.splitlines() if line != "..." and line not in said] == []


def test_the_blocks_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    said: list[str] = []
    after_norun = False
    for language, norun, code in blocks():
        if language == "python":
            exec(code, names)
        elif language == "bash" and not norun and not code.startswith("pip install"):
            for line in code.splitlines():
                run_line(line)
        elif language == "text" and not after_norun:
            check(code, said)
        after_norun = norun
        said += capsys.readouterr().out.splitlines()
    assert (tmp_path / "back.jsonl").is_file()
    assert (tmp_path / "verl.parquet").is_file()


def test_the_blocks_that_need_siblings_run_and_print_what_the_readme_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_tokenizer_file: Path,
) -> None:
    pytest.importorskip("retool_rollout", reason="needs retool-data[rollout]")
    pytest.importorskip("retool_sandbox", reason="needs retool-data[sandbox]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen3-4B").symlink_to(tiny_tokenizer_file.parent)
    exec(next(code for language, _, code in blocks() if language == "python"), {})
    run_line("retool-data dedupe sft.jsonl -o unique.jsonl")
    said: list[str] = []
    after_norun = False
    for language, norun, code in blocks():
        for line in code.splitlines() if norun else []:
            run_line(line, capsys)
        said += capsys.readouterr().out.splitlines()
        if language == "text" and after_norun:
            check(code, said)
        after_norun = norun
    assert (tmp_path / "view.html").is_file()
