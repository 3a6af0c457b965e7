"""Turn the rewards of groups of trajectories into advantages, one number per trajectory.

Legend: P problems, G trajectories per problem (rows may be ragged). A reward of None belongs to a
trajectory that was aborted or cannot be graded: it takes no part in any mean or spread, its
advantage is 0.0, and the caller leaves it out of the batch so that it takes no part in the loss's
denominators either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Rewards = Sequence[Sequence[float | None]]
Advantages = list[list[float]]

# Keeps a spread of rounding noise from being blown up; far below the smallest bonus (0.02).
_EPSILON = 1e-6


def grpo(rewards_PG: Rewards) -> Advantages:
    """Centre each group on its mean and divide by its sample standard deviation.

    Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), section 4.1.2, with the n - 1 deviation that
    TRL and verl use.

    Args:
        rewards_PG: One row per problem.

    Returns:
        advantages_PG, same shape. A group of equal rewards, or of one graded trajectory, is zero.

    Raises:
        ValueError: A reward is not finite.
    """
    return [_over(row, lambda kept: _standardise(kept, kept)) for row in rewards_PG]


def dr_grpo(rewards_PG: Rewards) -> Advantages:
    """Centre each group on its mean; no division, so easy and hard problems are not inflated.

    Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.2.

    Args:
        rewards_PG: One row per problem.

    Returns:
        advantages_PG, same shape. A group of equal rewards is zeros.

    Raises:
        ValueError: A reward is not finite.
    """
    return [_over(row, _centre) for row in rewards_PG]


def rloo(rewards_PG: Rewards) -> Advantages:
    """Subtract from each reward the mean of the *other* rewards of its group.

    Ahmadian et al. 2024, Back to Basics (arXiv 2402.14740), section 3.3: with n graded trajectories
    this is n / (n - 1) times the centred reward.

    Args:
        rewards_PG: One row per problem.

    Returns:
        advantages_PG, same shape. A group with one graded trajectory has no baseline and is zero.

    Raises:
        ValueError: A reward is not finite.
    """

    def leave_one_out(kept: list[float]) -> list[float]:
        scale = len(kept) / (len(kept) - 1) if len(kept) > 1 else 0.0
        return [scale * value for value in _centre(kept)]

    return [_over(row, leave_one_out) for row in rewards_PG]


def reinforce_pp(rewards_PG: Rewards) -> Advantages:
    """Centre on the mean of the whole batch and divide by its standard deviation.

    Hu et al. 2025, REINFORCE++ (arXiv 2501.03262): global normalisation instead of one per group.
    A group of equal rewards still gets a signal here (all right in a poor batch is good news), so
    do not drop flat groups before this estimator.

    Args:
        rewards_PG: One row per problem.

    Returns:
        advantages_PG, same shape. A batch of equal rewards is zeros.

    Raises:
        ValueError: A reward is not finite.
    """
    batch = _graded(rewards_PG)
    return [_over(row, lambda kept: _standardise(kept, batch)) for row in rewards_PG]


def reinforce_pp_baseline(rewards_PG: Rewards) -> Advantages:
    """Centre each group on its mean, then divide by the standard deviation of the whole batch.

    Hu et al. 2025, REINFORCE++ (arXiv 2501.03262), the variant "w/ baseline" for several
    trajectories per problem.

    Args:
        rewards_PG: One row per problem.

    Returns:
        advantages_PG, same shape. A group of equal rewards is zeros.

    Raises:
        ValueError: A reward is not finite.
    """
    centred_PG = [_over(row, _centre) for row in rewards_PG]
    ungraded_PG = [
        [None if reward is None else value for value, reward in zip(centred, row, strict=True)]
        for centred, row in zip(centred_PG, rewards_PG, strict=True)
    ]
    return reinforce_pp(ungraded_PG)


ADVANTAGES: dict[str, Callable[[Rewards], Advantages]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}
"""`rl.advantage` -> estimator."""


def _graded(rewards_PG: Rewards) -> list[float]:
    return [reward for row in rewards_PG for reward in row if reward is not None]


def _over(
    row: Sequence[float | None], estimate: Callable[[list[float]], list[float]]
) -> list[float]:
    """Apply `estimate` to the graded rewards of a row and put zeros where there was none."""
    kept = [float(reward) for reward in row if reward is not None]
    for reward in kept:
        if not math.isfinite(reward):
            raise ValueError(f"a reward must be finite, or None when it is unknown; got {reward!r}")
    values = iter(estimate(kept))
    return [0.0 if reward is None else next(values) for reward in row]


def _centre(kept: list[float]) -> list[float]:
    # Rounding of the mean must not give equal rewards an advantage of 1e-17.
    if not kept or min(kept) == max(kept):
        return [0.0] * len(kept)
    mean = math.fsum(kept) / len(kept)
    return [reward - mean for reward in kept]


def _standardise(kept: list[float], population: list[float]) -> list[float]:
    """Express `kept` in sample standard deviations from the mean of `population`."""
    if len(population) < 2 or min(population) == max(population):
        return [0.0] * len(kept)
    mean = math.fsum(population) / len(population)
    variance = math.fsum((x - mean) ** 2 for x in population) / (len(population) - 1)
    scale = math.sqrt(variance) + _EPSILON
    return [(reward - mean) / scale for reward in kept]
