"""Rewards for TRL: `GRPOTrainer(..., reward_funcs=[retool_reward.hooks.trl.accuracy_reward])`."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from retool_reward._harness import recorded_turns, score, spans_of_messages
from retool_reward._shape import Preset, Truncated

_THREADS = 4


def _rewards(
    completions: Sequence[Any], columns: dict[str, Any], gold_column: str, preset: str, cut: str
) -> list[float | None]:
    golds = columns.get(gold_column)
    if golds is None:
        raise ValueError(
            f"the data set has no column {gold_column!r}, only {sorted(columns)}; pass "
            "gold_column=... to RetoolReward"
        )
    calls = columns.get("calls") or [None] * len(completions)
    statuses = columns.get("status") or ["completed"] * len(completions)

    def one(job: tuple[Any, Any, Any, str]) -> float | None:
        completion, gold, record, status = job
        _, reward = score(
            spans_of_messages(completion),
            gold,
            tool_turns=recorded_turns({"calls": record}),
            status=status,
            preset=preset,
            truncated=cut,
        )
        return reward.total

    # threads, because a hard answer waits for a worker and the others need not
    with ThreadPoolExecutor(_THREADS) as threads:
        jobs = zip(completions, golds, calls, statuses, strict=True)
        return list(threads.map(one, jobs))


async def accuracy_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Return 1.0 for a right answer, 0.0 for a wrong one, None without a verdict.

    The gold is the data set's column `answer`. A completion is a string, or a list of messages
    whose roles say who spoke.
    """
    return await asyncio.to_thread(_rewards, completions, columns, "answer", "outcome", "grade")


class RetoolReward:
    """A shaped reward that can be pickled; pass an instance to `reward_funcs`.

    Args:
        preset: A `Preset`.
        gold_column: The data set's column with the golds.
        truncated: A `Truncated`: what a truncated completion earns.

    A column `calls` (per completion the recorded calls with name, arguments, ok) counts tool turns;
    a column `status` says how a trajectory ended.
    """

    def __init__(
        self, *, preset: str = "retool", gold_column: str = "answer", truncated: str = "grade"
    ) -> None:
        self.preset = Preset(preset).value
        self.gold_column = gold_column
        self.truncated = Truncated(truncated).value
        self.__name__ = f"retool_{self.preset}"  # TRL logs rewards under this name

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return one reward per completion; None without a verdict."""
        return _rewards(completions, columns, self.gold_column, self.preset, self.truncated)
