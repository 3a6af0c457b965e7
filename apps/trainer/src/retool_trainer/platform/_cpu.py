"""The CPU: gloo, one process per rank, vLLM from an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from retool_trainer.config import EngineConfig, PolicyConfig, RunConfig

from ._base import Platform, Probe, Role, Setting


class CpuPlatform(Platform):
    """Cores. Megatron's adaptation to them is part of `retool_trainer.policy`."""

    name = "cpu"
    device_type = "cpu"
    collective_backend = "gloo"
    ray_resource = "CPU"
    visible_devices_variable = None
    vendor_modules = ()
    packs_sequences = False  # Megatron's own attention refuses packed sequences
    vllm_release = (0, 32)

    def probe(self, root: Path = Path("/")) -> Probe:
        """The cores that this process may use."""
        del root
        cores = len(os.sched_getaffinity(0))
        return Probe(num_devices=cores, detail=f"{cores} cores in this process's affinity mask")

    def device(self, local_index: int = 0) -> str:
        """Always `cpu`."""
        del local_index
        return "cpu"

    def use_device(self, local_index: int = 0) -> None:
        """Nothing to choose."""
        del local_index

    def adapt_megatron(self, policy: PolicyConfig) -> None:
        """Megatron says CUDA; on this platform it gets the host."""
        from retool_trainer.policy._megatron_on_cpu import adapt_megatron_to_cpu

        del policy
        adapt_megatron_to_cpu()

    def environment(self, role: Role, config: RunConfig) -> tuple[Setting, ...]:
        """Threads that yield; vLLM's CPU knobs for an engine."""
        if role != "engine":
            return (
                Setting(
                    name="OMP_WAIT_POLICY",
                    value="PASSIVE",
                    reason="policy, engine and tools share the cores: a torch thread that spins at "
                    "a barrier takes the core from what it waits for (measured: 4 ms became 90)",
                ),
            )
        return (
            *self._engine_settings(),
            Setting(
                name="VLLM_CPU_KVCACHE_SPACE",
                value=str(_kv_cache_gib(config.engine)),
                reason="GiB of host memory for the KV cache; the default takes what the run needs",
            ),
            Setting(
                name="VLLM_CPU_OMP_THREADS_BIND",
                value="nobind",
                reason="binding to cores fights with the policy's ranks for the same ones",
            ),
        )

    def ray_options(self, devices: float = 1) -> dict[str, Any]:
        """Cores are Ray's own resource."""
        return {"num_cpus": devices}

    def ray_bundle(self, devices: int = 1) -> dict[str, float]:
        """Only cores."""
        return {"CPU": float(devices)}

    def ray_start_arguments(self, devices: int) -> list[str]:
        """Cores."""
        return ["--num-cpus", str(devices), "--num-gpus", "0"]

    def vllm_arguments(self, engine: EngineConfig) -> list[str]:
        """No graphs: compiling costs minutes and the CPU gains nothing at these sizes."""
        del engine
        return ["--enforce-eager"]


def _kv_cache_gib(engine: EngineConfig) -> int:
    # 1 GiB holds 32 sequences of 512 tokens of a laptop model many times over; a longer context
    # gets one more for each 64 Ki tokens that may be in flight.
    return 1 + engine.max_concurrency * engine.max_model_len // (64 * 1024 * 4)
