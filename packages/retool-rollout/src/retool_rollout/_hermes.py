"""The Qwen format: JSON calls between tool_call tags, results between tool_response tags."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._dialect import Dialect
from ._template import TemplateError
from ._tokenizer import Piece
from ._turn import (
    MAX_PARSED_CALLS,
    MalformedCall,
    ToolCallRequest,
    Turn,
    find_answer,
    find_outside_thoughts,
    read_call,
)

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_CALL_HEAD = _CALL + '\n{"name": "'
_TAG = re.compile(_CALL)


class HermesDialect(Dialect):
    """What Qwen2.5 and Qwen3 were trained on, and the mission's tool format."""

    name = "hermes"

    def __init__(
        self,
        *args: Any,
        **options: Any,
    ) -> None:
        """Build from the model's own chat template; arguments as for `Dialect`.

        Raises:
            ValueError: The template renders a call or a result in another format.
        """
        super().__init__(*args, **options)
        self._before, self._between, self._after = self._observation_frame()

    def _observation_frame(self) -> tuple[str, str, str]:
        """Read the framing of results off the template; check that calls look as we parse them."""
        call = {"type": "function", "function": {"name": "probe", "arguments": {"code": "C"}}}
        conversation: list[Mapping[str, Any]] = [
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": "A", "tool_calls": [call]},
            {"role": "tool", "content": "R1"},
            {"role": "tool", "content": "R2"},
        ]
        advice = (
            "give make_dialect another name, or a chat_template that renders tool calls as JSON"
        )
        try:
            pieces = self._template.pieces(conversation)
        except TemplateError as error:
            raise ValueError(f"this chat template has no tool calls ({error}); {advice}") from error
        texts = [text for text, _ in pieces]
        if texts.count("C") != 1 or texts.count("R2") != 1:
            raise ValueError(f"this chat template does not render tool calls; {advice}")
        head, tail = texts[texts.index("C") - 1], texts[texts.index("C") + 1]
        expected_tail = '"}}\n' + _END_CALL + self.end_of_turn
        if not head.endswith(_CALL_HEAD + 'probe", "arguments": {"code": "') or not tail.startswith(
            expected_tail
        ):
            raise ValueError(
                f"this chat template renders a call as {head!r}C{tail!r}: not hermes; {advice}"
            )
        between = texts[texts.index("R1") + 1]
        return tail.removeprefix(expected_tail), between, texts[texts.index("R2") + 1]

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode prose, then each call on its own line, then the end of the turn."""
        pieces: list[Piece] = [*self.own_words(text)]
        for i, call in enumerate(calls):
            if text or i > 0:
                pieces.append(("\n", False))
            arguments = call["arguments"]
            written = (
                arguments
                if isinstance(arguments, str)
                else json.dumps(arguments, ensure_ascii=False)
            )
            body = f'\n{{"name": "{call["name"]}", "arguments": {written}}}\n'
            pieces += [(_CALL, True), (body, False), (_END_CALL, True)]
        pieces.append((self.end_of_turn, True))
        return self.tokenizer.encode_pieces(pieces)

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        """One user turn with a tool_response block for each reply."""
        pieces: list[Piece] = [(self._before, True)]
        for i, reply in enumerate(replies):
            if i > 0:
                pieces.append((self._between, True))
            pieces.append((reply, False))
        pieces.append((self._after, True))
        return self.tokenizer.encode_pieces(pieces)

    def parse(self, text: str) -> Turn:
        """Collect the calls outside thoughts. A turn without any ends the trajectory."""
        prose: list[str] = []
        calls: list[ToolCallRequest | MalformedCall] = []
        position = 0
        while len(calls) < MAX_PARSED_CALLS:
            thinking = self.opens_thought and not calls
            tag = find_outside_thoughts(text, _TAG, position, thinking=thinking)
            if tag is None:
                break
            prose.append(text[position : tag.start()])
            call, position = read_tagged_call(text, tag.end())
            calls.append(call)
        else:
            problem = f"only the first {MAX_PARSED_CALLS} calls of a turn are read"
            calls.append(MalformedCall(text=text[position : position + 200], problem=problem))
        prose.append(text[position:])
        if calls:  # the newline before a call belongs to the format
            prose[0] = prose[0].removesuffix("\n")
        said = "".join(prose)
        return Turn(
            text=said,
            calls=tuple(calls),
            answer=None if calls else find_answer(said),
            ends=not calls,
        )

    @property
    def call_form(self) -> str:
        """How to write a call."""
        return (
            'Write each call as {"name": <function-name>, "arguments": <args-json-object>} '
            f"between {_CALL} and {_END_CALL}."
        )


def read_tagged_call(text: str, start: int) -> tuple[ToolCallRequest | MalformedCall, int]:
    """Read the call behind an opening tag; return it and where to go on."""
    call, end = read_call(text, start)
    # The JSON says where it ends: its code may itself spell the closing tag.
    closing = text.find(_END_CALL, max(end, start))
    if closing < 0:
        if isinstance(call, ToolCallRequest):
            call = MalformedCall(text=text[start : start + 200], problem=f"{_END_CALL} is missing")
        return call, len(text)
    if end >= 0 and isinstance(call, ToolCallRequest) and text[end:closing].strip():
        call = MalformedCall(text=text[start : start + 200], problem="text follows the JSON object")
    return call, closing + len(_END_CALL)
