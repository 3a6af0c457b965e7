"""The plan of every shipped config is pinned in golden/, and every fault is named with its cure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retool_trainer.cli import main
from retool_trainer.config import load_config
from retool_trainer.launch import Plan, make_plan, render_plan, seats
from retool_trainer.launch._memory import LOGITS_AT_ONCE

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[4]
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _no_models_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model paths are relative: a machine that has the models would print another source."""
    monkeypatch.chdir(tmp_path)


def _plan(name: str, *overrides: str, **arguments: Any) -> Plan:
    file = ROOT / "configs" / f"{name}.yaml"
    config = load_config(file, overrides)
    return make_plan(config, config_file=f"configs/{name}.yaml", **arguments)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_plan_of_a_shipped_config_is_the_golden_one(name: str) -> None:
    """RETOOL_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it."""
    plan = _plan(name)
    text = render_plan(plan)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("RETOOL_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
    assert plan.faults == ()


def test_two_nodes_start_ray_by_hand_and_the_run_joins_it() -> None:
    plan = _plan("qwen3-4b-npu-a2", "engine.sync=broadcast", nodes=2)
    head, worker, run = plan.ray_commands
    assert head.startswith("node 0: ray start --head --port 6379")
    assert """--num-gpus 0 --resources '{"NPU": 8}'""" in head
    assert worker.startswith("node 1: ray start --address NODE0:6379")
    assert run.endswith("ray.address=NODE0:6379")
    assert not plan.faults
    # Both fit on one node, and the other has nothing to do.
    assert "8 devices are used by nothing" in render_plan(plan)


def test_the_commands_are_those_of_the_run_that_was_planned() -> None:
    keys = ("engine.sync=broadcast", "policy.data_parallel=2", "engine.replicas=2", "stages=[rl]")
    plan = _plan("qwen3-4b-npu-a2", *keys, overrides=keys, nodes=2, devices=8)
    run = plan.ray_commands[-1]
    assert run.startswith("node 0: uv run apps/trainer run --config configs/qwen3-4b-npu-a2.yaml ")
    assert "engine.sync=broadcast policy.data_parallel=2 engine.replicas=2 'stages=[rl]'" in run
    assert run.endswith("nodes=2 ray.address=NODE0:6379")
    assert "used by nothing" not in render_plan(plan)
    assert [engine.url for engine in plan.engines] == ["http://NODE1:8100", "http://NODE1:8101"]
    assert "--host NODE1 --port 8100" in " ".join(plan.engines[0].command)


def test_an_engine_is_started_on_the_weights_that_the_run_begins_with() -> None:
    def model(*overrides: str) -> str:
        command = _plan("qwen3-4b-npu-a2", *overrides).engines[0].command
        return command[command.index("--model") + 1]

    assert model() == "models/Qwen3-4B-Instruct-2507"
    assert model("rl.start_from=models/sft") == "models/sft"
    config = load_config(ROOT / "configs" / "quickstart.yaml", ["engine=vllm"])
    command = make_plan(config).engines[0].command
    assert command[command.index("--model") + 1] == "RUN/model"
    assert command[command.index("--port") + 1] == "FREE"


def test_the_engines_own_variables_are_in_the_plan() -> None:
    plan = _plan("qwen3-4b-npu-a2", "engine.env={HCCL_CONNECT_TIMEOUT: '60', MINE: x}")
    shown = {setting.name: setting.value for setting in plan.environment["engine"]}
    assert (shown["HCCL_CONNECT_TIMEOUT"], shown["MINE"]) == ("60", "x")


def test_a_batch_need_not_divide_by_ranks_and_minibatches() -> None:
    """Rows are shared out by their tokens, and flat groups leave odd numbers anyway."""
    keys = ["rl.minibatches=3", "rl.prompts_per_step=31", "rl.samples_per_prompt=7"]
    assert _plan("qwen3-4b-npu-a3", *keys).faults == ()


def test_an_engine_may_have_more_ranks_than_the_model_has_key_value_heads(tmp_path: Path) -> None:
    sizes = {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    keys = [f"model.path={tmp_path}", "policy.tensor_parallel=2"]
    assert _plan("qwen3-4b-npu-a2", *keys, "engine.tensor_parallel=4").faults == ()
    (fault,) = _plan("qwen3-4b-npu-a2", *keys, "policy.tensor_parallel=4").faults
    assert "policy.tensor_parallel 4 does not divide the model's 2 key/value heads" in fault


def test_a_node_may_have_devices_that_no_group_needs() -> None:
    """Seven of eight GPUs work: on one node no group can cross to another."""
    plan = _plan("qwen3-4b-cuda", devices=7)
    assert plan.faults == ()
    assert any("3 devices are used by nothing" in note for note in plan.notes)


def test_hardware_that_is_not_described_is_not_said_to_fit() -> None:
    plan = _plan("qwen3-4b-npu-a2", "hardware={}")
    assert any("nothing says whether it fits" in note for note in plan.notes)


def test_logits_are_counted_as_the_policy_takes_them() -> None:
    # The plan must not import Megatron to know it.
    policy = ROOT / "apps/trainer/src/retool_trainer/policy/_model.py"
    assert "_LOGITS_AT_ONCE = 2**28\n" in policy.read_text(encoding="utf-8")
    assert LOGITS_AT_ONCE == 2**28

    def logits_gib(*overrides: str) -> float:
        items = _plan("qwen3-4b-npu-a2", *overrides).memory[0].items
        return next(item.gib for item in items if item.name == "logits")

    # However many tokens: 2**28 logits at once, 22 bytes each.
    assert logits_gib() == pytest.approx(5.5, abs=0.01)
    assert logits_gib("policy.tokens_per_microbatch=65536") == pytest.approx(5.5, abs=0.01)
    assert logits_gib("policy.tokens_per_microbatch=1024") < 1


def test_weights_that_go_through_a_shared_folder_take_no_memory_of_the_host() -> None:
    def host(*overrides: str) -> set[str]:
        (found,) = [
            estimate
            for estimate in _plan("qwen3-4b-npu-a2", *overrides).memory
            if estimate.where == "host of node 0"
        ]
        return {item.name for item in found.items}

    assert "weight sync" in host()
    assert "weight sync" not in host("engine.sync_dir=/nfs/sync")
    assert "weight sync" not in host("engine.sync=broadcast")


def test_the_engines_follow_the_policy_over_the_nodes() -> None:
    config = load_config(ROOT / "configs" / "qwen3-4b-npu-a3.yaml")
    taken = [seat for seat in seats(config, nodes=2, devices_per_node=8) if seat.stage == "rl"]
    assert {seat.node for seat in taken if seat.who.startswith("policy")} == {0}
    assert {seat.node for seat in taken if seat.who.startswith("engine")} == {1}
    assert len({(seat.node, seat.device) for seat in taken}) == 16


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("qwen3-4b-npu-a2", ["policy.tensor_parallel=3"], "does not divide the model's 32 attent"),
        ("qwen3-4b-npu-a2", ["engine.tensor_parallel=12"], "model's 8 key/value heads"),
        ("qwen3-4b-npu-a2", ["devices_per_node=4"], "needs 8 devices (policy 4, engines 4)"),
        ("qwen3-4b-npu-a2", ["policy.data_parallel=4"], "needs 20 devices"),
        (
            "qwen3-4b-npu-a2",
            ["policy.pipeline_parallel=5"],
            "does not divide the model's 36 layers",
        ),
        ("qwen3-4b-npu-a3", ["ports.engine=29499"], "ports.policy and ports.engine both use port"),
        ("qwen3-4b-npu-a3", ["ports.hccl_device=60010-60020"], "both use port 60010"),
        ("qwen3-4b-npu-a3", ["ports.hccl_device=16000-17000"], "contains 16666"),
        ("qwen3-4b-npu-a3", ["ports.ray=70000"], "is no range of ports"),
        ("qwen3-4b-npu-a2", ["rl.minibatches=257"], "256 samples a step are too few for 257"),
        ("qwen3-4b-npu-a2", ["engine=embedded"], "embedded generates on the CPU"),
        ("qwen3-4b-npu-a2", ["engine.max_model_len=8192"], "exceeds engine.max_model_len 8192"),
        ("qwen3-4b-npu-a2", ["nodes=2"], "needs engine.sync_dir"),
        ("qwen3-4b-npu-a2", ["hardware.host_memory_gib=64"], "host of node 0 needs"),
        ("qwen3-4b-npu-a2", ["hardware.disk_gib=100"], "disk needs"),
        ("qwen3-4b-npu-a2", ["engine.memory_fraction=0.05"], "less than one sequence"),
        ("qwen3-4b-npu-a2", ["model.path=models/other"], "is not a known model"),
        (
            "qwen3-4b-npu-a2",
            ["policy.tokens_per_microbatch=65536", "policy.recompute=false"],
            "lower policy.tokens_per_microbatch or set policy.recompute: true",
        ),
        ("qwen3-4b-cuda", ["engine.memory_fraction=0.9"], "lower engine.memory_fraction"),
        ("qwen3-4b-cuda", ["engine.sync=broadcast"], "two ranks of one nccl group"),
        ("qwen3-4b-cuda", ["engine.replicas=3"], "3 colocated engines of 2 devices need 6"),
        ("qwen3-4b-cuda", ["rl.schedule.kind=one_step_off"], "nothing can overlap"),
        ("qwen3-4b-cuda", ["devices_per_node=5", "nodes=2"], "would cross nodes"),
    ],
)
def test_a_fault_is_named_with_its_cure(name: str, overrides: list[str], expected: str) -> None:
    faults = _plan(name, *overrides).faults
    assert any(expected in fault for fault in faults), faults


