"""RL from the quickstart's SFT model learns with each advantage estimator that is offered.

Ten of the quickstart's 32 steps; the quickstart itself shows the whole rise for GRPO, and
apps/trainer/benchmarks/learning.py for the others.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import pytest

from retool_trainer.config import RlConfig

pytestmark = pytest.mark.timeout(900)

ESTIMATORS = get_args(RlConfig.model_fields["advantage"].annotation)


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "grpo"])
def test_sampled_accuracy_rises(
    trainer_runs: Any, quickstart: Path, tmp_path: Path, estimator: str
) -> None:
    run_dir = tmp_path / "run"
    arguments = [
        "--stages", "rl", f"rl.start_from={quickstart / 'models' / 'sft'}", "rl.steps=10",
        "rl.evaluate_every=0", "evaluation.sets=[]", f"rl.advantage={estimator}",
    ]  # fmt: skip
    if estimator == "reinforce_pp":
        arguments.append("rl.drop_flat_groups=false")  # its baseline is the batch
    done = trainer_runs.run("run", "--run-dir", str(run_dir), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = [entry["accuracy"] for entry in trainer_runs.metrics(run_dir)]
    assert fmean(accuracy[-3:]) >= fmean(accuracy[:2]) + 0.15, accuracy
