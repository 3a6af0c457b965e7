"""Reward for verl: `reward.custom_reward_function.path=.../hooks/verl.py`, `name=compute_score`.

The file is found with `python -c "import retool_reward.hooks.verl as hook; print(hook.__file__)"`.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

# Absolute: verl loads this file by its path, outside of any package.
from retool_reward import Answer
from retool_reward._harness import as_result, recorded_turns, score, spans_of_messages


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Score a response as {"score", "acc", "pred", ...}.

    It is async, so verl awaits it instead of giving it a thread of its executor. Tool turns come
    from `extra_info`: `calls`, or `num_tool_calls_ok`. verl's own `num_turns` counts messages,
    whether or not a call worked, so it is used by preset `verl` only. If `extra_info["messages"]`
    holds the chat, its roles say who spoke; without it tags do.

    Args:
        data_source: Not used.
        solution_str: The decoded response, tool output included.
        ground_truth: The gold.
        extra_info: The record of the trajectory.
        **kwargs: From `reward_kwargs` of the configuration: `preset`, `truncated`, and
            `ungradable`, which is `raise` or `zero`, because verl has no way to drop a sample.

    Raises:
        ValueError: There is no verdict, and `ungradable` is `raise` (the default).
    """
    record = extra_info or {}
    preset = str(kwargs.get("preset", "retool"))
    turns = _chat_turns(record) if preset == "verl" else recorded_turns(record)
    messages = record.get("messages")
    answer: Answer = solution_str if messages is None else spans_of_messages(messages)
    found, reward = await asyncio.to_thread(
        score,
        answer,
        ground_truth,
        tool_turns=turns,
        status=str(record.get("status", "completed")),
        preset=preset,
        truncated=str(kwargs.get("truncated", "grade")),
    )
    if reward.total is None and kwargs.get("ungradable", "raise") != "zero":
        raise ValueError(
            f"no verdict on {found.pred!r} against {ground_truth!r}: {found.reason.value}; "
            "drop this problem, or pass reward_kwargs.ungradable=zero"
        )
    return {**as_result(found, reward), "score": reward.total or 0.0}


def _chat_turns(record: Mapping[str, Any]) -> int:
    """Return the tool turns of verl's count of messages, which is 2 without a tool."""
    return max(0, (int(record.get("num_turns") or 2) - 2) // 2)
