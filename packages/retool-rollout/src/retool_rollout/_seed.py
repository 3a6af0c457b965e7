r"""The format of slime's and vime's retool example: four ways to call, `Answer: \boxed{}`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._dialect import Dialect
from ._hermes import read_tagged_call
from ._retool import CODE_TOOL, code_of, without_fence
from ._template import TemplateError, plain_content
from ._tokenizer import Piece
from ._turn import (
    MAX_PARSED_CALLS,
    MalformedCall,
    ToolCallRequest,
    Turn,
    closing_brace,
    find_outside_thoughts,
)

_CALL = re.compile("<tool_call>")
_CODE = re.compile("<code>")
_FENCE = re.compile("```python")
# No two quantifiers touch, so that this stays linear whatever the text.
_ANSWER = re.compile(r"Answer:\s*\\boxed\{")
MAX_ANSWERS_TRIED = 8

# What the example sends, to the letter: a model trained with it knows these sentences and no
# others.
SEED_SYSTEM_PROMPT = (
    "You are a helpful assistant that can use Python tools to solve mathematical problems. "
    "When you need to perform calculations, use the code_interpreter tool to execute code and "
    "get results."
)
_TOOLS_HEAD = """
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_NUDGE = (
    "\nMy previous action is invalid. If I want to execute code, I should put the code between "
    "<code> and </code>. If I want to give the final answer, I should use the format "
    "'Answer: \\boxed{answer}'. Let me try again.\n"
)


class SeedDialect(Dialect):
    r"""For checkpoints of that example; new work does better with `hermes`.

    Its role headers have lost the newline behind them, and its prompt is the same here to the
    letter. A turn that neither calls nor answers does not end the trajectory: the policy is told so
    and
    goes on.
    """

    name = "seed"

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Render the prompt as the example does, its lost newlines included."""
        return self.tokenizer.encode_pieces(seed_pieces(self._with_system(messages), tools))

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode prose, calls in JSON, and the end of the turn."""
        pieces: list[Piece] = [*self.own_words(text)]
        for i, call in enumerate(calls):
            if text or i > 0:
                pieces.append(("\n", False))
            body = json.dumps(
                {"name": call["name"], "arguments": {"code": code_of(call)}}, ensure_ascii=False
            )
            pieces += [("<tool_call>", True), (f"\n{body}\n", False), ("</tool_call>", True)]
        return self.tokenizer.encode_pieces([*pieces, (self.end_of_turn, True)])

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        """A block of interpreter output for each reply, without a header of a next turn."""
        text = "".join(f"\n\n<interpreter>\n{reply}\n</interpreter>\n\n" for reply in replies)
        return self.tokenizer.encode_text(text)

    def next_user_ids(self, text: str) -> list[int]:
        """A user turn in the example's layout."""
        opening = ("\n<|im_start|>user", True)
        closing = ("<|im_end|>\n<|im_start|>assistant", True)
        return self.tokenizer.encode_pieces([opening, (text, False), closing])

    def nudge_ids(self) -> list[int]:
        """What a turn that neither calls nor answers is told."""
        return self.tokenizer.encode_text(_NUDGE)

    def parse(self, text: str) -> Turn:
        r"""Look for `Answer: \boxed{}`, then tool_call tags, code tags, and a fenced program."""
        answer = find_seed_answer(text, thinking=self.opens_thought)
        if answer is not None:
            return Turn(text=text, answer=answer)
        return Turn(text=text, calls=_calls(text, thinking=self.opens_thought), ends=False)

    @property
    def call_form(self) -> str:
        """How to write a call."""
        return (
            'Write each call as {"name": "code_interpreter", "arguments": {"code": <program>}} '
            "between <tool_call> and </tool_call>, or a program between <code> and </code>."
        )


def seed_pieces(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Piece]:
    """Render messages and tools in the example's layout, up to the header of the policy's turn.

    Raises:
        TemplateError: A message has no role, or its content is no text.
    """
    if any("role" not in message for message in messages):
        raise TemplateError("a message has no role")
    system = SEED_SYSTEM_PROMPT
    if messages and messages[0]["role"] == "system":
        system, messages = plain_content(messages[0].get("content")), messages[1:]
    pieces: list[Piece] = [("<|im_start|>system", True), (system, False)]
    if tools:
        listed = "".join(_html_safe_json(tool) for tool in tools)
        pieces.append((_TOOLS_HEAD + listed + _TOOLS_TAIL, True))
    pieces.append(("\n<|im_end|>", True))
    for message in messages:
        if message["role"] in ("user", "assistant"):
            header = (f"\n<|im_start|>{message['role']}", True)
            content = plain_content(message.get("content"))
            pieces += [header, (content, False), ("<|im_end|>", True)]
    pieces.append(("\n<|im_start|>assistant", True))
    return pieces


def find_seed_answer(text: str, *, thinking: bool = False) -> str | None:
    r"""The content of the first `Answer: \boxed{...}` outside thoughts, braces balanced."""
    position = 0
    for _ in range(MAX_ANSWERS_TRIED):
        tag = find_outside_thoughts(text, _ANSWER, position, thinking=thinking)
        if tag is None:
            return None
        end = closing_brace(text, tag.end() - 1)
        if end is not None:
            return text[tag.end() : end].strip()
        position, thinking = tag.end(), False
    return None


def first_program(text: str) -> str | None:
    """The program that a turn asks for first, whichever of the four ways it uses."""
    for call in _calls(text, thinking=False):
        if isinstance(call, ToolCallRequest) and call.name == CODE_TOOL:
            code = call.arguments.get("code")
            if isinstance(code, str) and code.strip():
                return code
    return None


def _calls(text: str, *, thinking: bool) -> tuple[ToolCallRequest | MalformedCall, ...]:
    written = _json_calls(text, thinking=thinking)
    if any(isinstance(call, ToolCallRequest) for call in written):
        return written
    # Behind a broken call, a good program in other tags is what was meant.
    for opening, closing in ((_CODE, "</code>"), (_FENCE, "```")):
        tag = find_outside_thoughts(text, opening, thinking=thinking)
        end = text.find(closing, tag.end()) if tag else -1
        if tag and end >= 0 and (code := without_fence(text[tag.end() : end])):
            return (ToolCallRequest(name=CODE_TOOL, arguments={"code": code}),)
    return written


def _json_calls(text: str, *, thinking: bool) -> tuple[ToolCallRequest | MalformedCall, ...]:
    calls: list[ToolCallRequest | MalformedCall] = []
    position = 0
    while len(calls) < MAX_PARSED_CALLS:
        tag = find_outside_thoughts(text, _CALL, position, thinking=thinking and not calls)
        if tag is None:
            break
        call, position = read_tagged_call(text, tag.end())
        calls.append(call)
    return tuple(calls)


def _html_safe_json(value: Any) -> str:
    # The example's Jinja filter sorts keys and escapes these four.
    text = json.dumps(value, sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
