"""The learning rate's course, by hand-computed numbers."""

from __future__ import annotations

import pytest

from retool_trainer.config import OptimizerConfig
from retool_trainer.policy._schedule import learning_rate_factor


def _course(total_steps: int, **config: object) -> list[float]:
    settings = OptimizerConfig.model_validate(config)
    return [learning_rate_factor(settings, step, total_steps) for step in range(total_steps)]


def test_constant_is_one_after_the_warm_up() -> None:
    assert _course(5, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_cosine_ends_at_the_ratio_in_the_last_step() -> None:
    course = _course(5, schedule="cosine", min_learning_rate_ratio=0.2)
    assert course == pytest.approx([1.0, 0.8828, 0.6, 0.3172, 0.2], abs=1e-4)


def test_linear_falls_by_equal_steps() -> None:
    course = _course(5, schedule="linear", min_learning_rate_ratio=0.0, warmup_ratio=0.2)
    assert course == pytest.approx([0.5, 1.0, 2 / 3, 1 / 3, 0.0])


def test_steps_beyond_the_last_keep_its_rate() -> None:
    config = OptimizerConfig(schedule="cosine", min_learning_rate_ratio=0.1)
    assert learning_rate_factor(config, 99, 10) == pytest.approx(0.1)
    assert learning_rate_factor(config, 0, 1) == 1.0
