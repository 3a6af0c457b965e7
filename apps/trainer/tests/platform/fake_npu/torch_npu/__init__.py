"""Stands in for torch_npu: `torch.npu`, hccl (over gloo), the fused attention (on CPU)."""

import os
import sys
import types

import torch
import torch.distributed as dist
from recorder import record
from torch.nn import functional

record(
    "import torch_npu",
    megatron="megatron.core" in sys.modules,
    mindspeed="mindspeed.megatron_adaptor" in sys.modules,
    environment={
        name: value
        for name, value in os.environ.items()
        if name.startswith(("HCCL_", "ASCEND_", "PYTORCH_NPU", "TASK_QUEUE", "CUDA_DEVICE"))
    },
)

npu = types.ModuleType("torch.npu")
npu.set_device = lambda index: record("set_device", index=index)
torch.npu = npu


def _hccl(store, rank, size, timeout):
    record("hccl group", rank=rank, size=size, timeout_s=timeout.total_seconds())
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("hccl", _hccl, devices=["cpu"])


def npu_fusion_attention(
    query,
    key,
    value,
    head_num,
    input_layout,
    *,
    atten_mask,
    scale,
    keep_prob,
    sparse_mode,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
):
    """The documented meaning, row by row; the first of the kernel's results is the output."""
    record(
        "npu_fusion_attention",
        layout=input_layout,
        heads=head_num,
        query=list(query.shape),
        key=list(key.shape),
        mask=list(atten_mask.shape),
        mask_hides_the_future=bool(atten_mask[0, 1]) and not bool(atten_mask[1, 0]),
        keep_prob=keep_prob,
        sparse_mode=sparse_mode,
        ends=actual_seq_qlen,
    )
    if input_layout == "SBH":
        size = query.size(2) // head_num
        return (
            _attend(*(x.unflatten(2, (-1, size)) for x in (query, key, value)), scale).flatten(2),
        )
    assert actual_seq_qlen == actual_seq_kvlen
    rows = []
    start = 0
    for end in actual_seq_qlen:
        row = (x[start:end].unsqueeze(1) for x in (query, key, value))
        rows.append(_attend(*row, scale).squeeze(1))
        start = end
    return (torch.cat(rows),)


def _attend(query, key, value, scale):
    context = functional.scaled_dot_product_attention(
        *(x.permute(1, 2, 0, 3) for x in (query, key, value)),
        is_causal=True,
        scale=scale,
        enable_gqa=True,
    )
    return context.permute(2, 0, 1, 3)
