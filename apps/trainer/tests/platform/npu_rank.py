"""A policy rank on the fake NPU stack, in the order that `Platform` prescribes (a test runs it)."""

import json
import subprocess
import sys
import types

import torch
import torch.distributed as dist
from recorder import record

from retool_trainer.config import PolicyConfig
from retool_trainer.platform import PlatformError, get_platform

WRONG_ORDER = sys.argv[1] == "wrong-order"


def start_actor() -> None:
    """What Ray runs; without a model it stops after its imports, and that is what is looked at."""
    from retool_trainer.config import RunConfig
    from retool_trainer.workers._policy_group import _PolicyRank

    config = RunConfig.model_validate(
        {
            "model": {"path": "no-such-folder"},
            "stages": ["rl"],
            "rl": {"problems": "p"},
            "platform": "npu",
        }
    )
    try:
        _PolicyRank(0, config, "no-such-folder").start(("127.0.0.1", 1))
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants its name
        record("stopped", kind=type(error).__name__)


def main() -> None:
    if sys.argv[1] == "actor":
        start_actor()
        return
    platform = get_platform("npu")
    if WRONG_ORDER:
        sys.modules["megatron.core"] = types.ModuleType("megatron.core")
    try:
        platform.import_vendor()
    except PlatformError as error:
        record("refused", message=str(error))
        return
    platform.use_device(0)
    policy = PolicyConfig(tensor_parallel=1)
    platform.adapt_megatron(policy)

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group(platform.collective_backend, store=store, rank=0, world_size=1)
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=1)
    record("parallel state")
    try:
        platform.adapt_megatron(policy)
    except PlatformError as error:
        record("refused", message=str(error))
    compare_attention(platform)
    send_weights(platform)
    dist.destroy_process_group()


def compare_attention(platform) -> None:
    """Both fused attentions against attention written out: unpacked, packed, and gradients."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=8,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        **platform.transformer_settings(),
    )
    generator = torch.Generator().manual_seed(3)
    tensors = [
        torch.randn(6, 2, heads, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2)
    ]
    expected = reference(*tensors)
    gradients = torch.autograd.grad(expected.square().sum(), tensors)
    ends = torch.tensor([0, 6, 10], dtype=torch.int32)
    packing = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends)
    for name in ("npu", "cuda"):
        cls = get_platform(name).core_attention()
        attention = cls(config, 1, AttnMaskType.causal, "self")
        unpacked = attention(*tensors, None)
        torch.testing.assert_close(unpacked, expected)
        got = torch.autograd.grad(unpacked.square().sum(), tensors)
        for mine, wanted in zip(got, gradients, strict=True):
            torch.testing.assert_close(mine, wanted)
        rows = (torch.cat([x[:, 0], x[:4, 1]]) for x in tensors)
        packed = attention(*rows, None, packed_seq_params=packing)
        torch.testing.assert_close(packed[:, 0], torch.cat([expected[:, 0], expected[:4, 1]]))
        record("attention", name=name, shapes=[list(unpacked.shape), list(packed.shape)])


def reference(query, key, value):
    """Softmax attention written out."""
    key, value = (x.repeat_interleave(2, dim=2) for x in (key, value))
    scores = torch.einsum("sbnd,tbnd->bnst", query, key) / 8**0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("bnst,tbnd->sbnd", weights, value).flatten(2)


# The engine's process: vendor stack, then our engine side, found by its bare name.
ENGINE = """
import json, sys
import torch_npu
from recorder import record
from retool_broadcast import Handshake, Receiver
receiver = Receiver(Handshake(**json.loads(sys.stdin.readline())), 0, "cpu")
print("joined", flush=True)
((name, tensor),) = receiver.receive(**json.loads(sys.stdin.readline()))
record("held", **{name: tensor.tolist()})
print("loaded", flush=True)
receiver.close()
"""


class Engine:
    """One engine of one process."""

    num_processes = 1

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _tell(self, value) -> None:
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def init_weight_transfer_engine(self, init_info) -> None:
        record("handshake", backend=init_info["backend"])
        self._tell(init_info)

    def start_weight_update(self) -> None:
        record("start_weight_update")

    def update_weights(self, update_info) -> None:
        record("update_weights", names=update_info["names"])
        self._tell(update_info)

    def finish_weight_update(self, version) -> None:
        record("finish_weight_update", version=version)


def send_weights(platform) -> None:
    """Sync to one engine: the group and every collective are hccl's."""
    from retool_trainer.weights import BroadcastSender

    engine = Engine()
    sender = BroadcastSender([engine], backend=platform.collective_backend, timeout_s=60)
    try:
        sender.connect()
        sender.send([("w", torch.arange(4.0))], version=7)
    finally:
        sender.close()
        engine.process.communicate(timeout=30)


if __name__ == "__main__":
    main()
