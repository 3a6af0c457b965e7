"""Every code block of the README does what it says."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

from retool_rollout._cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_the_python_blocks_print_what_stands_below_them(tiny_file):
    space = {"TOKENIZER": tiny_file.parent, "__name__": "readme"}
    module = type(sys)("readme")  # dataclasses look their module up
    module.__dict__.update(space)
    sys.modules["readme"] = module
    try:
        checked = 0
        for i, (language, code) in enumerate(BLOCKS):
            if language != "python":
                continue
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, "README.md", "exec"), module.__dict__)
            assert sorted(output.getvalue().splitlines()) == sorted(BLOCKS[i + 1][1].splitlines())
            checked += 1
        assert checked == 2
    finally:
        del sys.modules["readme"]


def test_the_shell_block_runs():
    (script,) = [code for language, code in BLOCKS if language == "bash"]
    command = script.split()
    assert command[0] == "retool-rollout"
    done = subprocess.run(
        [sys.executable, "-m", "retool_rollout._cli", *command[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--n N" in done.stdout


def test_the_commands_that_need_a_server_parse(capsys):
    commands = [
        line.split()
        for language, code in BLOCKS
        if language == "console"
        for line in code.splitlines()
        if line.startswith("retool-rollout")
    ]
    assert [command[1] for command in commands] == ["eval", "view", "chat"]
    for command in commands:
        # They fail for the files that are not there (2), not for a wrong option (SystemExit).
        assert main(command[1:]) == 2
        assert "error: unrecognized" not in capsys.readouterr().err
