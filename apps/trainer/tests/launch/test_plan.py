"""The plan of every shipped config is pinned in golden/, and every fault is named with its cure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retool_trainer.config import load_config
from retool_trainer.launch import Plan, make_plan, render_plan, seats

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
        ("qwen3-4b-npu-a2", ["engine.tensor_parallel=16"], "model's 8 key/value heads"),
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
        ("qwen3-4b-npu-a2", ["rl.minibatches=5"], "do not divide into 5 minibatch(es)"),
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
        ("qwen3-4b-cuda", ["devices_per_node=5"], "would cross nodes"),
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
    bad = subprocess.run(
        [*command, *config, "--devices", "4"], capture_output=True, timeout=120, check=False
    )
    assert bad.returncode == 1
    assert json.loads(bad.stdout)["faults"]
