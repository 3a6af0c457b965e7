"""Count the tool turns that a reward may see, from a trajectory's record."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast


class Call(Protocol):
    """One tool call as a trajectory records it."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> str | Mapping[str, Any] | None: ...
    @property
    def ok(self) -> bool: ...


def count_tool_turns(calls: Iterable[Call]) -> int:
    """Count the calls that count: executed, successful, and not made before.

    The record decides, never the text: a call counts when its executor said `ok`. A call that
    failed, timed out, was refused, malformed or unknown is worth nothing, and a repeat of an
    earlier call (same name, same arguments but for white space) is worth nothing either, so
    that running `print(1)` five times is one tool turn.

    Args:
        calls: Every call of the trajectory's policy before its final answer, in order.

    Raises:
        TypeError: A call's `ok` is not a bool.
    """
    seen: set[tuple[str, str]] = set()
    for call in calls:
        ok = cast("object", call.ok)  # a record from outside may hold anything
        if not isinstance(ok, bool):
            raise TypeError(f"a call's ok must be a bool, got {ok!r} of {call!r}")
        if ok:
            seen.add((call.name, _spelled(call.arguments)))
    return len(seen)


def _spelled(arguments: str | Mapping[str, Any] | None) -> str:
    if isinstance(arguments, Mapping):
        return repr(sorted((str(key), " ".join(str(arguments[key]).split())) for key in arguments))
    return " ".join(str(arguments).split())
