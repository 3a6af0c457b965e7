"""The versions that are meant to run together; uv.lock and docker/ are tested against them."""

from __future__ import annotations

from collections.abc import Mapping

PACKAGES: Mapping[str, Mapping[str, str]] = {
    "cpu": {"torch": "2.13.0", "megatron-core": "0.16.1"},
    "cuda": {"torch": "2.13.0", "megatron-core": "0.16.1", "vllm": "0.32.0"},
    # triton-ascend is not on PyPI: it comes with the vllm-ascend image.
    "npu": {
        "torch": "2.10.0",
        "torch-npu": "2.10.0.post4",
        "vllm": "0.23.0",
        "vllm-ascend": "0.23.0",
        "transformers": "5.5.4",
        "triton-ascend": "3.2.2",
    },
}
"""Platform -> distribution -> version."""

MIN_PYTHON = (3, 11)
MAX_PYTHON = (3, 12)

NPU_CANN = "9.1.0"
NPU_DRIVER = "26.0.rc1"
"""HDK that the set was tested with by the field; older drivers do not know CANN 9.1."""
NPU_MIN_GLIBC = (2, 34)
"""vllm-ascend's wheels need it."""
NPU_TRAINING: Mapping[str, str | None] = {"megatron-core": "0.16.1", "mindspeed": None}
"""What docker/npu.Dockerfile adds to its base. MindSpeed is a commit of its branch core_r0.16.0,
whose package says nothing about it: None takes any version."""
