"""Accuracy over repeated samples: avg@n, pass@k, and intervals that respect the problems.

Legend: P problems, N samples of a problem (rows may be ragged; None = could not be graded).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Verdicts_N = Sequence[bool | None]
Verdicts = Sequence[Verdicts_N]

# The two-sided 95 % point of the normal distribution.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A share with its 95 % confidence interval; NaN where nothing was measured."""

    value: float
    low: float
    high: float
    num_problems: int
    """That entered the value."""
    num_samples: int
    """Graded samples of these problems."""


def avg_at_n(correct_PN: Verdicts) -> Estimate:
    """Return the mean over problems of each problem's share of right answers.

    Args:
        correct_PN: One row per problem. Ungraded samples are left out, and so are problems without
            a graded one.

    Returns:
        The share with its interval (see `clustered_wilson`).
    """
    rows = [[verdict for verdict in row if verdict is not None] for row in correct_PN]
    rows = [row for row in rows if row]
    return _estimate([sum(row) / len(row) for row in rows], sum(map(len, rows)))


def pass_at_k(correct_PN: Verdicts, k: int) -> Estimate:
    """Return the probability that at least one of k samples is right, without bias.

    Chen et al. 2021 (arXiv 2107.03374), equation 1: with c of n right, 1 - C(n - c, k) / C(n, k),
    averaged over problems.

    Args:
        correct_PN: One row per problem. Ungraded samples are left out, and so are problems with
            fewer than k graded ones (`num_problems` says how many entered).
        k: How many tries.

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError(f"k of pass@k must be >= 1, got {k!r}")
    rows = [[verdict for verdict in row if verdict is not None] for row in correct_PN]
    rows = [row for row in rows if len(row) >= k]
    shares = [1 - math.comb(len(row) - sum(row), k) / math.comb(len(row), k) for row in rows]
    return _estimate(shares, sum(map(len, rows)))


def clustered_wilson(shares_P: Sequence[float], num_samples: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of per-problem shares.

    Problems are the sampling unit: 16 samples of a problem are not 16 problems. The interval is
    Wilson's (1927), with the number of trials replaced by the effective one, p (1 - p) / Var(mean),
    where the variance is that between problems (Dean and Pagano 2015, Journal of Survey Statistics
    and Methodology 3(4), "Wilson" for clustered data; clustering of evaluations: Miller 2024,
    arXiv 2411.00640). With one sample per problem it is Wilson's interval itself; where no
    problem differs from another (such as all right), the problems are the trials.

    Args:
        shares_P: One share in [0, 1] per problem.
        num_samples: Samples behind them all: there are never more trials than that.

    Returns:
        (low, high); (0, 1) without problems.
    """
    if not shares_P:
        return 0.0, 1.0
    p = statistics.fmean(shares_P)
    variance = statistics.pvariance(shares_P, p) / len(shares_P)
    trials = float(len(shares_P))
    if variance > 0:
        trials = min(p * (1 - p) / variance, float(num_samples))
    spread = _Z**2 / trials
    centre = (p + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(p * (1 - p) / trials + spread / (4 * trials))
    # The bounds of p = 0 and p = 1 are exact; rounding must not move them.
    return (0.0 if p == 0 else max(0.0, centre - half), 1.0 if p == 1 else min(1.0, centre + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How the same problems fared before and after, with a 95 % interval of the difference."""

    difference: float
    low: float
    high: float
    newly_right: int
    """Problems with at most half of their samples right before, and more than half after."""
    newly_wrong: int
    num_problems: int
    """With a graded sample on both sides."""


def paired_change(before: Mapping[str, Verdicts_N], after: Mapping[str, Verdicts_N]) -> Change:
    """Compare two models on the same problems.

    The interval is that of the mean of per-problem differences (normal approximation): what the
    problems have in common drops out, so it is narrower than two separate intervals suggest
    (Miller 2024, arXiv 2411.00640, section 4.2).

    Args:
        before: Verdicts of each problem's samples, by problem.
        after: The same for the other model; only problems that both have are compared.

    Returns:
        The change; NaN without a common problem, and without an interval for a single one.
    """
    pairs = [
        (share, other)
        for name, verdicts in before.items()
        if name in after
        and (share := _share(verdicts)) is not None
        and (other := _share(after[name])) is not None
    ]
    differences = [other - share for share, other in pairs]
    mean = statistics.fmean(differences) if differences else math.nan
    half = math.nan
    if len(differences) > 1:
        half = _Z * statistics.stdev(differences) / math.sqrt(len(differences))
    return Change(
        difference=mean,
        low=mean - half,
        high=mean + half,
        newly_right=sum(share <= 0.5 < other for share, other in pairs),
        newly_wrong=sum(other <= 0.5 < share for share, other in pairs),
        num_problems=len(pairs),
    )


def _share(verdicts_N: Verdicts_N) -> float | None:
    graded = [verdict for verdict in verdicts_N if verdict is not None]
    return sum(graded) / len(graded) if graded else None


def _estimate(shares_P: Sequence[float], num_samples: int) -> Estimate:
    low, high = clustered_wilson(shares_P, num_samples)
    return Estimate(
        value=statistics.fmean(shares_P) if shares_P else math.nan,
        low=low,
        high=high,
        num_problems=len(shares_P),
        num_samples=num_samples,
    )
