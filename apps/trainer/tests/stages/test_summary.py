"""The words of the final table."""

from __future__ import annotations

from pathlib import Path

from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import load_config
from retool_trainer.run_folder import RunFolder, write_json
from retool_trainer.stages import table_lines

MEASURED = {
    "accuracy": 0.5,
    "accuracy_low": 0.4,
    "accuracy_high": 0.6,
    "tool_use": 1.0,
    "tool_errors": 0.0,
    "reward": 0.5,
    "problems": 9,
}


def test_only_a_model_made_at_random_is_called_random(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.evaluations / "baseline.json", {"greedy": MEASURED, "sampled": MEASURED})
    made = load_config(quickstart_config())
    given = load_config(quickstart_config(), ["model.shape=null", "model.path=x"])
    assert any(line.startswith("  random weights") for line in table_lines(made, folder))
    assert any(line.startswith("  before training") for line in table_lines(given, folder))
