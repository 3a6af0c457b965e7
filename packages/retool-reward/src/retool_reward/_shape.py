"""Turn a verdict and a count of tool turns into a reward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Preset(StrEnum):
    """A reward table by name."""

    RETOOL = "retool"
    OUTCOME = "outcome"
    SUCCESS_GATED = "success_gated"
    SLIME = "slime"
    VERL = "verl"


class Truncated(StrEnum):
    """What a truncated trajectory earns: its grade, zero, or nothing (masked out of training)."""

    GRADE = "grade"
    ZERO = "zero"
    MASK = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward and what it is made of. `total` None means: drop the sample and count it."""

    total: float | None
    components: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


_STATUSES = frozenset({"completed", "truncated", "aborted", "failed"})
_MAX_BONUS = 0.2
_BONUS_PER_TURN = 0.05
_MAX_CONSOLATION = 0.1
_CONSOLATION_PER_TURN = 0.02
_NO_REWARD = Reward(total=None)


def shape(
    correct: bool | None,
    tool_turns: int,
    status: str = "completed",
    preset: str = "retool",
    *,
    truncated: str = "grade",
) -> Reward:
    """Reward one trajectory.

    `retool` is 1.0 + min(0.2, 0.05 n) for a correct answer and min(0.1, 0.02 n) for a wrong one.
    `outcome` is 1.0 or 0.0. `slime` and `verl` give the bits of slime's and verl's retool example:
    1.0 correct, min(-0.6, -1 + (n - 2) / 2 * 0.1) wrong, where slime puts the tool turns
    into n and verl the chat messages (2 + 2 per tool turn). `success_gated` gives the bonus of
    `retool` to correct samples only; it needs the group to hold its promise, see `shape_group`.

    Args:
        correct: The grade. None (ungradable) earns None.
        tool_turns: Tool calls that count, from the trajectory's record; see `count_tool_turns`.
        status: completed, truncated, aborted or failed. The last two earn None.
        preset: A `Preset`.
        truncated: A `Truncated`: what a truncated trajectory earns.

    Raises:
        ValueError: The count is not an int >= 0, or a name is unknown.
    """
    _check(correct, tool_turns, status)
    preset, truncated = Preset(preset), Truncated(truncated)
    if correct is None or status in ("aborted", "failed"):
        return _NO_REWARD
    if status == "truncated" and truncated is Truncated.MASK:
        return _NO_REWARD
    if status == "truncated" and truncated is Truncated.ZERO:
        return Reward(total=0.0, components=MappingProxyType({"accuracy": 0.0, "tool": 0.0}))
    return _table(correct, tool_turns, preset)


def _table(correct: bool, tool_turns: int, preset: Preset) -> Reward:
    accuracy = 1.0 if correct else 0.0
    match preset:
        case Preset.OUTCOME:
            tool = 0.0
        case Preset.RETOOL if correct:
            tool = min(_MAX_BONUS, tool_turns * _BONUS_PER_TURN)
        case Preset.RETOOL:
            tool = min(_MAX_CONSOLATION, tool_turns * _CONSOLATION_PER_TURN)
        case Preset.SUCCESS_GATED:
            tool = min(_MAX_BONUS, tool_turns * _BONUS_PER_TURN) if correct else 0.0
        case Preset.SLIME | Preset.VERL:
            num_turns = tool_turns if preset is Preset.SLIME else 2 + 2 * tool_turns
            accuracy = 1.0 if correct else -1.0
            total = accuracy if correct else min(-0.6, accuracy + (num_turns - 2) / 2 * 0.1)
            # total as the frameworks compute it, not accuracy + tool: the bits must agree
            return _reward(total, accuracy, total - accuracy)
    return _reward(accuracy + tool, accuracy, tool)


def _reward(total: float, accuracy: float, tool: float) -> Reward:
    return Reward(total=total, components=MappingProxyType({"accuracy": accuracy, "tool": tool}))


def _check(correct: object, tool_turns: object, status: str) -> None:
    if correct is not None and not isinstance(correct, bool):
        raise ValueError(f"correct must be True, False or None, got {correct!r}")
    if not isinstance(tool_turns, int) or isinstance(tool_turns, bool) or tool_turns < 0:
        raise ValueError(
            f"tool_turns must be an int >= 0, got {tool_turns!r}; count them with "
            "count_tool_turns on the trajectory's calls"
        )
    if status not in _STATUSES:
        raise ValueError(f"status must be one of {sorted(_STATUSES)}, got {status!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What `shape_group` needs to know of one trajectory."""

    correct: bool | None
    tool_turns: int
    status: str = "completed"


def shape_group(
    samples: Sequence[Sample], preset: str = "retool", *, truncated: str = "grade"
) -> list[Reward]:
    """Reward the trajectories of one problem together, in order.

    Only `success_gated` looks at the group: there is no bonus unless the group holds both outcomes,
    and the bonus is scaled so that every correct sample stays above the group's mean. With c
    of n samples correct, a correct sample without bonus has the advantage
    (n - c - (the others' bonuses)) / n, so bonuses of at most (n - c) / 2c cannot flip its sign.
    """
    rewards = [
        shape(sample.correct, sample.tool_turns, sample.status, preset, truncated=truncated)
        for sample in samples
    ]
    if Preset(preset) is not Preset.SUCCESS_GATED:
        return rewards
    accuracies = [reward.components["accuracy"] for reward in rewards if reward.total is not None]
    num_correct = sum(accuracy == 1.0 for accuracy in accuracies)
    if num_correct:
        ceiling = (len(accuracies) - num_correct) / (2 * num_correct)
        scale = min(1.0, ceiling / _MAX_BONUS)
    else:
        scale = 0.0
    return [_scaled(reward, scale) for reward in rewards]


def _scaled(reward: Reward, scale: float) -> Reward:
    if reward.total is None:
        return reward
    accuracy, tool = reward.components["accuracy"], reward.components["tool"] * scale
    return _reward(accuracy + tool, accuracy, tool)


def overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Return DAPO's soft overlong punishment, 0.0 down to -1.0 (arXiv 2503.14476, eq. 13).

    Args:
        num_tokens: Length of the response.
        max_tokens: Longest response of the run.
        buffer_tokens: The punishment rises over the last so many tokens.

    Raises:
        ValueError: A length is negative, or the buffer is not within the maximum.
    """
    if num_tokens < 0 or not 0 < buffer_tokens <= max_tokens:
        raise ValueError(
            "need num_tokens >= 0 and 0 < buffer_tokens <= max_tokens, got "
            f"{num_tokens!r}, {buffer_tokens!r}, {max_tokens!r}"
        )
    excess = num_tokens - (max_tokens - buffer_tokens)
    return -min(1.0, max(0.0, excess / buffer_tokens))


def with_terms(reward: Reward, **terms: float) -> Reward:
    """Add named terms, such as `overlong=overlong_penalty(...)` or `format=-0.1`, to a reward.

    Raises:
        ValueError: A term is not finite, or its name is taken.
    """
    if reward.total is None:
        return reward
    total = reward.total
    for name, term in terms.items():
        if name in reward.components:
            raise ValueError(f"the reward already has a term {name!r}")
        if not -1e9 < term < 1e9:
            raise ValueError(f"term {name!r} must be a finite number, got {term!r}")
        total += term
    return Reward(total=total, components=MappingProxyType({**reward.components, **terms}))
