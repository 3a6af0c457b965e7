"""avg@n and pass@k with confidence intervals.

Legend: P problems, n samples of a problem, c of them right.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over problems and its 95 % interval."""

    mean: float
    low: float
    high: float


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that one of k samples is right: 1 - C(n - c, k) / C(n, k) (Chen et al., 2021).

    Raises:
        ValueError: k is not between 1 and n.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"k must be between 1 and n = {num_samples}, got {k}")
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def summarise(grades: Mapping[str, Sequence[bool]]) -> dict[str, Estimate]:
    """avg@n and pass@k for k = 1, 2, 4, ... up to the smallest n.

    Args:
        grades: The graded samples of each problem. Problems without any are left out.
    """
    rows = [list(row) for row in grades.values() if row]
    if not rows:
        return {}
    fewest = min(len(row) for row in rows)
    estimates = {f"avg@{fewest}": _estimate(rows, lambda row: sum(row) / len(row))}
    k = 1
    while k <= fewest:
        estimates[f"pass@{k}"] = _estimate(rows, lambda row, k=k: pass_at_k(len(row), sum(row), k))
        k *= 2
    return estimates


def _estimate(rows: Sequence[Sequence[bool]], score: Callable[[Sequence[bool]], float]) -> Estimate:
    """Mean and bootstrap interval over problems: the samples of one problem are not independent."""
    scores = [score(row) for row in rows]
    size = len(scores)
    dice = random.Random(0)  # the same file gives the same interval
    means = sorted(math.fsum(dice.choices(scores, k=size)) / size for _ in range(RESAMPLES))
    tail = (1.0 - CONFIDENCE) / 2
    return Estimate(
        mean=math.fsum(scores) / size,
        low=means[int(tail * RESAMPLES)],
        high=means[min(RESAMPLES - 1, int((1.0 - tail) * RESAMPLES))],
    )
