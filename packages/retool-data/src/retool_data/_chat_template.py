"""Compare our token ids with what a model's own chat template writes for the whole conversation."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NoReturn

from ._findings import Finding, finding
from ._records import Trajectory
from ._samples import SpanKind, TokenSample
from ._write import chat_messages


class ChatTemplate:
    """A Jinja chat template with the functions that Hugging Face gives it."""

    def __init__(self, source: str) -> None:
        """Compile.

        Raises:
            ValueError: The text is not a Jinja template.
        """
        jinja2 = import_module("jinja2")
        sandbox = import_module("jinja2.sandbox")

        class Generation(import_module("jinja2.ext").Extension):
            """`{% generation %}` marks the assistant's words; for the text it changes nothing."""

            tags = frozenset({"generation"})

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = datetime.now(UTC).strftime
        self._error = jinja2.TemplateError
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template does not compile: {error}") from error

    def render(self, trajectory: Trajectory) -> str:
        """Write prompt and reply as one text, as a trainer does that applies the template.

        Raises:
            ValueError: The template refuses the messages.
        """
        try:
            return self._template.render(
                messages=chat_messages(trajectory),
                tools=trajectory.tool_specs or None,
                add_generation_prompt=False,
            )
        except (self._error, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes <, > and & for HTML; Hugging Face's does not.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise import_module("jinja2").TemplateError(message)


def template_difference(
    trajectory: Trajectory,
    sample: TokenSample,
    template: ChatTemplate,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> Finding | None:
    """Report where the model's own template, applied to the whole conversation, differs from us.

    What the template writes after the last id is no difference: a newline behind the last
    end-of-turn, which no rollout ever samples.

    Args:
        trajectory: The conversation.
        sample: Its ids as `tokenize` built them.
        template: The model's chat template.
        encode: Text to ids, with control tokens parsed, as a trainer encodes a rendered template.
        decode: Ids to text, for the report.

    Returns:
        A `template_difference` finding that shows both sides, or None.
    """
    theirs = list(encode(template.render(trajectory)))
    ours = list(sample.ids)
    if theirs[: len(ours)] == ours:
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    span = next((s for s in sample.spans if s.start <= at < s.end), None)
    kind = span.kind if span is not None else SpanKind.TURN
    start = max(0, at - 4)
    shown = (
        f"ours {decode(ours[start : at + 8])!r} {ours[at : at + 4]}, "
        f"template {decode(theirs[start : at + 8])!r} {theirs[at : at + 4]}"
    )
    return finding(
        "template_difference",
        sample.provenance,
        sample.problem_id,
        f"first differs in the {kind}; ours has {len(ours)} ids, the template's {len(theirs)}",
        where=f"token {at}",
        evidence=shown,
    )