def test_expandable_segments_inherited_by_a_sleeping_engine_are_refused() -> None:
    plan = _plan(
        "qwen3-4b-npu-a2",
        "engine.colocated=true",
        environment={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
    )
    assert any("sleep mode's memory pool breaks" in fault for fault in plan.faults)


def test_skipping_sft_is_one_key() -> None:
    plan = _plan("qwen3-4b-npu-a2", "rl.start_from=models/qwen3-4b-sft")
    assert [stage.name for stage in plan.stages] == ["rl"]
    assert plan.faults == ()


def test_sizes_are_read_from_the_folder_once_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    (folder / "config.json").write_text(json.dumps(sizes))
    plan = _plan("qwen3-4b-npu-a2", f"model.path={folder}")
    assert plan.model is not None
    # 2 x (4 projections of 64 x 64 + 3 of 64 x 128) + embedding and head of 1000 x 64
    assert plan.model.num_parameters == 2 * (4 * 64 * 64 + 3 * 64 * 128) + 2 * 64_000


def test_qwen3_4b_has_the_parameters_that_its_card_states() -> None:
    size = _plan("qwen3-4b-npu-a2").model
    assert size is not None
    assert size.num_parameters == pytest.approx(4.02e9, rel=0.005)


def test_the_command_exits_1_on_a_fault_and_prints_json() -> None:
    command = [sys.executable, str(ROOT / "apps" / "trainer"), "plan", "--json"]
    config = ["--config", str(ROOT / "configs" / "qwen3-4b-npu-a2.yaml")]
    good = subprocess.run([*command, *config], capture_output=True, timeout=120, check=False)
    assert good.returncode == 0
    plan = json.loads(good.stdout)
    assert plan["engines"][0]["command"][0] == "python"
    assert plan["memory"][0]["items"][0]["name"] == "weights"
    assert plan["memory"][0]["total_gib"] == sum(i["gib"] for i in plan["memory"][0]["items"])
    assert plan["memory"][0]["fits"] is True
    assert plan["times"][0]["total_s"] == sum(plan["times"][0]["parts_s"].values())
    bad = subprocess.run(
        [*command, *config, "--devices", "4"], capture_output=True, timeout=120, check=False
    )
    assert bad.returncode == 1
    assert json.loads(bad.stdout)["faults"]


@pytest.mark.parametrize("wrong", ["0", "-1", "two", ""])
@pytest.mark.parametrize("option", ["--nodes", "--devices"])
def test_a_number_that_counts_nothing_is_refused(
    option: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--config", "run.yaml", f"{option}={wrong}"])
    assert "is no number of 1 or more" in capsys.readouterr().err
