"""Import Megatron-core: the one place that does, so that it is done quickly and quietly."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any


def import_megatron() -> None:
    """Import what a policy uses of Megatron-core; the first import takes 5 s.

    Megatron decorates its fused functions with `torch.compile`, which imports the compiler: 4.5 s
    more. None of the fusions runs here, so during the import the decorator does nothing.
    """
    _quieten()
    with _no_compiler():
        import megatron.core.dist_checkpointing.strategies.torch
        import megatron.core.distributed
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.models.gpt.gpt_model
        import megatron.core.optimizer
        import megatron.core.pipeline_parallel  # noqa: F401


def _quieten() -> None:
    """Drop what a user of a policy can do nothing about; a rank is a process of its own."""
    # TransformerEngine and apex are absent (the plan), defaults are used, arguments are old.
    warnings.filterwarnings("ignore", module=r"megatron\.")
    # Megatron looks at `.grad` of the views that its distributed optimizer keeps.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    # Megatron calls collectives by names that torch 2.13 deprecates.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # It tells a machine with CUDA's headers but no GPU that it has no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


@contextlib.contextmanager
def _no_compiler() -> Iterator[None]:
    import torch

    def unchanged(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return function if function is not None else unchanged

    compiler = torch.compile
    torch.compile = unchanged  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.compile = compiler
