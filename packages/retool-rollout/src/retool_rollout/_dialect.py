"""A dialect: how prompt, turn, call, observation and answer look for one kind of model."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._template import CHATML_TOOLS, ChatTemplate, TemplateError
from ._tokenizer import Piece, Tokenizer
from ._turn import MalformedCall, Turn

_THOUGHT_TAGS = ("<think>", "</think>")


class Dialect(ABC):
    """The one place that knows the format: SFT rendering and rollout build ids with one object."""

    name: str

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tool_specs: Sequence[Mapping[str, Any]] | None = None,
        system_prompt: str | None = None,
        chat_template: str | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Build from the model's own chat template.

        Args:
            tokenizer: The model's tokenizer.
            tool_specs: The tools that the prompt lists. None: those of the executor; `()`: none.
            system_prompt: Put before messages that bring no system message of their own.
            chat_template: Instead of the tokenizer's own. A tokenizer without one gets the Qwen
                layout.
            template_options: Further variables for the template.

        Raises:
            ValueError: The template speaks another format.
        """
        self.tokenizer = tokenizer
        self.tool_specs = tuple(tool_specs) if tool_specs is not None else None
        self.system_prompt = system_prompt
        self._template = ChatTemplate(
            chat_template or tokenizer.chat_template or CHATML_TOOLS,
            options={**tokenizer.template_variables, **(template_options or {})},
        )
        self.opening, self.end_of_turn, self._header = _turn_frame(self._template, tokenizer)
        # A reasoning model's template may open the thought itself.
        self.opens_thought = self._header.rstrip().endswith("<think>")
        end_ids = [
            tokenizer.controls[token]
            for token in (self.end_of_turn, "<|endoftext|>")
            if token in tokenizer.controls
        ]
        self.stop_token_ids: tuple[int, ...] = tuple(end_ids)
        self.stop: tuple[str, ...] = (
            () if self.end_of_turn in tokenizer.controls else (self.end_of_turn,)
        )

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Render the prompt up to and including the header of the policy's first turn."""
        return self.tokenizer.encode_pieces(
            self._template.pieces(self._with_system(messages), tools)
        )

    @abstractmethod
    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids that a policy samples for a turn, with the id that ends it.

        Args:
            text: The prose before the calls.
            calls: `{"name": ..., "arguments": {...}}` each.
        """

    @abstractmethod
    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        """What follows a turn: framing, the replies, and the header of the next turn."""

    def next_user_ids(self, text: str) -> list[int]:
        """What follows a finished turn when the user speaks again."""
        conversation: list[Mapping[str, Any]] = [
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": "A"},
            {"role": "user", "content": text},
        ]
        pieces = self._template.pieces(conversation)
        position = pieces.index(("A", False)) + 1
        opening = pieces[position][0].removeprefix(self.end_of_turn)
        return self.tokenizer.encode_pieces([(opening, True), *pieces[position + 1 :]])

    @abstractmethod
    def parse(self, text: str) -> Turn:
        """Read a turn. Never raises, whatever the text; takes time linear in its length."""

    def turn_text(self, ids: Sequence[int]) -> str:
        """Decode a sampled turn without the token that ended it."""
        if ids and ids[-1] in self.stop_token_ids:
            return self.tokenizer.decode(ids[:-1])
        text = self.tokenizer.decode(ids)
        # Spelled in characters it is a stop string, and such a one may end inside a token.
        return text.partition(self.end_of_turn)[0] if self.end_of_turn in self.stop else text

    def hint(self, call: MalformedCall) -> str:
        """The reply to a malformed call."""
        return f"Error: this call was not executed: {call.problem}. {self.call_form}"

    def nudge_ids(self) -> list[int]:
        """What follows a turn that neither calls nor answers, where that does not end it all."""
        raise NotImplementedError(f"in {self.name!r} such a turn ends the trajectory")

    def own_words(self, text: str) -> list[Piece]:
        """The policy's prose; its think tags are single tokens if the tokenizer has them."""
        return [(part, part in _THOUGHT_TAGS) for part in re.split(r"(</?think>)", text) if part]

    @property
    @abstractmethod
    def call_form(self) -> str:
        """One sentence that tells a policy how to write a call."""

    def _with_system(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        if self.system_prompt is None or (messages and messages[0].get("role") == "system"):
            return list(messages)
        return [{"role": "system", "content": self.system_prompt}, *messages]


def _turn_frame(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, str, str]:
    """Read off the template what opens a prompt, ends a turn, and heads a policy's turn."""
    user: list[Mapping[str, Any]] = [{"role": "user", "content": "U"}]
    try:
        opened = template.pieces(user, add_generation_prompt=True)
        closed = template.pieces(
            [*user, {"role": "assistant", "content": "A"}], add_generation_prompt=False
        )
    except TemplateError as error:
        raise ValueError(f"this chat template cannot hold a conversation: {error}") from error
    header = literal_after(opened, "U")
    end = literal_after(closed, "A")
    tokens = sorted(tokenizer.controls, key=len, reverse=True)
    first = (token for token in tokens if opened[0][0].startswith(token))
    opening = next(first, "<|im_start|>")
    for token in tokens:
        if end.startswith(token):
            return opening, token, header
    if end.startswith("<|im_end|>"):  # a tokenizer that spells it in characters
        return opening, "<|im_end|>", header
    raise ValueError(
        f"the chat template ends a turn with {end!r:.60}: no added token of the tokenizer; "
        "give a chat_template that fits the tokenizer"
    )


def literal_after(pieces: Sequence[Piece], content: str) -> str:
    """The template's own text that follows a content piece."""
    position = pieces.index((content, False))
    return pieces[position + 1][0] if position + 1 < len(pieces) else ""


def make_dialect(
    name: str,
    tokenizer: Tokenizer,
    *,
    tool_specs: Sequence[Mapping[str, Any]] | None = None,
    system_prompt: str | None = None,
    chat_template: str | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> Dialect:
    """Make a dialect by name; the arguments are those of `Dialect`.

    Raises:
        ValueError: There is no such dialect, or the chat template does not fit it.
    """
    from ._hermes import HermesDialect
    from ._retool import RetoolDialect
    from ._seed import SeedDialect

    kinds: dict[str, Callable[..., Dialect]] = {
        kind.name: kind for kind in (HermesDialect, RetoolDialect, SeedDialect)
    }
    if name not in kinds:
        raise ValueError(f"there is no dialect {name!r}; choose one of {', '.join(sorted(kinds))}")
    return kinds[name](
        tokenizer,
        tool_specs=tool_specs,
        system_prompt=system_prompt,
        chat_template=chat_template,
        template_options=template_options,
    )
