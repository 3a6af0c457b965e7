"""The order in which problems or rows are drawn: each once per epoch, every epoch shuffled anew.

The order is a function of the seed and the position alone, so a position is all that a checkpoint
has to remember.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """An endless sequence of items; the one at a position never changes."""

    def __init__(self, items: Sequence[T], seed: int, position: int = 0) -> None:
        if not items:
            raise ValueError("there is nothing to draw from: the data set is empty")
        self._items, self._seed = items, seed
        self.position = position
        """How many items have been drawn."""
        self._epoch = -1
        self._order: list[int] = []

    def take(self, count: int) -> list[T]:
        """Draw the next `count` items."""
        drawn = [self._at(self.position + offset) for offset in range(count)]
        self.position += count
        return drawn

    @property
    def epochs(self) -> float:
        """Passes over the items so far."""
        return self.position / len(self._items)

    def _at(self, position: int) -> T:
        epoch, index = divmod(position, len(self._items))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = list(range(len(self._items)))
            random.Random(f"{self._seed} {epoch}").shuffle(self._order)
        return self._items[self._order[index]]
