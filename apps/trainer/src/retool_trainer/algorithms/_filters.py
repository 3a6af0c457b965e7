"""Which groups of trajectories carry a signal worth training on.

Legend: P problems, G trajectories per problem (rows may be ragged, None = could not be graded).
"""

from __future__ import annotations

from collections.abc import Sequence


def has_spread(rewards_PG: Sequence[Sequence[float | None]]) -> list[bool]:
    """Say for each group whether its rewards differ.

    Args:
        rewards_PG: Shaped rewards, one row per problem.

    Returns:
        One flag per problem. False (a "flat" group) means that the group-relative estimators (grpo,
        dr_grpo, rloo, reinforce_pp_baseline) give it only zeros, so leaving it out loses nothing.
    """
    return [len({reward for reward in row if reward is not None}) > 1 for row in rewards_PG]


def has_mixed_accuracy(correct_PG: Sequence[Sequence[bool | None]]) -> list[bool]:
    """Say for each group whether it holds both a right and a wrong answer.

    The dynamic sampling of DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2, equation 11). It
    takes the unshaped accuracy on purpose: a bonus for tool use gives spread to groups that are all
    wrong or all right, and those would teach the bonus alone.

    Args:
        correct_PG: One row per problem: was the answer right? None = could not be graded.

    Returns:
        One flag per problem.
    """
    return [True in row and False in row for row in correct_PG]
