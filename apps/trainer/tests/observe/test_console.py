"""The line of a step, with and without a terminal."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from retool_trainer.observe import Console, duration, step_line

METRICS = {
    "time/step_s": 41.3,
    "reward/mean": 0.412,
    "accuracy": 0.38,
    "turns/mean": 2.7,
    "tool/use": 0.97,
    "tool/ok": 0.91,
    "truncated": 0.02,
    "policy/entropy": 0.35,
    "policy/kl": 0.003,
    "throughput/tokens_per_s": 1840.0,
}


def test_a_step_is_one_readable_line() -> None:
    assert step_line("rl", 12, 200, METRICS, 7764.0) == (
        "rl  step  12/200 |   41.3s | reward  0.412 | right  38% | turns  2.7 | tool  97% | "
        "tool ok  91% | cut   2% | entropy  0.35 | kl  0.003 |   1840 tok/s |   2h09m left"
    )


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_columns_stay_under_each_other_whatever_is_missing(stage: str) -> None:
    def bars(line: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\|", line)]

    full = {**METRICS, "loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-5, "reward/mean": -0.6}
    assert bars(step_line(stage, 1, 200, {}, 3.0)) == bars(step_line(stage, 100, 200, full, 90.0))


def test_kl_to_the_reference_is_preferred_to_that_of_the_update() -> None:
    values = {**METRICS, "policy/kl": None, "policy/approx_kl": 0.7}
    assert "kl  0.700" in step_line("rl", 1, 2, values, None)
    assert "kl  0.003" in step_line("rl", 1, 2, {**values, "policy/kl": 0.003}, None)


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.4, 187, 7500)] == ["0s", "59s", "3m07s", "2h05m"]


def test_without_a_terminal_lines_are_plain() -> None:
    stream = io.StringIO()
    with Console(stream) as console, console.stage("rl", total=2):
        console.line("starting")
        for step in (1, 2):
            with console.work("rollout", total=8) as advance:
                advance(8)
            console.step("rl", step, 2, METRICS)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "starting"
    assert [line[:12] for line in lines[1:]] == ["rl  step 1/2", "rl  step 2/2"]
    assert lines[2].endswith(" 0s left")
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_a_bar_shows_progress_below_the_lines() -> None:
    code = (
        "from retool_trainer.observe import Console\n"
        "with Console() as console, console.stage('rl', total=4):\n"
        "    with console.work('evaluate [heldout]', total=9) as advance:\n"
        "        advance(3)\n"
        "        console.line('a model says [bold]x[/bold]')\n"
        "    console.step('rl', 1, 4, {'reward/mean': 0.5})\n"
    )
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=slave,
        stderr=slave,
        env={**os.environ, "COLUMNS": "150"},
    )
    os.close(slave)
    output = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux answers EIO when the other side is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(master)
    assert child.wait(timeout=60) == 0
    text = output.decode()
    assert "a model says [bold]x[/bold]" in text, "markup in a line is text"
    assert "evaluate [heldout]" in text
    assert "3/9" in text
    assert "reward  0.500" in text
    assert "\x1b[?25h" in text, "the cursor is shown again"
