"""ReTool's own format: programs in code tags, their output in interpreter tags, one message."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._dialect import Dialect
from ._turn import (
    MalformedCall,
    ToolCallRequest,
    Turn,
    find_answer,
    find_outside_thoughts,
)

CODE_TOOL = "code_interpreter"
_CODE, _END_CODE = "<code>", "</code>"
_TAG = re.compile(_CODE)

RETOOL_INSTRUCTION = """\
Solve the problem step by step. You may write Python code to help your reasoning. Put each program
between code tags:
<code>
```python
print(1 + 1)
```
</code>
It is executed, and what it prints comes back between <interpreter> and </interpreter>. Write
complete programs, with their imports, and print what you want to see. End with the final answer
in this form:
<answer>
\\boxed{the final answer}
</answer>"""
"""A system prompt for a model that does not know the format. ReTool's data brings its own."""


class RetoolDialect(Dialect):
    """A turn ends at `</code>`; the output follows in the same message and the policy writes on.

    Tools are not listed in the prompt: there is one, and the tags are its call.
    """

    name = "retool"

    def __init__(self, *args: Any, **options: Any) -> None:
        """Build from the model's own chat template; arguments as for `Dialect`."""
        super().__init__(*args, **options)
        self.stop = (_END_CODE, *self.stop)

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Render the prompt without a list of tools."""
        return super().prompt_ids(messages, ())

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        """Encode prose and one program, which ends the turn; or prose and the end of the message.

        Raises:
            ValueError: Two calls, or a call without a program.
        """
        if not calls:
            return self.tokenizer.encode_pieces([*self.own_words(text), (self.end_of_turn, True)])
        if len(calls) > 1:
            raise ValueError(
                f"a turn of the retool dialect ends with its first call, got {len(calls)}"
            )
        program = f"{_CODE}\n```python\n{code_of(calls[0])}\n```\n{_END_CODE}"
        return self.tokenizer.encode_pieces([*self.own_words(text), (program, False)])

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        """The output between interpreter tags, on a line of its own."""
        text = "".join(f"\n<interpreter>{reply}</interpreter>\n" for reply in replies)
        return self.tokenizer.encode_text(text)

    def parse(self, text: str) -> Turn:
        """Read the first program outside thoughts, or the answer."""
        tag = find_outside_thoughts(text, _TAG, thinking=self.opens_thought)
        if tag is None:
            # The stop string may end inside a token, so it is not always the end of the text.
            if _END_CODE not in text:
                return Turn(text=text, answer=_answer(text))
            where = "inside a thought" if _CODE in text else f"without {_CODE}"
            call = MalformedCall(text=text[-200:], problem=f"{_END_CODE} stands {where}")
            return Turn(text=text, calls=(call,), ends=False)
        end = text.find(_END_CODE, tag.end())
        if end < 0:
            call = MalformedCall(text=text[tag.start() :][:200], problem=f"{_END_CODE} is missing")
            return Turn(text=text[: tag.start()], calls=(call,), ends=False)
        code = without_fence(text[tag.end() : end])
        said = text[: tag.start()] + text[end + len(_END_CODE) :]
        if not code:
            call = MalformedCall(
                text=text[tag.start() : end][:200], problem="there is no program in it"
            )
            return Turn(text=said, calls=(call,), ends=False)
        request = ToolCallRequest(name=CODE_TOOL, arguments={"code": code})
        return Turn(text=said, calls=(request,), ends=False)

    @property
    def call_form(self) -> str:
        """How to write a call."""
        return f"Write each program between {_CODE} and {_END_CODE}, in a ```python block."


def code_of(call: Mapping[str, Any]) -> str:
    """The program of a call.

    Raises:
        ValueError: It has none.
    """
    arguments = call["arguments"]
    code: Any = arguments.get("code") if isinstance(arguments, Mapping) else arguments  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    if not isinstance(code, str):
        raise ValueError(f"this dialect has one tool, whose argument is `code`; got {call!r:.200}")
    return code


def without_fence(text: str) -> str:
    """Take a program out of its Markdown fence, if it stands in one."""
    program = text.strip()
    if program.startswith("```"):
        program = program.partition("\n")[2] if "\n" in program else program.strip("`")
        program = program.removesuffix("```")
    return program.strip("\r\n") if program.strip() else ""


def _answer(text: str) -> str | None:
    start = text.rfind("<answer>")
    end = text.find("</answer>", start) if start >= 0 else -1
    if end < 0:
        return find_answer(text)
    inside = text[start + len("<answer>") : end]
    return find_answer(inside) or inside.strip() or None
