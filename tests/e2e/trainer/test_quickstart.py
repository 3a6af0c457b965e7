"""The main job as a user starts it: `uv run apps/trainer`, its promises, and its failures.

One full run is shared by the tests below; the short runs start from the model that its SFT made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(1560)


def test_the_quickstart_keeps_its_promises(quickstart: Path) -> None:
    summary = json.loads((quickstart / "summary.json").read_text())
    accuracy, sampled = summary["accuracy"], summary["accuracy_sampled"]
    assert accuracy["baseline"] <= 0.02
    assert accuracy["rl"] >= 0.85
    assert accuracy["rl"] >= accuracy["sft"] + 0.15
    assert sampled["rl"] >= sampled["sft"] + 0.35
    assert summary["tool_use"]["rl"] >= 0.95
    assert summary["tool_errors"]["rl"] <= 0.05
    assert set(summary["wall_s"]) == {"sft", "rl", "total"}
    assert summary["seed"] == 0
    assert summary["config"]["name"] == "quickstart"


def test_engine_and_policy_agree_on_every_step(trainer_runs: Any, quickstart: Path) -> None:
    for entry in trainer_runs.metrics(quickstart):
        assert entry["engine/logprob_gap_max"] <= 1e-4
        assert entry["engine/probe_gap"] <= 1e-4


def test_the_exported_model_is_the_one_that_was_trained(quickstart: Path) -> None:
    """transformers, given only the exported folder, finds the log-probabilities of the rollouts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from retool_trainer.observe import read_trajectories

    folder = quickstart / "models" / "rl"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    [file] = (quickstart / "trajectories" / "evaluate-rl-sampled").glob("*.parquet")
    for record in list(read_trajectories(file))[:5]:
        ids = torch.tensor([record.ids])
        with torch.no_grad():
            table = torch.log_softmax(model(ids).logits[0, :-1], dim=-1)
        own = table.gather(1, ids[0, 1:, None])[:, 0]
        for position, on in enumerate(record.mask):
            if on:
                assert abs(float(own[position - 1]) - record.engine_logprobs[position]) <= 1e-4
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode("What is 2 plus 2?")) == "What is 2 plus 2?"


def test_the_terminal_tells_the_whole_story(quickstart: Path) -> None:
    shown = (quickstart / "stdout.txt").read_text()
    for expected in (
        "sft step 200/200",
        "rl  step 32/32",
        "random weights",
        "after SFT",
        "after RL",
    ):
        assert expected in shown
    assert "calls  print(" in shown
    assert str(quickstart / "summary.json") in shown


def test_a_finished_run_is_not_run_again(trainer_runs: Any, quickstart: Path) -> None:
    before = (quickstart / "summary.json").read_bytes()
    again = trainer_runs.run("--run-dir", str(quickstart), timeout_s=120)
    assert again.returncode == 0
    assert "is finished; --fresh starts it again" in again.stdout
    assert (quickstart / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rl.stepz=3"], "unknown key 'rl.stepz'; did you mean 'rl.steps'?"),
        (["--config", "nowhere.yaml"], "cannot read the config 'nowhere.yaml'"),
        (["ray.min_free_memory_gib=100000"], "ray.min_free_memory_gib asks for 100000"),
        (["rl.replay=elsewhere"], "rl.replay: elsewhere has no trajectories of RL step 1; lower"),
        (["ray.address=127.0.0.1:9"], "no Ray answers at ray.address 127.0.0.1:9"),
        (
            ["rl.problems=nothing"],
            "there is no data set 'nothing'; the run has clean, copy, heldout, mixed, train",
        ),
    ],
)
def test_a_run_that_cannot_be_says_so_in_one_line(
    trainer_runs: Any, tmp_path: Path, arguments: list[str], message: str
) -> None:
    small = ["data.arithmetic.num_train_problems=64", "data.arithmetic.num_copy_rows=8"]
    small += ["data.arithmetic.num_clean_rows=8", "data.arithmetic.num_mixed_rows=8"]
    done = trainer_runs.run("run", "--run-dir", str(tmp_path / "run"), *small, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout + done.stderr
    # Nothing is there that a corrected command could stumble over.
    assert [path.name for path in tmp_path.glob("run/*")] in ([], [".lock"])


def test_the_folder_of_another_config_is_refused(trainer_runs: Any, quickstart: Path) -> None:
    done = trainer_runs.run("--run-dir", str(quickstart), "rl.steps=41", timeout_s=120)
    assert done.returncode == 2
    assert "rl.steps: the folder has 32, this run has 41" in done.stderr


def test_help_explains_itself(trainer_runs: Any) -> None:
    done = trainer_runs.run("run", "--help", timeout_s=60)
    assert done.returncode == 0
    assert "key=value" in done.stdout
    assert "continued" in done.stdout
