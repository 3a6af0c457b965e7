"""Stands in for MindSpeed's adaptor, which patches Megatron on import and again on `repatch`."""

import sys

from recorder import record

record(
    "import mindspeed.megatron_adaptor",
    megatron="megatron.core" in sys.modules,
    torch_npu="torch_npu" in sys.modules,
)


def repatch(arguments):
    from megatron.core import parallel_state

    record(
        "repatch",
        arguments=arguments,
        parallel_state=parallel_state.model_parallel_is_initialized(),
    )
