"""The schedules and the terms of the objective that the quickstart leaves off, run to their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retool_trainer.observe import SampleRecord, read_trajectories

pytestmark = pytest.mark.timeout(900)


def _drawn(run_dir: Path) -> list[list[SampleRecord]]:
    """The trajectories of every RL step."""
    files = sorted((run_dir / "trajectories" / "rl").glob("*.parquet"))
    return [list(read_trajectories(file)) for file in files]


def _assert_every_problem_once(steps: list[list[SampleRecord]], problems_per_step: int) -> None:
    problems = [{record.problem_id for record in records} for records in steps]
    assert [len(ids) for ids in problems] == [problems_per_step] * len(steps)
    assert len(set().union(*problems)) == problems_per_step * len(steps)


def test_one_step_off_trains_on_tokens_that_are_one_update_old(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    done = trainer_runs.run(
        "run", "--run-dir", str(run_dir), *short_rl, "rl.steps=4",
        "rl.schedule.kind=one_step_off", "rl.advantage=rloo", "rl.correction.kind=tis",
        "rl.kl={coefficient: 0.01, estimator: low_var}", "rl.minibatches=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    entries = trainer_runs.metrics(run_dir)
    assert [entry["schedule/staleness_max"] for entry in entries] == [0, 1, 1, 1]
    # The reference is where training began: no distance at first, then some.
    assert entries[0]["policy/kl"] <= 1e-6
    assert entries[-1]["policy/kl"] > entries[0]["policy/kl"]
    _assert_every_problem_once(_drawn(run_dir), problems_per_step=4)


def test_free_running_rollouts_go_on_through_updates_and_stay_within_the_staleness_bound(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    done = trainer_runs.run(
        "run", "--run-dir", str(run_dir), *short_rl, "rl.steps=5",
        "rl.schedule={kind: async, max_staleness: 2, partial_rollouts: true}",
        "rl.advantage=dr_grpo", "rl.loss=cispo", "rl.correction.kind=mis",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    entries = trainer_runs.metrics(run_dir)
    assert max(entry["schedule/staleness_max"] for entry in entries) in (1, 2)
    steps = _drawn(run_dir)
    _assert_every_problem_once(steps, problems_per_step=4)
    for records in steps:
        for record in records:
            versions = [version for version in record.weight_versions if version is not None]
            assert versions == sorted(versions)


def test_dynamic_sampling_fills_the_step_with_groups_of_both_outcomes(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    done = trainer_runs.run(
        "run", "--run-dir", str(run_dir), *short_rl,
        "rl.dynamic_sampling=true", "rl.advantage=reinforce_pp", "rl.loss=gspo",
        "rl.kl={coefficient: 0.01, estimator: k1, where: reward}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for records in _drawn(run_dir):
        groups: dict[int, set[bool | None]] = {}
        for record in records:
            groups.setdefault(record.group, set()).add(record.correct)
        assert list(groups.values()) == [{True, False}] * 4


def test_rollout_only_draws_and_stores_and_leaves_the_weights_alone(
    trainer_runs: Any, quickstart: Path, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    done = trainer_runs.run("run", "--run-dir", str(run_dir), *short_rl, "rl.rollout_only=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [len(records) for records in _drawn(run_dir)] == [32, 32, 32]
    models = [run / "models" for run in (quickstart, run_dir)]
    before, after = models[0] / "sft", models[1] / "rl"
    assert (after / "model.safetensors").read_bytes() == (before / "model.safetensors").read_bytes()


def test_a_diverging_run_stops_with_one_line(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path
) -> None:
    done = trainer_runs.run(
        "run", "--run-dir", str(tmp_path / "run"), *short_rl, "rl.optimizer.learning_rate=1e30",
        "rl.optimizer.warmup_steps=0",
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: the gradient norm is ")
    assert done.stderr.count("\n") == 1
