"""The command line ends in one line whatever the user or the machine got wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from retool_trainer.cli import main
from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import SandboxConfig
from retool_trainer.tools import ToolsError, open_tools


def test_a_folder_that_cannot_be_made_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["run", "--run-dir", str(tmp_path / "file" / "run")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


async def test_a_sandbox_that_does_not_open_refuses_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RETOOL_SANDBOX_ALLOW_NONE", raising=False)
    with pytest.raises(ToolsError, match="the sandbox does not open: isolation='none'"):
        async with open_tools(SandboxConfig(isolation="none")):
            pass


@pytest.mark.parametrize(
    "arguments",
    [
        ["rl.stepz=1"],
        ["run", "rl.stepz=1"],
        ["--set", "rl.stepz=1"],
        ["run", "seed=1", "--run-dir", "x", "--set", "rl.stepz=1"],
        ["plan", "--config", str(quickstart_config()), "--set", "rl.stepz=1"],
    ],
)
def test_keys_are_overridden_with_or_without_the_word_run_and_with_set(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "unknown key 'rl.stepz'; did you mean 'rl.steps'?" in capsys.readouterr().err
