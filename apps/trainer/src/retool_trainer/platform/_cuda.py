"""NVIDIA GPUs: nccl, fused attention through torch, vLLM from the `cuda` extra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retool_trainer.config import RunConfig

from ._base import Platform, Probe, Role, Setting


class CudaPlatform(Platform):
    """GPUs. Written against torch 2.13 and vLLM 0.32; not run on a GPU yet."""

    name = "cuda"
    device_type = "cuda"
    collective_backend = "nccl"
    ray_resource = "GPU"
    visible_devices_variable = "CUDA_VISIBLE_DEVICES"
    vendor_modules = ()
    packs_sequences = True
    vllm_release = (0, 32)

    def probe(self, root: Path = Path("/")) -> Probe:
        """Count `/dev/nvidia0`, `/dev/nvidia1`, ...; the driver makes one per GPU."""
        folder = root / "dev"
        nodes = [
            path.name for path in folder.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)
        ]
        return Probe(num_devices=len(nodes), detail=f"{len(nodes)} device nodes /dev/nvidia<N>")

    def device(self, local_index: int = 0) -> str:
        """`cuda:N` among the visible ones."""
        return f"cuda:{local_index}"

    def use_device(self, local_index: int = 0) -> None:
        """`torch.cuda.set_device`."""
        import torch

        torch.cuda.set_device(local_index)

    def environment(self, role: Role, config: RunConfig) -> tuple[Setting, ...]:
        """Megatron's stream order in the policy; vLLM's development calls in the engine."""
        if role == "policy":
            return (
                Setting(
                    name="CUDA_DEVICE_MAX_CONNECTIONS",
                    value="1",
                    reason="Megatron overlaps tensor-parallel communication by launch order",
                ),
                Setting(
                    name="PYTORCH_CUDA_ALLOC_CONF",
                    value="expandable_segments:True",
                    reason="row lengths change every step; fixed segments fragment",
                ),
            )
        if role == "engine":
            # expandable_segments is left out: vLLM's sleep mode owns the memory pool.
            return self._engine_settings()
        return ()

    def faults(self, config: RunConfig, environment: Mapping[str, str]) -> list[str]:
        """Refuse expandable segments in engines that sleep."""
        inherited = environment.get("PYTORCH_CUDA_ALLOC_CONF", "") + config.engine.env.get(
            "PYTORCH_CUDA_ALLOC_CONF", ""
        )
        if config.engine.colocated and "expandable_segments:True" in inherited:
            fault = (
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True with engine.colocated: the "
                "engine's sleep mode cannot free such memory; unset it for the engine"
            )
            return [*super().faults(config, environment), fault]
        return super().faults(config, environment)

    def ray_options(self, devices: float = 1) -> dict[str, Any]:
        """GPUs are Ray's own resource."""
        return {"num_cpus": 0, "num_gpus": devices}

    def ray_init_arguments(self, devices: int | None) -> dict[str, Any]:
        """GPUs."""
        return {} if devices is None else {"num_gpus": devices}

    def ray_start_arguments(self, devices: int) -> list[str]:
        """GPUs."""
        return ["--num-gpus", str(devices)]

    def core_attention(self) -> type | None:
        """Attention through torch's fused kernels, without a score matrix in memory."""
        from ._attention import SdpaAttention

        return SdpaAttention
