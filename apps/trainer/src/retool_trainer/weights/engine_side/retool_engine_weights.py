"""vLLM's end of weight sync by broadcast: a weight-transfer engine named `retool`.

Started with `--worker-extension-cls retool_engine_weights.WeightsExtension`: importing the module
in a worker registers the engine before the worker makes it. vLLM's own `nccl` engine needs vLLM in
the trainer's process and has no CPU sibling; this one speaks gloo, nccl and hccl through torch.

Written against vLLM 0.23 (the worker owns the lifecycle and passes `load_weights`) and 0.32 (the
engine owns it); run on 0.32 on CPU.
"""

# pyright: reportMissingImports=false
# vLLM and the sibling module are importable in an engine's process only.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from retool_broadcast import Handshake, Receiver
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

Load = Callable[[list[tuple[str, torch.Tensor]]], Any]


@dataclass
class InitInfo(WeightTransferInitInfo):
    """`Handshake`, as vLLM wants it: a subclass of its own dataclass."""

    backend: str
    host: str
    port: int
    group: str
    world_size: int
    rank_offset: int
    timeout_s: float


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What one bucket holds."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class TorchBroadcastEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives buckets and loads them as a checkpoint of HF names."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, config: Any, parallel_or_vllm_config: Any, *rest: Any) -> None:
        """0.23: (config, parallel_config, model); 0.32: (config, vllm_config, device, model)."""
        super().__init__(config, parallel_or_vllm_config, *rest)
        self._receiver: Receiver | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Join the sender's group; an earlier one, of a trainer that went away, is left."""
        self.shutdown()
        parallel = self.parallel_config
        local_rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._receiver = Receiver(
            Handshake(**vars(init_info)), local_rank, _device(init_info.backend)
        )

    def start_weight_update(self) -> None:
        """0.32: restore the layout that checkpoints load into (0.23's worker does it itself)."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """0.32: pack the weights again for the kernels."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        _repack_tied_head(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """0.32: receive and load one bucket. The base would synchronise an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo, load_weights: Load | None = None) -> None:
        """Receive one bucket and load it; 0.23 passes `load_weights`."""
        if self._receiver is None:
            raise RuntimeError("update_weights before init_weight_transfer_engine")
        weights = self._receiver.receive(update_info.names, update_info.dtypes, update_info.shapes)
        (load_weights or self.model.load_weights)(weights)

    def shutdown(self) -> None:
        """Leave the group."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """0.23 wants the sender here; ours is `retool_trainer.weights.BroadcastSender`."""
        raise NotImplementedError("send with retool_trainer.weights.BroadcastSender")


class WeightsExtension:
    """Mixed into vLLM's worker; naming it is what gets this module imported there."""

    model_runner: Any

    def repack_tied_head(self) -> None:
        """For `/collective_rpc`, after a reload from disk: see `_repack_tied_head`."""
        _repack_tied_head(self.model_runner.get_model())


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Give an output head that shares the embedding's weight its packed copy again.

    On CPU vLLM 0.32 computes logits from a packed copy. A reload processes a layer once it has
    received weights, and a tied head receives none, so its copy stays that of the old weights:
    logprobs were off by 0.56 where they should agree to 5e-7. Elsewhere there is no copy to renew.
    """
    head = getattr(model, "lm_head", None)
    weight = getattr(head, "weight", None)
    if head is None or weight is None or weight.device.type != "cpu":
        return
    head.quant_method.process_weights_after_loading(head)


def _device(backend: str) -> torch.device:
    accelerator = None if backend == "gloo" else torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


WeightTransferEngineFactory.register_engine("retool", TorchBroadcastEngine)
