"""Write records in a dialect, or as the rows of another framework's file."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from ._parse import framed_text
from ._records import Kind, Problem, ToolCall, Trajectory, Turn, to_json

Fields = dict[str, Any]


def retool_text(trajectory: Trajectory) -> str:
    """Write the reply in ReTool's layout; a trajectory read from that layout comes back unchanged.

    Raises:
        ValueError: A call is not a `code_interpreter` call with one string argument `code`.
    """
    if trajectory.dialect == "retool":
        return framed_text(trajectory.segments)
    parts: list[str] = []
    for i, segment in enumerate(trajectory.segments):
        if segment.kind is Kind.RESULT:
            assert segment.result is not None
            parts.append(f"\n<interpreter>{segment.result.text}</interpreter>")
            continue
        if i > 0:
            behind_result = trajectory.segments[i - 1].kind is Kind.RESULT
            parts.append("\n" if behind_result and segment.kind is Kind.TEXT else "\n\n")
        if segment.call is not None:
            parts.append(f"<code>\n```python\n{_only_code(segment.call)}\n```\n</code>")
        elif segment.kind is Kind.ANSWER:
            parts.append(f"<answer>\n{segment.text}\n</answer>")
        else:
            parts.append(segment.text)
    return "".join(parts)


def _only_code(call: ToolCall) -> str:
    arguments = call.as_dict()
    if call.name != "code_interpreter" or list(arguments) != ["code"]:
        raise ValueError(
            f"the retool layout can only write code_interpreter(code), got "
            f"{call.name}({', '.join(arguments)}); write the hermes dialect instead"
        )
    return call.code


def hermes_turn(turn: Turn) -> str:
    """Write a turn with its calls as `<tool_call>` JSON, as Qwen's template does."""
    bodies = (
        f'{{"name": {to_json(call.name)}, "arguments": {to_json(call.as_dict())}}}'
        for call in turn.calls
    )
    calls = (f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    return "\n".join((turn.text, *calls) if turn.text else calls)


def chat_messages(trajectory: Trajectory) -> list[Fields]:
    """Write prompt and reply as messages with `tool_calls` and role `tool` (OpenAI, verl, TRL)."""
    out = trajectory.problem.messages
    for turn in trajectory.turns():
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call.as_dict()}}
            for call in turn.calls
        ]
        # Null where there is none, as verl writes it: every row then has the same columns.
        out.append({"role": "assistant", "content": turn.text, "tool_calls": calls or None})
        out += [{"role": "tool", "content": text} for text in turn.results]
    return out


def hermes_messages(trajectory: Trajectory) -> list[Fields]:
    """Write messages of role and content only; calls and outputs stand in the text."""
    out = trajectory.problem.messages
    for turn in trajectory.turns():
        out.append({"role": "assistant", "content": hermes_turn(turn)})
        if turn.results:
            blocks = (f"<tool_response>\n{text}\n</tool_response>" for text in turn.results)
            out.append({"role": "user", "content": "\n".join(blocks)})
    return out


def _retool_row(record: Problem | Trajectory) -> Fields:
    trajectory = _trajectory(record, "retool")
    reply = {"role": "assistant", "content": retool_text(trajectory)}
    return {"messages": [*trajectory.problem.messages, reply]}


def _hermes_row(record: Problem | Trajectory) -> Fields:
    trajectory = _trajectory(record, "hermes")
    return {"messages": hermes_messages(trajectory), "tools": trajectory.tools}


def _slime_row(record: Problem | Trajectory) -> Fields:
    if isinstance(record, Problem):
        # The label is text, whatever JSON type the source had: mixed types break Arrow and scorers.
        plain = record.system is None and not record.history
        return {"prompt": record.prompt if plain else record.messages, "label": record.gold}
    # slime's loader knows the roles system, user and assistant only.
    if record.dialect == "retool":
        return _retool_row(record)
    return {"messages": hermes_messages(record)}


