"""The learning rate's course over a stage."""

from __future__ import annotations

import math

from retool_trainer.config import OptimizerConfig


def learning_rate_factor(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """What the learning rates are multiplied with in a step.

    The factor rises linearly during the warm-up and reaches 1 in the step after it; then it stays
    (constant) or falls to `min_learning_rate_ratio` in the last step, by a straight line or half a
    cosine. Later steps keep the last value.

    Args:
        config: Schedule, warm-up and final ratio.
        step: The step about to be taken, from 0.
        total_steps: Steps of the stage.
    """
    warmup = config.warmup_steps or math.ceil(config.warmup_ratio * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
    fall = progress if config.schedule == "linear" else (1.0 - math.cos(math.pi * progress)) / 2
    return 1.0 - (1.0 - config.min_learning_rate_ratio) * fall
