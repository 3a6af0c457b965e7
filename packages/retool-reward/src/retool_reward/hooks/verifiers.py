"""Rewards for verifiers: `vf.Rubric(funcs=[retool_reward.hooks.verifiers.correct_answer])`."""

import asyncio
from typing import Any

from retool_reward._harness import recorded_turns, score, spans_of_messages


async def correct_answer(completion: Any, answer: Any, **kwargs: Any) -> float:
    """Return 1.0 for a right answer and 0.0 otherwise; the assistant's messages alone are read."""
    return await _total(completion, answer, {}, "outcome")


async def retool_reward(completion: Any, answer: Any, state: Any, **kwargs: Any) -> float:
    """Return the `retool` reward; `state["calls"]`, if it is kept, counts tool turns."""
    return await _total(completion, answer, state, "retool")


async def _total(completion: Any, answer: Any, state: Any, preset: str) -> float:
    found, reward = await asyncio.to_thread(
        score,
        spans_of_messages(completion),
        answer,
        tool_turns=recorded_turns(state),
        preset=preset,
    )
    if reward.total is None:
        raise ValueError(f"no verdict against {answer!r}: {found.reason.value}; drop this problem")
    return reward.total
