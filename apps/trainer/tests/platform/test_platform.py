"""One small object per platform; none of them imports the vendor's stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retool_trainer.config import RunConfig
from retool_trainer.platform import PlatformError, VllmLaunch, get_platform

PLATFORMS = ["cpu", "cuda", "npu"]


def _config(platform: str = "npu", **engine: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": "m"},
            "stages": ["rl"],
            "rl": {"problems": "p"},
            "platform": platform,
            "devices_per_node": 8,
            "engine": {"kind": "vllm", **engine},
        }
    )


@pytest.mark.parametrize("name", PLATFORMS)
def test_looking_at_a_platform_imports_no_heavy_module(name: str) -> None:
    program = (
        "import sys; from retool_trainer.platform import get_platform; "
        f"p = get_platform({name!r}); p.probe(); p.ray_options(); "
        "print([m for m in ('torch', 'torch_npu', 'megatron', 'ray', 'vllm') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def test_an_unknown_platform_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PlatformError, match="'tpu'; known are cpu, cuda, npu"):
        get_platform("tpu")


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("npu", ["davinci0", "davinci7", "davinci15", "davinci_manager"], 3),
        ("npu", ["davinci_manager"], 0),
        ("cuda", ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
    ],
)
def test_a_probe_counts_device_nodes_only(
    tmp_path: Path, name: str, nodes: list[str], expected: int
) -> None:
    (tmp_path / "dev").mkdir()
    for node in nodes:
        (tmp_path / "dev" / node).touch()
    assert get_platform(name).probe(tmp_path).num_devices == expected


def test_a_missing_vendor_stack_names_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)  # another test's import
    with pytest.raises(PlatformError, match=r"torch_npu.*docker/npu\.Dockerfile"):
        get_platform("npu").import_vendor()


@pytest.mark.parametrize(
    ("name", "device", "backend", "resource", "variable"),
    [
        ("cpu", "cpu", "gloo", "CPU", None),
        ("cuda", "cuda:0", "nccl", "GPU", "CUDA_VISIBLE_DEVICES"),
        ("npu", "npu:0", "hccl", "NPU", "ASCEND_RT_VISIBLE_DEVICES"),
    ],
)
def test_names(name: str, device: str, backend: str, resource: str, variable: str | None) -> None:
    platform = get_platform(name)
    assert platform.device(0) == device
    assert platform.collective_backend == backend
    assert platform.ray_resource == resource
    assert platform.visible_devices_variable == variable


@pytest.mark.parametrize("name", PLATFORMS)
@pytest.mark.parametrize("role", ["driver", "policy", "engine"])
def test_every_variable_has_a_reason_and_appears_once(name: str, role: Any) -> None:
    settings = get_platform(name).environment(role, _config(name))
    assert all(len(setting.reason) > 10 for setting in settings)
    assert len({setting.name for setting in settings}) == len(settings)


def test_expandable_segments_are_set_only_where_no_engine_sleeps() -> None:
    names = {
        colocated: {
            setting.name
            for setting in get_platform("npu").environment("policy", _config(colocated=colocated))
        }
        for colocated in (False, True)
    }
    assert "PYTORCH_NPU_ALLOC_CONF" in names[False]
    assert "PYTORCH_NPU_ALLOC_CONF" not in names[True]


@pytest.mark.parametrize(
    ("engine", "environment", "expected"),
    [
        (
            {"colocated": True},
            {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
            "sleep mode's memory pool breaks",
        ),
        ({"env": {"VLLM_ASCEND_ENABLE_NZ": "1"}}, {}, "weight updates would be ignored"),
        ({"colocated": True, "sync": "broadcast"}, {}, "two ranks of one hccl group"),
        ({}, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, "shows 2 devices"),
    ],
)
def test_npu_contradictions_are_refused(
    engine: dict[str, Any], environment: dict[str, str], expected: str
) -> None:
    (fault,) = get_platform("npu").faults(_config(**engine), environment)
    assert expected in fault


@pytest.mark.parametrize(
    ("name", "variable"),
    [("cuda", "CUDA_VISIBLE_DEVICES"), ("npu", "ASCEND_RT_VISIBLE_DEVICES")],
)
def test_devices_that_ray_cannot_give_out_are_refused(name: str, variable: str) -> None:
    platform, config = get_platform(name), _config(name)
    noset = f"RAY_EXPERIMENTAL_NOSET_{variable}"
    for environment, expected in (
        ({variable: "0,1"}, "shows 2 devices"),
        ({variable: ""}, "shows 0 devices"),
        ({noset: "1"}, f"all would work on {name}:0"),
    ):
        (fault,) = platform.faults(config, environment)
        assert expected in fault
    for environment in ({variable: "0,1,2,3,4,5,6,7"}, {noset: "0"}):
        assert platform.faults(config, environment) == []


def test_a_sound_npu_config_has_no_fault() -> None:
    assert get_platform("npu").faults(_config(), {"PATH": "/bin"}) == []


def test_cuda_refuses_expandable_segments_with_sleep_mode() -> None:
    config = _config("cuda", colocated=True)
    (fault,) = get_platform("cuda").faults(
        config, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )
    assert "sleep mode" in fault


@pytest.mark.parametrize(("name", "scale_out"), [("cpu", True), ("cuda", True), ("npu", False)])
def test_the_vllm_command_fits_the_platforms_release(name: str, scale_out: bool) -> None:
    config = _config(name, python="/env/bin/python", args=["--seed", "9"], tensor_parallel=4)
    command = get_platform(name).vllm_command(config.engine, VllmLaunch(model="m", port=8000))
    assert command[:3] == ["/env/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert ("--enable-scale-out" in command) is scale_out  # the flag came with 0.32
    assert command[command.index("--tensor-parallel-size") + 1] == "4"
    assert command[-2:] == ["--seed", "9"]
    assert "--weight-transfer-config" not in command


@pytest.mark.parametrize("name", PLATFORMS)
def test_broadcast_adds_our_engine_and_the_folder_it_is_found_in(name: str) -> None:
    config = _config(name, sync="broadcast")
    platform = get_platform(name)
    command = platform.vllm_command(config.engine, VllmLaunch(model="m", port=8000))
    at = command.index("--weight-transfer-config")
    assert command[at + 1] == '{"backend": "retool"}'
    environment = platform.process_environment("engine", config, {"PYTHONPATH": "/cann/python"})
    ours, theirs = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(ours) / "retool_engine_weights.py").is_file()
    assert theirs == "/cann/python"


def test_the_engines_own_variables_win() -> None:
    config = _config(env={"HCCL_CONNECT_TIMEOUT": "60"})
    environment = get_platform("npu").process_environment("engine", config, {"A": "b"})
    assert environment["HCCL_CONNECT_TIMEOUT"] == "60"
    assert environment["A"] == "b"


def test_ray_start_names_npus_and_no_gpus() -> None:
    assert get_platform("npu").ray_start_arguments(8) == [
        "--num-gpus",
        "0",
        "--resources",
        '{"NPU": 8}',
    ]
