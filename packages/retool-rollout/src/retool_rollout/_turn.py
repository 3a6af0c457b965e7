"""What a policy's turn says: prose, calls, malformed calls, an answer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

MAX_PARSED_CALLS = 64
"""Calls that are read in one turn: far above any limit in use, and hostile turns stay cheap."""

# strict=False: models write raw newlines inside the "code" string; the JSON is otherwise fine.
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRequest:
    """A call that can be executed."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedCall:
    """Something that was meant as a call and cannot be executed."""

    text: str
    """What the policy wrote."""
    problem: str
    """What is wrong with it and how it should look; the policy reads this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One parsed turn."""

    text: str
    """The policy's prose, without its calls."""
    calls: tuple[ToolCallRequest | MalformedCall, ...] = ()
    answer: str | None = None
    """The final answer that the turn states, if any."""
    ends: bool = True
    """Nothing follows this turn: it answers, or it asks for nothing."""


def find_outside_thoughts(
    text: str, opening: re.Pattern[str], position: int = 0, *, thinking: bool = False
) -> re.Match[str] | None:
    """Find an opening that is not part of a thought.

    Args:
        text: The turn.
        opening: What to look for.
        position: Where to begin.
        thinking: Whether a thought is open there.
    """
    match: re.Match[str] | None = None
    while True:
        if thinking:
            closing = text.find("</think>", position)
            if closing < 0:
                return None
            position = closing + len("</think>")
        # The match is kept while thoughts before it are skipped: searching anew each time
        # is quadratic.
        if match is None or match.start() < position:
            match = opening.search(text, position)
            if match is None:
                return None
        thought = text.find("<think>", position, match.start())
        if thought < 0:
            return match
        position = thought + len("<think>")
        thinking = True


def read_call(text: str, start: int) -> tuple[ToolCallRequest | MalformedCall, int]:
    """Read the JSON object of a call.

    Args:
        text: The turn.
        start: Where the object should begin (white space may come first).

    Returns:
        The call and the position behind the object; for JSON that does not parse, that position is
        -1.
    """
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    if not text.startswith("{", start):
        return MalformedCall(
            text=text[start : start + 200], problem="the call is not a JSON object"
        ), -1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        return MalformedCall(
            text=text[start : start + 200], problem="the JSON is nested too deeply"
        ), -1
    except ValueError as error:  # JSONDecodeError, or an integer of too many digits
        reason = (
            f"{error.msg} at character {error.pos - start}"
            if isinstance(error, json.JSONDecodeError)
            else str(error)
        )
        return MalformedCall(
            text=text[start : start + 200], problem=f"the JSON does not parse: {reason}"
        ), -1
    return _checked(cast("dict[str, Any]", value), text[start:end]), end


def _checked(value: dict[str, Any], written: str) -> ToolCallRequest | MalformedCall:
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return MalformedCall(text=written, problem='the JSON has no "name" of a function')
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):  # the object encoded once more
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return MalformedCall(
                text=written, problem='"arguments" is a string that is no JSON object'
            )
    if not isinstance(arguments, dict):
        return MalformedCall(
            text=written,
            problem=f'"arguments" must be a JSON object, got {type(arguments).__name__}',
        )
    if not _is_unicode(name, written, arguments):
        return MalformedCall(
            text=repr(written), problem="it contains half of a surrogate pair (\\ud800 to \\udfff)"
        )
    return ToolCallRequest(name=name, arguments=cast("dict[str, Any]", arguments))


def _is_unicode(name: str, written: str, arguments: Any) -> bool:
    if "\\u" not in written and written.isascii():
        return True
    try:
        name.encode()
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def find_answer(text: str) -> str | None:
    r"""Find the last balanced `\boxed{...}`; else what follows the last `Answer:` of a line."""
    # From the right, a bounded number of tries: `\boxed{` repeated a million times stays linear.
    position = len(text)
    for _ in range(8):
        position = text.rfind("\\boxed{", 0, position)
        if position < 0:
            break
        end = closing_brace(text, position + len("\\boxed"))
        if end is not None:
            return text[position + len("\\boxed{") : end].strip()
    start = text.rfind("Answer:")
    if start < 0 or text[:start].rpartition("\n")[2].strip(" *#"):
        return None
    return text[start + len("Answer:") :].partition("\n")[0].strip(" *") or None


def closing_brace(text: str, opening: int, *, max_length: int = 2_000) -> int | None:
    """Position of the brace that closes the one at `opening`, looking `max_length` far."""
    depth = 0
    position = opening
    end = min(len(text), opening + max_length)
    while position < end:
        character = text[position]
        if character == "\\":  # an escaped brace is a character, not structure
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None
