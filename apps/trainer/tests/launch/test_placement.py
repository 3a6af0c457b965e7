"""A local Ray that is told it has 16 NPUs gives every process its device, up to touching it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from retool_trainer.config import RunConfig, load_config
from retool_trainer.launch import PlacementError, place
from retool_trainer.platform import get_platform

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def ray_with_16_npus() -> Iterator[None]:
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        **get_platform("npu").ray_init_arguments(16),
    )
    yield
    ray.shutdown()


class Process:
    """Looks at itself as a rank or an engine would, then reaches for the device."""

    def look(self) -> dict[str, Any]:
        from retool_trainer.platform import PlatformError, get_platform

        platform = get_platform("npu")
        try:
            platform.import_vendor()
            reached = "a device"
        except PlatformError as error:
            reached = str(error)
        return {
            "visible": os.environ.get("ASCEND_RT_VISIBLE_DEVICES", ""),
            "ids": ray.get_runtime_context().get_accelerator_ids().get("NPU", []),
            "reached": reached,
            "hccl": os.environ.get("HCCL_CONNECT_TIMEOUT"),
        }


def _start(config: RunConfig, options: tuple[dict[str, Any], ...], role: Any) -> list[Any]:
    settings = get_platform("npu").environment(role, config)
    environment = {s.name: s.value for s in settings if s.name != "PYTHONPATH"}
    actors: list[Any] = []
    for option in options:
        variables = environment | option.get("runtime_env", {}).get("env_vars", {})
        actor = ray.remote(Process).options(**option | {"runtime_env": {"env_vars": variables}})
        actors.append(actor.remote())
    return actors


def _look(actors: list[Any]) -> list[dict[str, Any]]:
    return ray.get([actor.look.remote() for actor in actors], timeout=240)


def test_apart_every_rank_has_one_device_and_every_engine_its_own_group(
    ray_with_16_npus: None,
) -> None:
    config = load_config(ROOT / "configs" / "qwen3-4b-npu-a3.yaml")
    with place(config) as placement:
        ranks = _start(config, placement.policy, "policy")
        engines = _start(config, placement.engines, "engine")
        seen_ranks, seen_engines = _look(ranks), _look(engines)
        devices = [process["visible"] for process in seen_ranks + seen_engines]
        assert [len(text.split(",")) for text in devices] == [1] * 8 + [4] * 2
        assert sorted(int(i) for text in devices for i in text.split(",")) == list(range(16))
        for process in seen_ranks + seen_engines:
            assert process["visible"] == ",".join(process["ids"])
            assert "needs the module 'torch_npu'" in process["reached"]
            assert process["hccl"] == "7200"
        # The first tensor-parallel group has the devices of the first bundle.
        assert {process["visible"] for process in seen_ranks[:4]} == set(placement.devices[0][1])
        for actor in ranks + engines:
            ray.kill(actor)
    _all_free_again()


def test_colocated_engines_see_the_devices_that_the_ranks_hold(ray_with_16_npus: None) -> None:
    config = load_config(
        ROOT / "configs" / "qwen3-4b-npu-a2.yaml",
        ["engine.colocated=true", "policy.tensor_parallel=2", "engine.tensor_parallel=4"],
    ).model_copy()
    config = config.model_copy(
        update={"policy": config.policy.model_copy(update={"data_parallel": 2})}
    )
    with place(config) as placement:
        ranks = _start(config, placement.policy, "policy")
        engines = _start(config, placement.engines, "engine")
        held = [process["visible"] for process in _look(ranks)]
        (engine,) = _look(engines)
        assert engine["ids"] == []
        assert sorted(engine["visible"].split(",")) == sorted(held)
        assert len(set(held)) == 4
        for actor in ranks + engines:
            ray.kill(actor)
    _all_free_again()


def test_too_few_devices_are_an_error_at_once_and_not_a_wait(ray_with_16_npus: None) -> None:
    config = load_config(ROOT / "configs" / "qwen3-4b-npu-a3.yaml", ["policy.data_parallel=4"])
    with (
        pytest.raises(PlacementError, match="needs 24 NPUs, Ray has 16") as refusal,
        place(config),
    ):
        pass
    assert """--resources '{"NPU": 24}'""" in str(refusal.value)  # can be pasted into a shell


def test_taken_devices_are_an_error_after_the_deadline(ray_with_16_npus: None) -> None:
    config = load_config(ROOT / "configs" / "qwen3-4b-npu-a3.yaml")
    with (
        place(config),
        pytest.raises(PlacementError, match="did not free 16 NPUs within 1 s"),
        place(config, timeout_s=1.0),
    ):
        pass
    _all_free_again()


def test_on_cpu_nothing_is_reserved() -> None:
    config = load_config(ROOT / "configs" / "quickstart.yaml", ["policy.data_parallel=2"])
    with place(config) as placement:
        assert placement.policy == ({"num_cpus": 1},) * 2
        assert placement.engines == ()


def _all_free_again() -> None:
    import time

    deadline_s = time.monotonic() + 60
    while ray.available_resources().get("NPU", 0) < 16:
        assert time.monotonic() < deadline_s, ray.available_resources()
        time.sleep(0.2)
