"""Render a chat template into pieces, so that content stays apart from control tokens."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, cast

from ._tokenizer import Piece

# Private-use characters: no template tests for them, trims them or escapes them.
_OPEN, _CLOSE = "\uf8d0", "\uf8d1"

CHATML_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages and messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '\\n' }}</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages and messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
{{ '\\n' }}<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- elif message.role != 'system' or not loop.first %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The Qwen layout with the mission's tool format, for a tokenizer that brings no chat template."""


class TemplateError(ValueError):
    """The chat template cannot be rendered, or loses a message."""


class ChatTemplate:
    """A Jinja chat template, rendered as Hugging Face renders it."""

    def __init__(self, source: str, *, options: Mapping[str, Any] | None = None) -> None:
        """Compile.

        Args:
            source: The Jinja text.
            options: Further template variables, such as `{"enable_thinking": False}`.

        Raises:
            TemplateError: The Jinja text does not compile.
        """
        import jinja2
        from jinja2.ext import Extension
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """`{% generation %}` marks trainable text for masks made of templates; ours are not."""

            tags = {"generation"}  # noqa: RUF012 - Jinja declares it on the instance

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        environment.filters.update(tojson=_to_json)  # pyright: ignore[reportUnknownMemberType]
        environment.globals.update(  # pyright: ignore[reportUnknownMemberType]
            raise_exception=_raise, strftime_now=_now
        )
        self._jinja_error = jinja2.TemplateError
        self._options = dict(options or {})
        self.source = source
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error

    def pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> list[Piece]:
        """Render; message contents and string arguments of calls become content pieces.

        Raises:
            TemplateError: The template refuses the messages or leaves the content of one out.
        """
        contents: list[str] = []

        def marker(text: str) -> str:
            if not text:  # a template may ask whether there is any
                return ""
            contents.append(text)
            return f"{_OPEN}{len(contents) - 1}{_CLOSE}"

        try:
            text = self._template.render(
                messages=[_mark(message, marker) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=add_generation_prompt,
                **self._options,
            )
        except TemplateError:
            raise
        except (self._jinja_error, LookupError, TypeError, ValueError, AttributeError) as error:
            raise TemplateError(f"the chat template refused the messages: {error}") from error
        return _split(text, contents)


def _mark(message: Mapping[str, Any], marker: Any) -> dict[str, Any]:
    marked = dict(message)
    marked["content"] = marker(plain_content(message.get("content")))
    if calls := message.get("tool_calls"):
        marked["tool_calls"] = [_mark_call(call, marker) for call in calls]
    return marked


def plain_content(content: Any) -> str:
    """The text of a message's content, which may come in parts.

    Raises:
        TemplateError: It is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):  # OpenAI's list of parts
        parts = cast("Sequence[Mapping[str, Any]]", content)
        if all(part.get("type") == "text" for part in parts):
            return "".join(str(part["text"]) for part in parts)
    raise TemplateError(f"a message's content must be text, got {content!r:.200}")


def _mark_call(call: Mapping[str, Any], marker: Any) -> dict[str, Any]:
    function = cast("Mapping[str, Any]", call.get("function", call))
    arguments: Any = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    marked = _mark_strings(arguments, marker)
    return {"type": "function", "function": {"name": function["name"], "arguments": marked}}


def _mark_strings(value: Any, marker: Any) -> Any:
    """Mark the texts of an argument, however deep they stand."""
    if isinstance(value, str):
        # Inside the rendered JSON the text stands escaped, so its content piece is escaped too.
        return marker(json.dumps(value, ensure_ascii=False)[1:-1])
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: _mark_strings(inner, marker) for key, inner in items}
    if isinstance(value, list):
        return [_mark_strings(inner, marker) for inner in cast("list[Any]", value)]
    return value


def _split(text: str, contents: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    seen: set[int] = set()
    for i, part in enumerate(text.split(_OPEN)):
        if i > 0:
            number, _, part = part.partition(_CLOSE)
            seen.add(int(number))
            pieces.append((contents[int(number)], False))
        if part:
            pieces.append((part, True))
    if missing := set(range(len(contents))) - seen:
        lost = contents[min(missing)]
        raise TemplateError(f"the chat template left out the content of a message: {lost!r:.200}")
    return pieces


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    # Jinja's own filter escapes <, > and & for HTML; the model must see the characters themselves.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _now(layout: str) -> str:
    return datetime.now(UTC).astimezone().strftime(layout)


def _raise(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
