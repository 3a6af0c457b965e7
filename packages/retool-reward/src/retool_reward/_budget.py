"""Bound the processor time that one comparison may take in this thread."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

_local = threading.local()


class OverBudget(Exception):  # noqa: N818 - a limit, not a fault
    """The comparison took longer than its budget; a worker that can be killed may go on."""


@contextmanager
def budget(seconds: float) -> Generator[None]:
    """Let `spend` raise after `seconds` of this thread's processor time, inside the block."""
    before = getattr(_local, "deadline", None)
    _local.deadline = time.thread_time() + seconds
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
    if deadline is not None and time.thread_time() > deadline:
        raise OverBudget


@contextmanager
def forgiven() -> Generator[None]:
    """Do not count the time of this block: a first import is not the answer's fault."""
    started = time.thread_time()
    try:
        yield
    finally:
        deadline = getattr(_local, "deadline", None)
        if deadline is not None:
            _local.deadline = deadline + time.thread_time() - started
