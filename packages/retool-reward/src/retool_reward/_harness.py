"""What every framework hook does: grade, count, shape. The hooks only translate."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ._counting import count_tool_turns
from ._grade import grade
from ._shape import Reward, shape
from ._types import Answer, Gold, Grade, Span, Speaker

_ASSISTANT = "assistant"
_TOOL_ROLES = frozenset({"tool", "function", "ipython", "observation"})


def score(
    answer: Answer,
    gold: Gold,
    *,
    tool_turns: int,
    status: str = "completed",
    preset: str = "retool",
    truncated: str = "grade",
) -> tuple[Grade, Reward]:
    """Grade one answer and shape its reward."""
    found = grade(answer, gold)
    return found, shape(found.correct, tool_turns, status, preset, truncated=truncated)


def as_result(found: Grade, reward: Reward) -> dict[str, Any]:
    """Return the mapping that vime, slime and verl log: score, acc, pred and the parts."""
    return {
        "score": reward.total,
        "acc": found.correct,
        "pred": found.pred or "",
        "reason": found.reason.value,
        **{f"reward_{name}": part for name, part in reward.components.items()},
    }


def spans_of_messages(messages: object) -> Answer:
    """Return a chat's text with its speakers: a string, or a list of role and content.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, Sequence):
        raise TypeError(f"a completion is a str or a list of messages, got {messages!r}")
    spans: list[Span] = []
    for message in cast("Sequence[Any]", messages):
        role, content = _field(message, "role"), _field(message, "content")
        speaker = (
            Speaker.POLICY
            if role == _ASSISTANT
            else Speaker.TOOL
            if role in _TOOL_ROLES
            else Speaker.PROMPT
        )
        spans.append(Span(_text_of(content), speaker))
    return spans


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def _text_of(content: Any) -> str:
    """Return a message's text; content may come in parts, of which only text counts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(_field(part, "text") or "") for part in cast("Sequence[Any]", content))
    return ""


def recorded_turns(record: Any) -> int:
    """Return the tool turns of a record: `calls` that say ok, or a count that a harness kept.

    The record is a mapping or an object. `calls` wins, because repeats show in it; then `outcomes`
    (of every call; "ok" counts); then `num_tool_calls_ok`. Without any there were no tool turns.

    Raises:
        ValueError: The count is no whole number of at least 0.
    """
    calls = _field(record, "calls") if record is not None else None
    if calls is not None:
        return count_tool_turns(_as_call(call) for call in calls)
    outcomes = _field(record, "outcomes") if record is not None else None
    if outcomes is not None:
        return sum(outcome == "ok" for outcome in outcomes)
    count = _field(record, "num_tool_calls_ok") if record is not None else None
    if count is None:
        return 0
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"num_tool_calls_ok must be an int >= 0, got {count!r}")
    return count


class _RecordedCall:
    """A call that a harness recorded as a mapping."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.name = str(call.get("name", ""))
        self.arguments: str | Mapping[str, Any] | None = call.get("arguments")
        self.ok: bool = call.get("ok", False)


def _as_call(call: Any) -> Any:
    return _RecordedCall(cast("Mapping[str, Any]", call)) if isinstance(call, Mapping) else call
