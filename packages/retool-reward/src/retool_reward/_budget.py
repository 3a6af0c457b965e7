"""Bound the time that one comparison may take in this thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_local = threading.local()


class OverBudget(Exception):  # noqa: N818 - a limit, not a fault
    """The comparison took longer than its budget; a worker that can be killed may go on."""


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Let `spend` raise after `seconds` of wall time, inside the block and in this thread."""
    before = getattr(_local, "deadline", None)
    _local.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        _local.deadline = before


def spend() -> None:
    """Note that work was done.

    Raises:
        OverBudget: The block's time is over.
    """
    deadline = getattr(_local, "deadline", None)
    if deadline is not None and time.monotonic() > deadline:
        raise OverBudget
