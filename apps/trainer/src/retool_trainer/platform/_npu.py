"""Ascend NPUs: torch_npu, MindSpeed over Megatron, hccl, vllm-ascend."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retool_trainer.config import PolicyConfig, RunConfig

from ._base import Platform, PlatformError, Probe, Role, Setting

_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"


class NpuPlatform(Platform):
    """Atlas A2 and A3. The launch is tested; it has not run on the hardware yet."""

    name = "npu"
    device_type = "npu"
    collective_backend = "hccl"
    ray_resource = "NPU"
    visible_devices_variable = "ASCEND_RT_VISIBLE_DEVICES"
    # MindSpeed core_r0.16.0 patches Megatron when its adaptor is imported, so it has to come after
    # torch_npu (which registers the device) and before Megatron (which it patches).
    vendor_modules = ("torch_npu", "mindspeed.megatron_adaptor")
    packs_sequences = True
    vllm_release = (0, 23)

    def probe(self, root: Path = Path("/")) -> Probe:
        """Count `/dev/davinci0`, ...: torch_npu cannot even be imported where there is none."""
        folder = root / "dev"
        nodes = [
            path.name for path in folder.glob("davinci*") if re.fullmatch(r"davinci\d+", path.name)
        ]
        return Probe(num_devices=len(nodes), detail=f"{len(nodes)} device nodes /dev/davinci<N>")

    def device(self, local_index: int = 0) -> str:
        """`npu:N` among the visible ones."""
        return f"npu:{local_index}"

    def use_device(self, local_index: int = 0) -> None:
        """`torch.npu.set_device`; without it every process works on npu:0."""
        import torch

        npu: Any = getattr(torch, "npu", None)
        if npu is None:
            raise PlatformError("torch has no `npu`: call import_vendor() before use_device()")
        npu.set_device(local_index)

    def environment(self, role: Role, config: RunConfig) -> tuple[Setting, ...]:
        """The variables of facts/npu.md's incidents, by the process that needs them."""
        ports = config.ports
        common = (
            Setting(
                name="HCCL_CONNECT_TIMEOUT",
                value="7200",
                reason="s; the first collective waits for the slowest rank to load and compile",
            ),
            Setting(
                name="HCCL_DETERMINISTIC",
                value="true",
                reason="sums in a fixed order, so that a resumed run repeats its numbers",
            ),
            Setting(
                name="HCCL_HOST_SOCKET_PORT_RANGE",
                value=ports.hccl_host,
                reason="a range, not the one default port that two services would share",
            ),
            Setting(
                name="HCCL_NPU_SOCKET_PORT_RANGE",
                value=ports.hccl_device,
                reason="likewise on the device side (16666 is the shared default)",
            ),
            Setting(
                name="TASK_QUEUE_ENABLE",
                value="1",
                reason="kernels are queued ahead of the host thread; 2 is not safe with HCCL waits",
            ),
        )
        if role == "policy":
            allocator = (
                ()
                if config.engine.colocated
                else (
                    Setting(
                        name=_ALLOCATOR,
                        value="expandable_segments:True",
                        reason="row lengths change every step; allowed as no engine sleeps here",
                    ),
                )
            )
            return (
                *common,
                Setting(
                    name="CUDA_DEVICE_MAX_CONNECTIONS",
                    value="1",
                    reason="Megatron asserts it with tensor parallelism, whatever the device",
                ),
                *allocator,
            )
        if role == "engine":
            return (
                *self._engine_settings(),
                *common,
                Setting(
                    name="VLLM_ASCEND_ENABLE_NZ",
                    value="0",
                    reason="NZ keeps a transposed copy that weight updates do not reach "
                    "(vllm-ascend#5747: garbage output)",
                ),
                Setting(
                    name="VLLM_USE_AOT_COMPILE",
                    value="0",
                    reason="a compiled artefact of other weights or sizes must not be picked up",
                ),
            )
        return ()

    def faults(self, config: RunConfig, environment: Mapping[str, str]) -> list[str]:
        """What is known to break on NPU, and does so late or silently."""
        found = super().faults(config, environment)
        engine = config.engine
        seen = {**environment, **engine.env}
        if engine.colocated and "expandable_segments:True" in seen.get(_ALLOCATOR, ""):
            found.append(
                f"{_ALLOCATOR}=expandable_segments:True with engine.colocated: sleep mode's memory "
                "pool breaks (vllm-ascend#9242); unset it, or set engine.colocated: false"
            )
        if seen.get("VLLM_ASCEND_ENABLE_NZ", "0") != "0":
            found.append(
                f"VLLM_ASCEND_ENABLE_NZ={seen['VLLM_ASCEND_ENABLE_NZ']}: weight updates would be "
                "ignored silently (vllm-ascend#5747); set it to 0"
            )
        return found

    def ray_init_arguments(self, devices: int | None) -> dict[str, Any]:
        """The count under the name NPU."""
        return {} if devices is None else {"num_gpus": 0, "resources": {"NPU": devices}}

    def ray_start_arguments(self, devices: int) -> list[str]:
        """The count under the name NPU, and no GPUs: Ray would register some as GPU."""
        return ["--num-gpus", "0", "--resources", f'{{"NPU": {devices}}}']

    def adapt_megatron(self, policy: PolicyConfig) -> None:
        """Re-apply MindSpeed's patches with our settings; parallel state must not exist yet.

        The adaptor patches with its defaults when it is imported, so flash attention would be off
        (verl#6674). After `initialize_model_parallel` a repatch no longer reaches every caller.
        """
        from megatron.core import parallel_state

        if parallel_state.model_parallel_is_initialized():
            raise PlatformError(
                "adapt_megatron() after initialize_model_parallel(): MindSpeed's patches would "
                "miss what parallel state already holds; call it before"
            )
        adaptor: Any = importlib.import_module("mindspeed.megatron_adaptor")
        adaptor.repatch(
            {
                "use_flash_attn": True,
                "context_parallel_size": 1,
                "tensor_model_parallel_size": policy.tensor_parallel,
                "pipeline_model_parallel_size": policy.pipeline_parallel,
            }
        )

    def core_attention(self) -> type | None:
        """`npu_fusion_attention`: TND when packed, SBH otherwise."""
        from ._attention import NpuAttention

        return NpuAttention
