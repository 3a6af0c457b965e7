"""Read a list of chat messages into a trajectory, whichever way it writes calls and outputs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ._embed import without_nulls
from ._frames import split_frame
from ._parse import (
    CODE_TOOL,
    parse_hermes,
    parse_responses,
    parse_retool,
    parse_tora,
    read_tool_calls,
)
from ._records import Kind, Message, Problem, Provenance, Segment, Speaker, Trajectory, to_json

_ROLES = {"human": "user", "gpt": "assistant", "function": "tool", "observation": "tool"}
_CODE_TOOLS = to_json([CODE_TOOL])
# Where an assistant's message keeps its thought apart (Qwen3, vLLM, gpt-oss), ...
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
# ... and what says 0 or False where it must not be trained on (OpenAI, slime, Axolotl).
_WEIGHTS = ("weight", "step_loss_mask", "train")


def read_content(value: object) -> str:
    """Read a message's content: text, or OpenAI's list of text parts.

    Raises:
        ValueError: It holds something other than text.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        parts = cast("list[object]", value)
        texts = [cast("dict[str, Any]", p).get("text") for p in parts if isinstance(p, Mapping)]
        if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            return "".join(cast("list[str]", texts))
    raise ValueError(f"content must be text, got {value!r:.80}")


def read_prompt(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[str | None, tuple[Message, ...], str]:
    """Split the messages of a prompt into system prompt, history and the last user message.

    Raises:
        ValueError: The last message is not the user's, or it is empty.
    """
    if not messages:
        raise ValueError("the prompt is empty")
    last = messages[-1]
    if _role(last) != "user":
        raise ValueError(f"a prompt must end with a user message, got role {last.get('role')!r}")
    content = read_content(last.get("content", last.get("value")))
    if not content.strip():
        raise ValueError("the prompt is empty")
    system = None
    rest = messages[:-1]
    if rest and _role(rest[0]) == "system":
        system = read_content(rest[0].get("content", rest[0].get("value")))
        rest = rest[1:]
    history = tuple(
        Message(
            role=_role(message),
            content=read_content(message.get("content", message.get("value"))),
            tool_calls=tuple(read_tool_calls(message.get("tool_calls"))),
        )
        for message in rest
    )
    return system, history, content


def read_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    problem_id: str,
    gold: str | None,
    gold_type: str,
    tools: object,
    provenance: Provenance,
) -> Trajectory:
    """Read messages into a trajectory: the prompt up to the last question, then segments.

    Raises:
        ValueError: There is no question or no reply, or the messages form no turns.
    """
    asked = [i for i, message in enumerate(messages) if _asks(message)]
    if not asked:
        raise ValueError("no user message")
    system, history, prompt = read_prompt(messages[: asked[-1] + 1])
    prefix, statement, suffix = split_frame(prompt)
    problem = Problem(
        problem_id=problem_id,
        statement=statement,
        prefix=prefix,
        suffix=suffix,
        system=system,
        history=history,
        gold=gold,
        gold_type=cast("Any", gold_type),
        provenance=provenance,
    )
    reply = messages[asked[-1] + 1 :]
    if not reply:
        raise ValueError("no assistant message after the last user message")
    dialect, segments = _read_reply(reply)
    spec = _CODE_TOOLS if dialect in ("retool", "tora") else "[]"
    return Trajectory(
        problem=problem, segments=segments, tools=_read_tools(tools or spec), dialect=dialect
    )


def _read_tools(tools: object) -> str:
    """Read tool specs as JSON text; keys that Arrow padded with null are dropped from a list.

    Raises:
        ValueError: It is no list of objects.
    """
    try:
        specs: object = json.loads(tools) if isinstance(tools, str) else without_nulls(tools)
    except ValueError as error:
        raise ValueError(f"tools are not JSON ({error}): {tools!r:.80}") from None
    listed = cast("list[object]", specs) if isinstance(specs, list) else [None]
    if not all(isinstance(spec, dict) for spec in listed):
        raise ValueError(f"tools must be a list of specs, got {tools!r:.80}")
    return tools if isinstance(tools, str) else to_json(listed)


def _role(message: Mapping[str, Any]) -> str:
    role: object = message.get("role", message.get("from"))
    name = _ROLES.get(cast("str", role), role)
    if name not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"unknown role {role!r}; expected system, user, assistant or tool")
    return cast("str", name)


def _asks(message: Mapping[str, Any]) -> bool:
    content = message.get("content", message.get("value"))
    is_result = isinstance(content, str) and content.lstrip().startswith("<tool_response>")
    return _role(message) == "user" and not is_result


def _read_reply(reply: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[Segment, ...]]:
    roles = [_role(message) for message in reply]
    texts = [_words(message) for message in reply]
    if any(message.get("tool_calls") for message in reply):
        dialect = "messages"
    elif any("<tool_call>" in text for text in texts):
        dialect = "hermes"
    elif len(reply) == 1 and "<code>" in texts[0]:
        return "retool", _required(_spoken(parse_retool(texts[0]), reply[0]))
    elif len(reply) == 1 and "```output" in texts[0]:
        return "tora", _required(_spoken(parse_tora(texts[0]), reply[0]))
    else:
        dialect = "messages"
    segments: list[Segment] = []
    previous = ""
    for role, text, message in zip(roles, texts, reply, strict=True):
        if role == "assistant":
            if previous == "assistant":
                raise ValueError("two assistant messages in a row; no rollout produces that")
            segments += _spoken(_read_turn(text, message), message)
        elif role == "system":
            raise ValueError("a system message after the last question; no rollout produces that")
        else:
            outputs = parse_responses(text)
            if outputs is None and role == "user":
                raise ValueError(f"words beside the <tool_response> blocks: {text.strip()[-80:]!r}")
            segments += [Segment.of_result(out) for out in ([text] if outputs is None else outputs)]
        previous = role
    return dialect, _required(tuple(segments))


def _words(message: Mapping[str, Any]) -> str:
    """A message's text; a thought kept apart stands before it, as Qwen3's template writes it."""
    content = read_content(message.get("content", message.get("value")))
    thought = next((message[key] for key in _THOUGHTS if message.get(key)), None)
    if thought is None or _role(message) != "assistant":
        return content
    if not isinstance(thought, str):
        raise ValueError(f"a thought must be text, got {thought!r:.80}")
    thought, content = thought.strip("\n"), content.lstrip("\n")
    return f"<think>\n{thought}\n</think>\n\n{content}"


def _spoken(segments: Sequence[Segment], message: Mapping[str, Any]) -> tuple[Segment, ...]:
    """The segments of a message, which itself may say that it must not be trained on."""
    weights = [message[key] for key in _WEIGHTS if message.get(key) is not None]
    if all(weights):
        return tuple(segments)
    return tuple(
        segment.model_copy(update={"speaker": Speaker.OTHER}) if segment.result is None else segment
        for segment in segments
    )


def _read_turn(text: str, message: Mapping[str, Any]) -> list[Segment]:
    if "<tool_call>" in text and not message.get("tool_calls"):
        return list(parse_hermes(text))
    out: list[Segment] = []
    body = text.strip()
    if body:
        start = text.index(body)
        out.append(Segment.of_text(body, before=text[:start], after=text[start + len(body) :]))
    out += [
        Segment(kind=Kind.CALL, speaker=Speaker.POLICY, call=call)
        for call in read_tool_calls(message.get("tool_calls"))
    ]
    return out


def _required(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    if not any(segment.speaker is Speaker.POLICY for segment in segments):
        raise ValueError("the assistant says nothing that may be trained on")
    return segments
