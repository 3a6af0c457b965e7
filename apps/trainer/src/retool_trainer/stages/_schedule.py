"""Who waits for whom: trajectories and updates in turn, or overlapped by one step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from retool_data import Problem
from retool_trainer.config import RunConfig
from retool_trainer.workers import Rollouts

from ._draw import Batch, draw_batch
from ._stream import Stream


class Schedule(Protocol):
    """Gives each step its batch; told when the engine's weights change."""

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        """The batch of a step, and what waiting for it cost (metrics)."""
        ...

    def before_sync(self) -> None:
        """The policy was updated and its weights are about to be sent."""
        ...

    def after_sync(self, step: int) -> None:
        """The engine has the weights of this step."""
        ...


class _Synchronous:
    """Draw, train, sync: every token is sampled by the newest weights."""

    def __init__(self, config: RunConfig, rollouts: Rollouts, stream: Stream[Problem]) -> None:
        self._config, self._rollouts, self._stream = config, rollouts, stream

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        began_s = time.monotonic()
        batch = draw_batch(self._config, self._rollouts, self._stream, step)
        return batch, {"schedule/stall_s": time.monotonic() - began_s}

    def before_sync(self) -> None:
        """Nothing is under way."""

    def after_sync(self, step: int) -> None:
        """The next batch is drawn when it is asked for."""


class _OneStepOff:
    """Draw the next batch while the policy trains on this one: weights are one update old."""

    def __init__(
        self,
        config: RunConfig,
        rollouts: Rollouts,
        stream: Stream[Problem],
        thread: ThreadPoolExecutor,
        total_steps: int,
    ) -> None:
        self._config, self._rollouts, self._stream = config, rollouts, stream
        self._thread, self._total_steps = thread, total_steps
        self._next: Future[Batch] | None = None

    def next_batch(self, step: int) -> tuple[Batch, dict[str, float]]:
        began_s = time.monotonic()
        if self._next is None:
            self._begin(step)
        assert self._next is not None
        batch = self._next.result()
        self._next = None
        if step < self._total_steps:
            self._begin(step + 1)
        return batch, {"schedule/stall_s": time.monotonic() - began_s}

    def _begin(self, step: int) -> None:
        self._next = self._thread.submit(
            draw_batch, self._config, self._rollouts, self._stream, step
        )

    def before_sync(self) -> None:
        # No token may mix two versions of the weights.
        if self._next is not None:
            self._next.exception()

    def after_sync(self, step: int) -> None:
        """The batch that was drawn meanwhile is trained on next."""


@contextmanager
def open_schedule(
    config: RunConfig, rollouts: Rollouts, stream: Stream[Problem], state: Mapping[str, Any]
) -> Iterator[Schedule]:
    """Open the schedule that `rl.schedule` names; nothing of it runs on after the block."""
    del state
    assert config.rl is not None
    if config.rl.schedule.kind == "synchronous":
        yield _Synchronous(config, rollouts, stream)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="next-batch") as thread:
        yield _OneStepOff(config, rollouts, stream, thread, config.rl.steps)
