"""Drawing ahead of the policy ends with the run, also with one that fails."""

from __future__ import annotations

import threading
import time

import pytest

from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import load_config
from retool_trainer.stages._draw import Batch
from retool_trainer.stages._schedule import open_schedule


def test_a_run_that_fails_does_not_wait_for_the_batch_that_is_drawn_ahead() -> None:
    config = load_config(quickstart_config(), ["rl.schedule.kind=one_step_off"])
    is_drawing, given_up = threading.Event(), threading.Event()

    def draw(step: int) -> Batch:
        if step > 1:
            is_drawing.set()
            given_up.wait(60)
        return Batch(records=(), position=step, epochs=0.0)

    def fail() -> None:
        with open_schedule(config, draw, given_up.set) as schedule:
            schedule.next_batch(1)
            assert is_drawing.wait(60)
            raise KeyboardInterrupt

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert time.monotonic() - began_s < 30
