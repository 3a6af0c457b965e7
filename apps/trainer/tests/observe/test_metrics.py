"""metrics.jsonl: one line per step, stable keys, safe against crashes and resumes."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retool_trainer.observe import (
    METRIC_KEYS,
    Metrics,
    metric_pattern,
    metrics_table,
    read_metrics,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def steps(path: Path) -> list[tuple]:
    return [(line["stage"], line.get("of"), line["step"]) for line in read_metrics(path)]


def test_one_json_object_per_step(path: Path) -> None:
    with Metrics(path) as metrics:
        metrics.append("sft", 1, {"loss": np.float32(0.5), "updates": 1})
        metrics.append("rl", 1, {"reward/mean": math.nan, "time/rollout_s": 2.0, "accuracy": None})
    assert path.read_text().splitlines() == [
        '{"stage": "sft", "step": 1, "loss": 0.5, "updates": 1}',
        '{"stage": "rl", "step": 1, "reward/mean": null, "time/rollout_s": 2.0, "accuracy": null}',
    ]


def test_a_key_that_the_table_lacks_is_refused(path: Path) -> None:
    with Metrics(path) as metrics, pytest.raises(ValueError, match="'rewards' is not in the table"):
        metrics.append("rl", 1, {"rewards": 1.0})
    assert read_metrics(path) == []


@pytest.mark.parametrize(
    ("key", "pattern"),
    [
        ("loss", "loss"),
        ("time/rollout_s", "time/<phase>_s"),
        ("time/step_s", "time/step_s"),
        ("tool/outcome/timed_out", "tool/outcome/<outcome>"),
        ("eval/aime-2024/pass_at_16", "eval/<set>/pass_at_<k>"),
        ("time/rollout", None),
        ("reward/component/a/b", None),
        ("stop/", None),
    ],
)
def test_a_key_may_be_an_instance_of_one_in_the_table(key: str, pattern: str | None) -> None:
    assert metric_pattern(key) == pattern


def test_every_metric_has_a_meaning_and_stands_in_the_documentation() -> None:
    assert all(meaning for _, meaning in METRIC_KEYS.values())
    page = Path(__file__).parents[2] / "METRICS.md"
    assert metrics_table() in page.read_text(), (
        "METRICS.md is not current; replace its table by the output of "
        "python -c 'import retool_trainer.observe as o; print(o.metrics_table())'"
    )


@pytest.mark.parametrize(
    ("stage", "of"), [("train", None), ("evaluate", None), ("rl", "sft"), ("evaluate", "x")]
)
def test_a_stage_that_does_not_exist_is_refused(path: Path, stage: str, of: str | None) -> None:
    with Metrics(path) as metrics, pytest.raises(ValueError, match="a line's stage is"):
        metrics.append(stage, 1, {}, of=of)


def test_a_torn_last_line_is_skipped_by_readers_and_removed_by_the_next_writer(path: Path) -> None:
    with Metrics(path) as metrics:
        metrics.append("sft", 1, {"loss": 1.0})
    with path.open("a") as file:
        file.write('{"stage": "sft", "st')
    assert steps(path) == [("sft", None, 1)]
    with Metrics(path) as metrics:
        metrics.append("sft", 2, {"loss": 0.9})
    assert steps(path) == [("sft", None, 1), ("sft", None, 2)]
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_steps_after_the_resumed_checkpoint_are_forgotten(path: Path) -> None:
    with Metrics(path) as metrics:
        metrics.append("evaluate", 0, {}, of="baseline")
        for step in (1, 2):
            metrics.append("sft", step, {"loss": 1.0})
        metrics.append("evaluate", 2, {}, of="sft")
        for step in (1, 2, 3):
            metrics.append("rl", step, {"loss": 1.0})
        metrics.append("evaluate", 3, {}, of="rl")
        assert metrics.forget_after("rl", 2) == 2
        metrics.append("rl", 3, {"loss": 2.0})
    before = [("evaluate", "baseline", 0), ("sft", None, 1), ("sft", None, 2)]
    assert steps(path) == [
        *before,
        ("evaluate", "sft", 2),
        ("rl", None, 1),
        ("rl", None, 2),
        ("rl", None, 3),
    ]
    with Metrics(path) as metrics:
        metrics.forget_after("sft", 1)
    assert steps(path) == before[:2]
    with Metrics(path) as metrics:
        metrics.forget_after("baseline", 0)
    assert steps(path) == before[:1]


def test_a_step_that_was_logged_twice_counts_once(path: Path) -> None:
    with Metrics(path) as metrics:
        metrics.append("evaluate", 2, {"eval/x/accuracy": 0.1}, of="sft")
        metrics.append("evaluate", 2, {"eval/x/accuracy": 0.2}, of="sft")
    assert [line["eval/x/accuracy"] for line in read_metrics(path)] == [0.2]


def test_a_killed_writer_leaves_a_readable_file(path: Path) -> None:
    code = (
        "import itertools, pathlib, sys\n"
        "from retool_trainer.observe import Metrics\n"
        "metrics = Metrics(pathlib.Path(sys.argv[1]))\n"
        "for step in itertools.count(1):\n"
        "    metrics.append('rl', step, {'loss': 1 / step})\n"
        "    print(step, flush=True)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 20:
            os.kill(writer.pid, signal.SIGKILL)
            break
    rest = writer.stdout.read().split()
    writer.stdout.close()
    writer.wait(timeout=30)
    told = int(rest[-1]) if rest else 20
    found = [line["step"] for line in read_metrics(path)]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= told, "what append returned from is on disk"
