"""Let Megatron-core 0.16 run on a CPU: where it says CUDA, it gets the host.

Megatron creates its buffers with `device="cuda"` or `torch.cuda.current_device()` and asserts on
type names such as `torch.cuda.FloatTensor`. Only its own modules are given a `torch` that maps
these to the host; everyone else in the process keeps the real one. (Patching torch's factories for
all breaks other models in the process: transformers then builds wrong rotary tables.)
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "tensor",
    "zeros",
    "zeros_like",
)


def adapt_megatron_to_cpu() -> None:
    """Adapt every Megatron module imported so far; safe to call again after further imports."""
    host = _HostTorch()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and vars(module).get("torch") is torch:
            module.torch = host  # pyright: ignore[reportAttributeAccessIssue]
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    if not getattr(torch.Tensor.type, "names_cuda_for_megatron", False):
        tensor: Any = torch.Tensor
        module: Any = torch.nn.Module
        tensor.type = _type_for(torch.Tensor.type)
        # On a machine without CUDA these raise; moving to where a tensor is already is no change.
        tensor.cuda = module.cuda = lambda self, *_, **__: self


def _type_for(real: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type()` that tells Megatron's assertions, and nobody else, what they want to hear."""

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = real(self, *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(answer, str) and caller.startswith("megatron.core"):
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    type_name.names_cuda_for_megatron = True  # pyright: ignore[reportFunctionMemberAccess]
    return type_name


class _HostTorch(types.ModuleType):
    """torch, but its factories know no CUDA device, and `cuda` is the host."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _HostCuda()
        for name in _FACTORIES:
            setattr(self, name, _on_host(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _HostCuda(types.ModuleType):
    """torch.cuda with one device, the host, and nothing to wait for."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device: Any) -> None:
        """The host is the only device."""

    def synchronize(self, device: Any = None) -> None:
        """Host operations are finished when they return."""

    def empty_cache(self) -> None:
        """The host has no cache to empty."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def _on_host(factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if isinstance(device, int) or str(device).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make
