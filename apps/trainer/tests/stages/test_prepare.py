"""What a run cannot use is refused before any worker starts, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from retool_data import Problem, Trajectory, Turn
from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import RunConfig, load_config
from retool_trainer.run_folder import RunFolder, write_json, write_text
from retool_trainer.stages import PrepareError, prepare

PROBLEM = Problem(problem_id="p", statement="1 + 1?", gold="2")
SETS = {
    "problems": PROBLEM.model_dump_json(),
    "demonstrations": Trajectory.from_turns(PROBLEM, [Turn(text="2")]).model_dump_json(),
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A folder whose data was prepared: one set of each kind, and an empty one."""
    folder = RunFolder(tmp_path / "run")
    for name, line in SETS.items():
        write_text(folder.data / f"{name}.jsonl", line + "\n")
    write_text(folder.data / "nothing.jsonl", "")
    write_json(folder.data / "prepared.json", {"sets": [*SETS, "nothing"]})
    return folder


def rl_config(*overrides: str) -> RunConfig:
    return load_config(
        quickstart_config(),
        ["stages=[rl]", "rl.problems=problems", "evaluation.sets=[]", *overrides],
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rl.problems=demonstrations"],
            "'demonstrations' is used for problems, but it holds demonstrations",
        ),
        (
            ["stages=[sft]", "sft.phases=[{data: problems, steps: 1}]"],
            "'problems' is used for demonstrations, but it holds problems",
        ),
        (["rl.problems=nothing"], "data set 'nothing' is empty"),
        (["evaluation.sets=[{name: a, data: nothing}]"], "data set 'nothing' is empty"),
        (["rl.start_from=nowhere"], "rl.start_from 'nowhere' has no config.json"),
        (["model.shape=null", "model.path=nowhere"], "model.path 'nowhere' has no config.json"),
    ],
)
def test_what_cannot_be_used_is_refused(
    folder: RunFolder, overrides: list[str], message: str
) -> None:
    with pytest.raises(PrepareError) as caught:
        prepare(rl_config(*overrides), folder)
    assert message in str(caught.value)


def test_a_model_without_a_tokenizer_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    write_json(tmp_path / "model" / "config.json", {})
    with pytest.raises(PrepareError, match="has no tokenizer"):
        prepare(rl_config("model.shape=null", f"model.path={tmp_path / 'model'}"), folder)
