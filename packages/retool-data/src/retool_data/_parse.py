"""Cut an assistant's text into segments, for each way of writing calls and outputs into it.

Every cut keeps its characters: joining `before + body + after` of the segments gives the text back.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from ._records import Segment, ToolCall

CODE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "A tool for executing code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to execute."}},
            "required": ["code"],
        },
    },
}
"""The tool that ReTool's data calls; its rows do not carry the spec."""

_CODE = re.compile(
    r"<code>(?P<open>\s*```(?:python|py)?[^\S\n]*\n|\n?)(?P<code>.*?)"
    r"(?P<close>\s*```\s*</code>|\s*</code>)"
    r"(?P<result>\s*<interpreter>(?P<out>.*?)</interpreter>)?"
    r"|<answer>(?P<answer>.*?)</answer>",
    re.DOTALL,
)
_TORA = re.compile(
    r"(?P<open>```python\n)(?P<code>.*?)(?P<close>\n?```)"
    r"(?P<result>(?P<out_open>\s*```output\n)(?P<out>.*?)(?P<out_close>\n?```))?",
    re.DOTALL,
)
_TOOL_CALL = re.compile(r"<tool_call>(?P<json>.*?)</tool_call>", re.DOTALL)
_TOOL_RESPONSE = re.compile(r"\s*<tool_response>\n?(?P<out>.*?)\n?</tool_response>\s*", re.DOTALL)

# strict=False: models write raw newlines inside the "code" string, and the JSON is otherwise fine.
_DECODER = json.JSONDecoder(strict=False)


def parse_retool(text: str) -> tuple[Segment, ...]:
    """Cut ReTool's layout: `<code>`, `<interpreter>` right behind it, `<answer>`.

    An `<interpreter>` that follows no code stays prose; `lint` reports it.
    """
    cut = _Cutter(text)
    for match in _CODE.finditer(text):
        cut.prose_until(match.start())
        if match["answer"] is not None:
            cut.body(Segment.of_answer, match.span("answer"), match.end(), strip=True)
            continue
        cut.body(_code_call, match.span("code"), match.end("close"))
        if match["result"] is not None:
            cut.body(Segment.of_result, match.span("out"), match.end(), strip=True)
    return cut.finish()


def parse_tora(text: str) -> tuple[Segment, ...]:
    """Cut ToRA's layout: a fenced python block and a fenced output block behind it."""
    cut = _Cutter(text)
    for match in _TORA.finditer(text):
        cut.prose_until(match.start())
        cut.body(_code_call, match.span("code"), match.end("close"))
        if match["result"] is not None:
            cut.body(Segment.of_result, match.span("out"), match.end())
    return cut.finish()


def parse_hermes(text: str) -> tuple[Segment, ...]:
    """Cut one assistant message of the hermes layout: prose, then `<tool_call>` blocks.

    Raises:
        ValueError: A block holds no JSON object with name and arguments.
    """
    cut = _Cutter(text)
    for match in _TOOL_CALL.finditer(text):
        cut.prose_until(match.start())
        try:
            value: object = _DECODER.decode(match["json"].strip())
        except ValueError as error:
            raise ValueError(
                f"a <tool_call> is not JSON ({error}): {match['json'][:80]!r}"
            ) from None
        cut.whole(*_name_and_arguments(value), match.end())
    return cut.finish()


def parse_responses(text: str) -> list[str] | None:
    """Read the outputs of a message of `<tool_response>` blocks; None where it is anything else."""
    outputs: list[str] = []
    at = 0
    while match := _TOOL_RESPONSE.match(text, at):
        outputs.append(match["out"])
        at = match.end()
    return outputs if outputs and at == len(text) else None


def _code_call(code: str, *, before: str, after: str) -> Segment:
    return Segment.of_call("code_interpreter", {"code": code}, before=before, after=after)


def _name_and_arguments(value: object) -> tuple[str, str | dict[str, Any]]:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        raise ValueError(f"a <tool_call> needs a name and arguments, got {value!r:.80}")
    return name, cast("dict[str, Any] | str", arguments)


def read_tool_calls(value: object) -> Iterator[ToolCall]:
    """Read OpenAI-style `tool_calls`; keys that Arrow padded with null are dropped.

    Raises:
        ValueError: An entry names no function.
    """
    for entry in cast("list[dict[str, Any]]", value or []):
        function = cast("dict[str, Any]", entry.get("function") or entry)
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str):
            raise ValueError(f"a tool call names no function: {entry!r:.80}")
        if isinstance(arguments, dict):
            given = cast("dict[str, Any]", arguments)
            arguments = {key: item for key, item in given.items() if item is not None}
        yield ToolCall(name=name, arguments=cast("Any", arguments if arguments is not None else {}))


class _Cutter:
    """Cuts a text into segments, left to right; each gets the characters around its body."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._segments: list[Segment] = []

    def prose_until(self, end: int) -> None:
        """Cut the text up to `end` as prose, if it is more than white space."""
        if not self._text[self._at : end].isspace() and end > self._at:
            self.body(Segment.of_text, (self._at, end), end, strip=True)

    def body(
        self, make: Callable[..., Segment], span: tuple[int, int], end: int, *, strip: bool = False
    ) -> None:
        """Cut a segment up to `end`; its body is `span`, less white space where `strip` says so."""
        start, stop = span
        text = self._text[start:stop]
        if strip:
            start += len(text) - len(text.lstrip())
            text = text.strip()
        before, after = self._text[self._at : start], self._text[start + len(text) : end]
        self._segments.append(make(text, before=before, after=after))
        self._at = end

    def whole(self, name: str, arguments: str | dict[str, Any], end: int) -> None:
        """Cut a call whose JSON the source spells in its own way: all of it is frame."""
        before = self._text[self._at : end]
        self._segments.append(Segment.of_call(name, arguments, before=before))
        self._at = end

    def finish(self) -> tuple[Segment, ...]:
        """Cut what is left: as prose, or as white space behind the last segment."""
        self.prose_until(len(self._text))
        rest = self._text[self._at :]
        if rest and self._segments:
            last = self._segments[-1]
            self._segments[-1] = last.model_copy(update={"after": last.after + rest})
        return tuple(self._segments)


def framed_text(segments: tuple[Segment, ...]) -> str:
    """Join the segments to the text they were cut from; the body of code calls is their code."""
    parts: list[str] = []
    for segment in segments:
        if segment.call is not None:
            body = segment.call.code
        else:
            body = segment.result.text if segment.result is not None else segment.text
        parts += (segment.before, body, segment.after)
    return "".join(parts)
