"""The weights that a stage started from, kept in host memory to measure the distance from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Reference:
    """A copy of a model's parameters that can take their place for a moment."""

    def __init__(self, model: nn.Module) -> None:
        """Copy the parameters as they are now."""
        self._model = model
        self._kept = [parameter.detach().to("cpu", copy=True) for parameter in model.parameters()]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute with the kept weights inside the block, to the bit."""
        current = [parameter.detach().clone() for parameter in self._model.parameters()]
        self._write(self._kept)
        try:
            yield
        finally:
            self._write(current)

    @torch.no_grad()
    def _write(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._model.parameters(), values, strict=True):
            parameter.data.copy_(value)
