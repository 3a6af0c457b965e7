"""Scripts in the shape of the recipe become the shipped NPU config; no flag is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from retool_trainer.config import RunConfig, load_config
from retool_trainer.launch.script import FLAGS, Gone, ImportArgsError, convert
from retool_trainer.launch.script._parse import flags_of

ROOT = Path(__file__).resolve().parents[4]
SCRIPTS = Path(__file__).parent / "scripts"
SFT = (SCRIPTS / "npu_sft.sh").read_text()
RL = (SCRIPTS / "npu_rl.sh").read_text()


def _converted(*texts: str) -> RunConfig:
    return RunConfig.model_validate(convert(texts).tree)


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        found: dict[str, Any] = {}
        for key, value in tree.items():
            found |= _leaves(value, f"{path}.{key}".lstrip("."))
        return found
    return {path: tree}


def test_the_recipes_scripts_give_the_shipped_npu_config() -> None:
    imported = convert([RL, SFT]).tree  # in any order
    shipped_config = load_config(ROOT / "configs" / "qwen3-4b-npu-a3.yaml")
    shipped = shipped_config.model_dump(mode="json")
    # Names of data sets are ours to choose; what they point to is compared below.
    different = {
        key: (value, _leaves(shipped).get(key))
        for key, value in _leaves(imported).items()
        if key not in {"name", "sft.phases", "rl.problems", "evaluation.sets"}
        and not key.startswith("data.sets")
        and _leaves(shipped).get(key) != value
    }
    assert different == {}
    config = RunConfig.model_validate(imported)
    assert config.sft is not None
    assert config.rl is not None
    assert config.evaluation == shipped_config.evaluation
    sets = config.data.sets
    for name, file in (
        (config.sft.phases[0].data, "data/ReTool-SFT/data/train-00000-of-00001.parquet"),
        (config.rl.problems, "data/dapo-math-17k/dapo-math-17k.jsonl"),
        (config.evaluation.sets[0].data, "data/aime-2024/aime-2024.jsonl"),
    ):
        assert sets[name] == file
        assert file in shipped["data"]["sets"].values()
    # And far enough for that to mean something: all of the recipe's table is in the script.
    assert len(_leaves(imported)) > 45


def test_each_script_alone_is_a_config() -> None:
    sft, rl = _converted(SFT), _converted(RL)
    assert (sft.stages, sft.policy.world_size, sft.policy.data_parallel) == (["sft"], 16, 4)
    assert (rl.stages, rl.model.path) == (["rl"], "runs/sft/hf")
    assert rl.policy.data_parallel == 2
    assert rl.engine.replicas == 2


def test_every_flag_of_the_scripts_is_set_or_said_to_be_gone() -> None:
    converted = convert([SFT, RL])
    assert converted.unknown == ()
    for flag, _ in [*flags_of(SFT), *flags_of(RL)]:
        assert (flag in converted.gone) == isinstance(FLAGS[flag], Gone)


def test_flags_of_ray_and_in_comments_are_no_flags_of_the_trainer() -> None:
    names = {flag for flag, _ in flags_of(SFT)}
    assert "--head" not in names
    assert "--resources" not in names
    assert "--address" not in names
    assert "--not-this-one" not in names


def test_variables_and_defaults_are_filled_in() -> None:
    flags = dict(
        flags_of("A=x\nB_ARGS=(\n --hf-checkpoint ${A}/m --lr ${LR:-2e-6} --save $OUT\n)\n")
    )
    assert flags == {"--hf-checkpoint": ["x/m"], "--lr": ["2e-6"], "--save": ["$OUT"]}


def test_an_unknown_flag_is_shown_and_not_swallowed() -> None:
    assert convert([RL.replace("--balance-data", "--frobnicate 7")]).unknown == ("--frobnicate 7",)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("--lr 1e-6", "--lr fast", "--lr fast"),
        ("--global-batch-size 256", "--global-batch-size 100", "does not divide 256 samples"),
        ("--actor-num-gpus-per-node 8", "--actor-num-gpus-per-node 6", "no multiple of TP x PP"),
        ("--global-batch-size 256", "--global-batch-size 0", "1 or more"),
        ("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 0", "1 or more"),
        ("--rollout-num-gpus-per-engine 4", "--rollout-num-gpus-per-engine 0", "1 or more"),
        ("--actor-num-nodes 1", "--actor-num-nodes 0", "1 or more"),
        ("--hf-checkpoint runs/sft/hf", "", "no --hf-checkpoint"),
        ("--lr 1e-6", '--lr "1e-6', "not a shell script: No closing quotation"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(old: str, new: str, expected: str) -> None:
    with pytest.raises(ImportArgsError, match=expected):
        convert([RL.replace(old, new)])


def test_two_scripts_of_one_stage_are_refused() -> None:
    with pytest.raises(ImportArgsError, match="two scripts for the stage rl"):
        convert([RL, RL])


def test_colocated_scripts_share_the_devices() -> None:
    text = RL.replace("--rollout-num-gpus 8", "--colocate")
    config = _converted(text)
    assert config.engine.colocated
    assert config.devices_per_node == 8
    assert config.engine.replicas == 2


def test_only_a_script_that_speaks_of_npus_is_for_npus() -> None:
    gpus = RL.replace("NPUs", "GPUs").replace("export HCCL_HOST_SOCKET_PORT_RANGE=60000-60050", "")
    assert "--input-key" in gpus  # which has the letters n, p, u in it
    assert _converted(gpus).platform == "cuda"
    assert _converted(RL).platform == "npu"


def test_a_command_substitution_does_not_end_an_array() -> None:
    flags = dict(flags_of("A=(\n --save runs/$(date +%F)/x\n --save-interval 20\n)\nB=(--lr 1)\n"))
    assert flags["--save-interval"] == ["20"]
    assert flags["--lr"] == ["1"]


def test_partial_rollouts_come_with_the_schedule_that_has_them() -> None:
    schedule = convert([RL.replace("--balance-data", "--partial-rollout")]).tree["rl"]["schedule"]
    assert schedule == {"partial_rollouts": True, "kind": "async"}
    _converted(RL.replace("--balance-data", "--partial-rollout"))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("reinforce_plus_plus", ("reinforce_pp", "clip")),
        ("reinforce_plus_plus_baseline", ("reinforce_pp_baseline", "clip")),
        ("gspo", ("grpo", "gspo")),
    ],
)
def test_every_estimator_becomes_the_one_of_its_name(theirs: str, ours: tuple[str, str]) -> None:
    rl = _converted(RL.replace("estimator grpo", f"estimator {theirs}")).rl
    assert rl is not None
    assert (rl.advantage, rl.loss) == ours


def test_flags_of_rl_in_an_sft_script_are_said_to_be_gone() -> None:
    text = SFT.replace("--num-epoch 3", "--num-epoch 3 --num-rollout 500 --n-samples-per-prompt 1")
    assert _converted(text).rl is None
    assert "--num-rollout" in convert([text]).gone
    both = convert([text, RL])
    assert both.tree["rl"]["steps"] == 400


def test_what_is_no_script_is_answered_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_bytes(b"\x7fELF\xd0")
    done = subprocess.run(
        [sys.executable, str(ROOT / "apps" / "trainer"), "import-args", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_writes_a_config_that_plan_accepts(tmp_path: Path) -> None:
    trainer = str(ROOT / "apps" / "trainer")
    out = tmp_path / "mine.yaml"
    scripts = [str(SCRIPTS / "npu_sft.sh"), str(SCRIPTS / "npu_rl.sh")]
    done = subprocess.run(
        [sys.executable, trainer, "import-args", *scripts, "--output", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gone  --rotary-base: read from the checkpoint's config.json" in done.stderr
    assert yaml.safe_load(out.read_text())["platform"] == "npu"
    planned = subprocess.run(
        [sys.executable, trainer, "plan", "--config", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert planned.returncode == 0, planned.stdout
