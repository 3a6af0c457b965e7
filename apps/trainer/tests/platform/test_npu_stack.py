"""What an NPU process does, proven on a fake vendor stack that records it (no NPU was at hand)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retool_trainer import weights
from retool_trainer.config import RunConfig
from retool_trainer.platform import get_platform

HERE = Path(__file__).parent
ENGINE_SIDE = Path(weights.__file__).parent / "engine_side"


def _run_rank(mode: str, folder: Path) -> list[dict[str, Any]]:
    """Run npu_rank.py as a policy process would start: in the platform's environment."""
    config = RunConfig.model_validate(
        {"model": {"path": "m"}, "stages": ["rl"], "rl": {"problems": "p"}, "platform": "npu"}
    )
    environment = get_platform("npu").process_environment("policy", config, os.environ)
    log = folder / "log.jsonl"
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(HERE / "fake_npu"), str(ENGINE_SIDE)]),
        "FAKE_NPU_LOG": str(log),
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, str(HERE / "npu_rank.py"), mode],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return _run_rank("right-order", tmp_path_factory.mktemp("npu"))


def _only(log: list[dict[str, Any]], event: str) -> dict[str, Any]:
    (entry,) = [entry for entry in log if entry["event"] == event]
    return entry


def test_imports_come_in_the_order_torch_npu_mindspeed_megatron(log: list[dict[str, Any]]) -> None:
    first, second, third = log[:3]
    assert (first["event"], first["megatron"], first["mindspeed"]) == (
        "import torch_npu",
        False,
        False,
    )
    assert (second["event"], second["megatron"], second["torch_npu"]) == (
        "import mindspeed.megatron_adaptor",
        False,
        True,
    )
    assert third == {"event": "set_device", "index": 0}


def test_the_environment_is_set_before_torch_npu_is_imported(log: list[dict[str, Any]]) -> None:
    seen = log[0]["environment"]
    assert seen["HCCL_CONNECT_TIMEOUT"] == "7200"
    assert seen["HCCL_DETERMINISTIC"] == "true"
    assert seen["HCCL_HOST_SOCKET_PORT_RANGE"] == "60000-60050"
    assert seen["HCCL_NPU_SOCKET_PORT_RANGE"] == "61000-61050"
    assert seen["TASK_QUEUE_ENABLE"] == "1"
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert seen["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"


def test_mindspeed_is_repatched_before_parallel_state_exists(log: list[dict[str, Any]]) -> None:
    events = [entry["event"] for entry in log]
    repatch = _only(log, "repatch")
    assert repatch["parallel_state"] is False
    assert repatch["arguments"]["use_flash_attn"] is True
    assert repatch["arguments"]["context_parallel_size"] == 1
    assert events.index("repatch") < events.index("hccl group") < events.index("parallel state")


def test_a_repatch_after_parallel_state_is_refused(log: list[dict[str, Any]]) -> None:
    assert "after initialize_model_parallel" in _only(log, "refused")["message"]


def test_npu_attention_is_sbh_unpacked_and_tnd_packed_and_both_equal_softmax_attention(
    log: list[dict[str, Any]],
) -> None:
    unpacked, packed = [entry for entry in log if entry["event"] == "npu_fusion_attention"]
    assert [unpacked[key] for key in ("layout", "query", "key")] == ["SBH", [6, 2, 32], [6, 2, 16]]
    assert [packed[key] for key in ("layout", "query", "ends")] == ["TND", [10, 4, 8], [6, 10]]
    for call in (unpacked, packed):
        assert (call["heads"], call["sparse_mode"], call["keep_prob"]) == (4, 2, 1.0)
        assert call["mask"] == [2048, 2048]
        assert call["mask_hides_the_future"]
    # npu_rank.py compares the numbers; reaching these events means that they agreed.
    for name in ("npu", "cuda"):
        (entry,) = [e for e in log if e["event"] == "attention" and e["name"] == name]
        assert entry["shapes"] == [[6, 2, 32], [10, 1, 32]]


def test_weights_travel_through_an_hccl_group_of_sender_and_engine(
    log: list[dict[str, Any]],
) -> None:
    groups = [entry for entry in log if entry["event"] == "hccl group" and entry["size"] == 2]
    assert sorted(group["rank"] for group in groups) == [0, 1]
    assert {group["timeout_s"] for group in groups} == {60.0}
    assert _only(log, "handshake")["backend"] == "hccl"
    lifecycle = [entry["event"] for entry in log if entry["event"].endswith(("update", "weights"))]
    assert lifecycle == ["start_weight_update", "update_weights", "finish_weight_update"]
    assert _only(log, "held")["w"] == [0.0, 1.0, 2.0, 3.0]


def test_importing_megatron_first_is_refused_by_name(tmp_path: Path) -> None:
    (refusal,) = _run_rank("wrong-order", tmp_path)
    assert "megatron was imported before 'torch_npu'" in refusal["message"]


def test_the_actor_of_a_rank_imports_the_vendors_stack_before_megatron(tmp_path: Path) -> None:
    log = _run_rank("actor", tmp_path)
    assert [entry["event"] for entry in log[:2]] == [
        "import torch_npu",
        "import mindspeed.megatron_adaptor",
    ]
    assert [entry["megatron"] for entry in log[:2]] == [False, False]
    # Stopped by the missing model, not by the order of imports.
    assert _only(log, "stopped")["kind"] == "CheckpointError"
