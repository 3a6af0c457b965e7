"""Who waits for whom: trajectories and updates in turn, overlapped, or replayed from files."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from retool_trainer.config import RunConfig

from ._draw import Batch, read_batch

Draw = Callable[[int], Batch]
"""step -> the batch of that step, drawn now."""


class Schedule(Protocol):
    """Gives each step its batch; told when the engine's weights are about to change."""

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        """The batch of a step, and what waiting for it cost (metrics)."""
        ...

    def syncing(self) -> AbstractContextManager[None]:
        """Around a weight update: no trajectory that must not mix two versions is under way."""
        ...


class _Synchronous:
    """Draw, train, sync: every token is sampled by the newest weights."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        began_s = time.monotonic()
        batch = self._draw(step)
        return batch, {"schedule/stall_s": time.monotonic() - began_s}

    def syncing(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is under way


class _Ahead:
    """Draw up to `depth` batches ahead, one after the other, while the policy trains.

    The batch of step s starts when the policy has made at least s - 1 - depth updates, so no token
    is older than `depth` updates when it is trained on: the bound holds by construction and nothing
    that was sampled is thrown away. A run that is resumed draws the batches again that were ahead:
    the position in the checkpoint is that of the last batch that was trained on.
    """

    def __init__(
        self, draw: Draw, thread: ThreadPoolExecutor, *, depth: int, last_step: int, drain: bool
    ) -> None:
        self._draw, self._thread = draw, thread
        self._depth, self._last_step = depth, last_step
        self._gate = _Gate() if drain else None
        self._ahead: deque[Future[Batch]] = deque()
        self._next_step = 0

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        began_s = time.monotonic()
        self._next_step = max(self._next_step, step)
        self._begin_up_to(step)
        ready = sum(future.done() for future in self._ahead)
        batch = self._ahead.popleft().result()
        stall_s = time.monotonic() - began_s
        self._begin_up_to(step + self._depth)
        return batch, {"schedule/stall_s": stall_s, "schedule/queue": ready}

    def _begin_up_to(self, step: int) -> None:
        while self._next_step <= min(step, self._last_step):
            self._ahead.append(self._thread.submit(self._gated_draw, self._next_step))
            self._next_step += 1

    def _gated_draw(self, step: int) -> Batch:
        with self._gate.drawing() if self._gate else nullcontext():
            return self._draw(step)

    def syncing(self) -> AbstractContextManager[None]:
        return self._gate.syncing() if self._gate else nullcontext()


class _Gate:
    """Keeps drawing and weight updates apart; an update goes before the next draw."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_drawing = False
        self._is_syncing = False

    @contextmanager
    def drawing(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_syncing)
            self._is_drawing = True
        try:
            yield
        finally:
            with self._changed:
                self._is_drawing = False
                self._changed.notify_all()

    @contextmanager
    def syncing(self) -> Iterator[None]:
        with self._changed:
            self._is_syncing = True
            self._changed.wait_for(lambda: not self._is_drawing)
        try:
            yield
        finally:
            with self._changed:
                self._is_syncing = False
                self._changed.notify_all()


class _Replay:
    """Train on what another run has stored; nothing is drawn."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        return read_batch(self._run_dir, step), {}

    def syncing(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is under way


@contextmanager
def open_schedule(config: RunConfig, draw: Draw, give_up: Callable[[], None]) -> Iterator[Schedule]:
    """Open the schedule that the config names; nothing of it runs on after the block.

    Args:
        config: The run.
        draw: Draws the batch of a step.
        give_up: Makes a draw that is under way fail at once; called when the block fails.
    """
    rl = config.rl
    assert rl is not None
    if rl.replay:
        yield _Replay(Path(rl.replay))
    elif rl.schedule.kind == "synchronous":
        yield _Synchronous(draw)
    else:
        one_off = rl.schedule.kind == "one_step_off"
        thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        try:
            yield _Ahead(
                draw,
                thread,
                depth=1 if one_off else rl.schedule.max_staleness,
                last_step=rl.steps,
                drain=not rl.schedule.partial_rollouts,
            )
        except BaseException:
            # Nobody wants the batch under way, which of a large model takes many minutes.
            give_up()
            raise
        finally:
            thread.shutdown(wait=True, cancel_futures=True)