def _verl_row(record: Problem | Trajectory) -> Fields:
    if isinstance(record, Trajectory):
        return {"messages": chat_messages(record), "tools": record.tools}
    # verl chooses its scorer by `data_source`: a row that came with one keeps it.
    own: Fields = json.loads(record.provenance.extra)
    rule = own.get("reward_model")
    style = cast("Fields", rule).get("style") if isinstance(rule, dict) else None
    return {
        "data_source": _text_or(own.get("data_source"), record.provenance.source or "retool"),
        "prompt": record.messages,
        "ability": _text_or(own.get("ability"), "math"),
        "reward_model": {"ground_truth": record.gold, "style": _text_or(style, "rule")},
        "extra_info": {"index": record.problem_id},
    }


def _text_or(value: object, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


def _trl_row(record: Problem | Trajectory) -> Fields:
    if isinstance(record, Trajectory):
        # TRL parses `tools` given as JSON text, and Arrow cannot mangle that.
        return {"messages": chat_messages(record), "tools": record.tools}
    return {"prompt": record.messages, "answer": record.gold}


def _record_row(record: Problem | Trajectory) -> Fields:
    return record.model_dump(mode="json")


TARGETS: dict[str, Callable[[Problem | Trajectory], Fields]] = {
    "records": _record_row,
    "retool": _retool_row,
    "hermes": _hermes_row,
    "slime": _slime_row,
    "vime": _slime_row,
    "verl": _verl_row,
    "trl": _trl_row,
}
"""What `convert` can write: our records, the two dialects, and the frameworks' own rows."""


def _trajectory(record: Problem | Trajectory, target: str) -> Trajectory:
    if isinstance(record, Problem):
        raise ValueError(f"{target} is a layout of trajectories, and this row is only a problem")
    return record


def difference(before: Problem | Trajectory, after: Problem | Trajectory) -> str | None:
    """Say what a record lost on its way through a file; None when it says the same.

    Compared is what training reads: the prompt as messages, a problem's gold, and each turn's text,
    calls and results, and whether it may be trained on. Where an answer was marked by tags, a
    dialect without tags keeps its words. In the retool layout white space around an output and
    behind a program belongs to the frame.
    """
    if type(before) is not type(after):
        return f"a {type(before).__name__} came back as a {type(after).__name__}"
    was = before if isinstance(before, Problem) else before.problem
    now = after if isinstance(after, Problem) else after.problem
    if was.messages != now.messages:
        return "the prompt changed"
    if isinstance(before, Problem):
        return None if was.gold == now.gold else f"the gold {was.gold!r} became {now.gold!r}"
    assert isinstance(after, Trajectory)
    was_turns, now_turns = before.turns(), after.turns()
    lost = _turn_difference(was_turns, now_turns)
    if lost is not None and after.dialect == "retool":
        return _turn_difference([_framed(turn) for turn in was_turns], now_turns)
    return lost


def _framed(turn: Turn) -> Turn:
    calls = tuple(ToolCall.of(c.name, {"code": c.code.rstrip()}) for c in turn.calls)
    results = tuple(text.strip() for text in turn.results)
    return turn.model_copy(update={"calls": calls, "results": results})


def _turn_difference(before: Sequence[Turn], after: Sequence[Turn]) -> str | None:
    if len(before) != len(after):
        return f"{len(before)} turns became {len(after)}"
    for number, (was, now) in enumerate(zip(before, after, strict=True), 1):
        if was.text != now.text:
            return f"the text of turn {number} changed"
        if not _same_calls(was.calls, now.calls):
            return f"the calls of turn {number} changed"
        if was.results != now.results:
            return f"the results of turn {number} changed"
        if was.trained != now.trained:
            return f"the mark that turn {number} must not be trained on was lost"
    return None


def _same_calls(before: Sequence[ToolCall], after: Sequence[ToolCall]) -> bool:
    # JSON that is spelled alike need not be parsed.
    return before == after or [(call.name, call.as_dict()) for call in before] == [
        (call.name, call.as_dict()) for call in after
    ]
