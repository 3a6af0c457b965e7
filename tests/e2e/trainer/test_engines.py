"""RL with other layouts and engines than the quickstart's: data-parallel ranks, and a real vLLM."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(1800)  # a busy machine takes minutes to start a vLLM


def _assert_faithful(entries: list[dict[str, Any]], steps: int) -> None:
    """Each step was taken once, and the engine sampled with the policy's newest weights."""
    assert [entry["step"] for entry in entries] == list(range(1, steps + 1))
    for entry in entries:
        assert entry["engine/weight_version"] == entry["step"]
        assert entry["engine/logprob_gap_max"] <= 1e-4
        assert entry["engine/probe_gap"] <= 1e-4
        assert entry["schedule/staleness_max"] == 0
        assert entry["samples/aborted"] == 0


def test_two_data_parallel_ranks_train_with_a_faithful_engine(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    done = trainer_runs.run("run", "--run-dir", str(run_dir), *short_rl, "policy.data_parallel=2")
    assert done.returncode == 0, done.stdout + done.stderr
    entries = trainer_runs.metrics(run_dir)
    _assert_faithful(entries, steps=3)
    assert [entry["updates"] for entry in entries] == [2, 2, 2]


def _server(process: subprocess.Popen[str]) -> psutil.Process:
    """The vLLM of a run."""
    (server,) = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "vllm.entrypoints" in " ".join(child.cmdline())
        and "retool_trainer.engines._guard" not in child.cmdline()
    ]
    return server


def _kill_in_the_middle_of_a_weight_update(process: subprocess.Popen[str]) -> None:
    """The server is paused for as long as an update takes."""
    server = _server(process)
    command = server.cmdline()
    url = f"http://127.0.0.1:{command[command.index('--port') + 1]}/is_paused"
    deadline_s = time.monotonic() + 120
    paused = False
    while not paused:
        assert time.monotonic() < deadline_s
        with urllib.request.urlopen(url, timeout=30) as answer:
            paused = json.load(answer)["is_paused"]
    server.kill()


def test_a_real_vllm_gets_the_policys_weights_by_broadcast_and_may_die_in_the_middle(
    trainer_runs: Any, vllm_python: Path, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with trainer_runs.started(
        "run", "--run-dir", str(run_dir), *short_rl, "rl.steps=4", "rl.checkpoint_every=2",
        "engine=vllm", f"engine.python={vllm_python}", "engine.sync=broadcast",
    ) as process:  # fmt: skip
        trainer_runs.wait_for_steps(process, run_dir, 2)
        _kill_in_the_middle_of_a_weight_update(process)
        output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    assert output.count("a worker failed (") == 1, output
    _assert_faithful(trainer_runs.metrics(run_dir), steps=4)


def test_a_killed_vllm_is_started_again_with_the_newest_weights_and_no_problem_is_lost(
    trainer_runs: Any, vllm_python: Path, short_rl: list[str], tmp_path: Path
) -> None:
    """Weights travel by disk here; it dies once while it samples and once while it loads them."""
    from retool_trainer.observe import read_trajectories

    run_dir = tmp_path / "run"
    with trainer_runs.started(
        "run", "--run-dir", str(run_dir), *short_rl, "rl.steps=5", "rl.checkpoint_every=2",
        "engine=vllm", f"engine.python={vllm_python}", "engine.sync=disk",
    ) as process:  # fmt: skip
        trainer_runs.wait_for_steps(process, run_dir, 2)
        _server(process).kill()
        trainer_runs.wait_for_steps(process, run_dir, 3)
        _kill_in_the_middle_of_a_weight_update(process)
        output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    assert output.count("a worker failed (no answer from the vLLM at ") == 1, output
    assert output.count("a worker failed (") == 2, output
    _assert_faithful(trainer_runs.metrics(run_dir), steps=5)
    seen = [
        {record.problem_id for record in read_trajectories(file)}
        for file in sorted((run_dir / "trajectories" / "rl").glob("*.parquet"))
    ]
    assert [len(problems) for problems in seen] == [4] * 5
    assert len(set().union(*seen)) == 20
