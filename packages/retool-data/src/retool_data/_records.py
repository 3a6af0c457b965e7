"""The records that travel: a problem, and a trajectory that says who wrote each segment."""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ._gold import GoldKind, gold_kind


class Record(BaseModel):
    """Base of every record: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def to_json(value: object) -> str:
    """Spell a value as JSON the way a chat template does: `, ` and `: `, and no escaped unicode."""
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False)  # json.dumps would make one per call


def _json_text(value: object) -> object:
    return value if isinstance(value, str) else to_json(value)


JsonText = Annotated[str, BeforeValidator(_json_text)]
"""JSON kept as text: Arrow would pad a struct's missing keys with null and refuse mixed types."""


class Provenance(Record):
    """Where a row came from and what was done to it since."""

    source: str = ""
    """File name, or Hugging Face id@revision."""
    row: int = 0
    """Line of a JSONL file or row of a table, counted from 1; 0 means not read from a file."""
    shape: str = ""
    """The recognised shape, for example `retool_raw`."""
    extra: JsonText = "{}"
    """JSON object of the columns that no field holds."""
    steps: tuple[str, ...] = ()
    """One entry per change, oldest first, for example `repair:2`."""


class ToolCall(Record):
    """One call that the policy wrote."""

    name: str
    arguments: JsonText = "{}"
    """JSON text; a mapping is accepted and written as JSON."""

    @classmethod
    def of(cls, name: str, arguments: str | Mapping[str, Any]) -> Self:
        """Make a call from a mapping or JSON text; the constructor's type admits text only."""
        return cls(name=name, arguments=_text_of(arguments))

    def as_dict(self) -> dict[str, Any]:
        """Parse the arguments.

        Raises:
            ValueError: The arguments are not a JSON object.
        """
        value: object = json.loads(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(
                f"arguments of {self.name!r} must be a JSON object, got {self.arguments[:80]!r}"
            )
        return cast("dict[str, Any]", value)

    @property
    def code(self) -> str:
        """The program of a code call: its `code` argument.

        Raises:
            ValueError: The arguments are not a JSON object with a string `code`.
        """
        code: object = self.as_dict().get("code")
        if not isinstance(code, str):
            raise ValueError(
                f"arguments of {self.name!r} have no string `code`: {self.arguments!r}"
            )
        return code


class ReplayStatus(StrEnum):
    """How a recorded tool output compares with running the call again."""

    UNCHECKED = "unchecked"
    EXACT = "exact"
    NUMERIC_CLOSE = "numeric_close"  # floats differ by rounding noise only
    SAME_ERROR = "same_error"  # the same exception, another traceback text
    MISMATCH = "mismatch"
    STATE_DEPENDENT = "state_dependent"  # equal only with the other choice of state
    NONDETERMINISTIC = "nondeterministic"  # two replays disagree
    TIMEOUT = "timeout"
    REFUSED = "refused"


class ToolResult(Record):
    """What a call returned: as recorded, and as replayed."""

    recorded: str
    replayed: str | None = None
    status: ReplayStatus = ReplayStatus.UNCHECKED
    shown: Literal["recorded", "replayed"] = "recorded"
    """Which of the two the model is trained to read."""

    # Not a model_validator: that runs again wherever the record is put into another one.
    def model_post_init(self, context: Any, /) -> None:
        """Refuse to show a replay that is not there."""
        if self.replayed is None and self.shown == "replayed":
            raise ValueError("shown='replayed' needs a replayed text; run `validate` first")

    @property
    def text(self) -> str:
        """The output the model sees."""
        return self.recorded if self.shown == "recorded" else cast("str", self.replayed)


class Kind(StrEnum):
    """What a segment is."""

    TEXT = "text"
    CALL = "call"
    RESULT = "result"
    ANSWER = "answer"  # the final answer, where the source marks it


class Speaker(StrEnum):
    """Who wrote a segment. Only the policy's own words are trained on."""

    POLICY = "policy"
    TOOL = "tool"
    OTHER = "other"  # a model's words that must not be trained on, for example a failed first try


class Segment(Record):
    """A stretch of a trajectory by one speaker.

    `before` and `after` are the characters that the source's dialect put around the body, so that
    `before + body + after` of all segments joined is the source text, byte for byte.
    """

    kind: Kind
    speaker: Speaker
    text: str = ""
    """Body of a TEXT or ANSWER segment."""
    call: ToolCall | None = None
    result: ToolResult | None = None
    before: str = ""
    after: str = ""

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a body of another kind."""
        kind = self.kind
        if (kind is Kind.CALL) != (self.call is not None):
            raise ValueError(f"a {kind} segment and `call` do not go together")
        is_result = kind is Kind.RESULT
        if is_result != (self.result is not None):
            raise ValueError(f"a {kind} segment and `result` do not go together")
        if is_result != (self.speaker is Speaker.TOOL):
            raise ValueError(f"a {kind} segment cannot be spoken by {self.speaker}")

    @classmethod
    def of_text(
        cls,
        text: str,
        *,
        speaker: Speaker = Speaker.POLICY,
        before: str = "",
        after: str = "",
    ) -> Self:
        """Make a TEXT segment."""
        return cls(kind=Kind.TEXT, speaker=speaker, text=text, before=before, after=after)

    @classmethod
    def of_answer(cls, text: str, *, before: str = "", after: str = "") -> Self:
        """Make an ANSWER segment."""
        return cls(kind=Kind.ANSWER, speaker=Speaker.POLICY, text=text, before=before, after=after)

    @classmethod
    def of_call(
        cls,
        name: str,
        arguments: str | Mapping[str, Any],
        *,
        speaker: Speaker = Speaker.POLICY,
        before: str = "",
        after: str = "",
    ) -> Self:
        """Make a CALL segment."""
        call = ToolCall.of(name, arguments)
        return cls(kind=Kind.CALL, speaker=speaker, call=call, before=before, after=after)

    @classmethod
    def of_result(cls, recorded: str, *, before: str = "", after: str = "") -> Self:
        """Make a RESULT segment."""
        result = ToolResult(recorded=recorded)
        return cls(
            kind=Kind.RESULT, speaker=Speaker.TOOL, result=result, before=before, after=after
        )


def _text_of(arguments: str | Mapping[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else to_json(dict(arguments))


class Message(Record):
    """An earlier message of a conversation; part of the prompt, never trained on."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


class Problem(Record):
    """A question with its known answer.

    The user's message is `prefix + statement + suffix`, exactly as it stood in the source.
    """

    problem_id: str
    statement: str
    prefix: str = ""
    suffix: str = ""
    system: str | None = None
    history: tuple[Message, ...] = ()
    """Messages between the system prompt and the last user message."""
    gold: str | None = None
    gold_type: Literal["str", "int", "float", "list"] = "str"
    """JSON type in the source: `204` and `"204"` are one gold, written back as they were."""
    duplicate_of: str | None = None
    """problem_id of the kept row that says the same, set by `dedupe`."""
    contaminated_by: tuple[str, ...] = ()
    """problem_ids of benchmark problems found inside, set by `decontaminate`."""
    provenance: Provenance = Provenance()

    def with_problem_fields(self, **fields: Any) -> Self:
        """Copy with other fields; the same call works on a trajectory."""
        return self.model_copy(update=fields)

    def with_step(self, step: str) -> Self:
        """Copy with one more entry in the provenance."""
        steps = (*self.provenance.steps, step)
        return self.model_copy(
            update={"provenance": self.provenance.model_copy(update={"steps": steps})}
        )

    @property
    def gold_kind(self) -> GoldKind:
        """What sort of answer the gold is."""
        return gold_kind(self.gold)

    @property
    def prompt(self) -> str:
        """The user's message."""
        return self.prefix + self.statement + self.suffix

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The prompt as chat messages: system, history, user."""
        out: list[dict[str, Any]] = []
        if self.system is not None:
            out.append({"role": "system", "content": self.system})
        for message in self.history:
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.tool_calls:
                entry["tool_calls"] = [
                    {
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.as_dict()},
                    }
                    for call in message.tool_calls
                ]
            out.append(entry)
        out.append({"role": "user", "content": self.prompt})
        return out


class Turn(Record):
    """One generation of the policy and the results of its calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()
    """What the model saw after the calls, in order; empty after the last turn."""
    trained: bool = True


class Trajectory(Record):
    """A problem and the segments that follow its prompt."""

    problem: Problem
    segments: tuple[Segment, ...]
    tools: JsonText = "[]"
    """JSON list of OpenAI tool specs; a list is accepted and written as JSON."""
    dialect: str = ""
    """Whose framing `before` and `after` are: `retool`, `hermes`, `tora`, `messages`, or none."""

    @property
    def provenance(self) -> Provenance:
        """Where the row came from."""
        return self.problem.provenance

    def with_problem_fields(self, **fields: Any) -> Self:
        """Copy with other fields of the problem."""
        return self.model_copy(update={"problem": self.problem.model_copy(update=fields)})

    def with_step(self, step: str) -> Self:
        """Copy with one more entry in the provenance."""
        return self.model_copy(update={"problem": self.problem.with_step(step)})

    @property
    def tool_specs(self) -> list[dict[str, Any]]:
        """The tool specs, parsed."""
        return cast("list[dict[str, Any]]", json.loads(self.tools))

    @classmethod
    def from_turns(
        cls,
        problem: Problem,
        turns: Iterable[Turn],
        *,
        tools: str | Sequence[Mapping[str, Any]] = "[]",
    ) -> Self:
        """Build a trajectory from whole turns.

        Args:
            problem: What was asked.
            turns: In order; every turn but the last has one result per call.
            tools: Tool specs, as a list or as JSON text.
        """
        segments: list[Segment] = []
        for turn in turns:
            speaker = Speaker.POLICY if turn.trained else Speaker.OTHER
            if turn.text:
                segments.append(Segment.of_text(turn.text, speaker=speaker))
            segments += [Segment(kind=Kind.CALL, speaker=speaker, call=call) for call in turn.calls]
            segments += [Segment.of_result(text) for text in turn.results]
        spelled = tools if isinstance(tools, str) else to_json([dict(spec) for spec in tools])
        return cls(problem=problem, segments=tuple(segments), tools=spelled)

    def turns(self, *, layout: Literal["plain", "retool"] = "plain") -> list[Turn]:
        """Group the segments into turns.

        Args:
            layout: `retool` writes an ANSWER segment as `<answer>...</answer>` and leaves an empty
                line between prose and call, because there the call continues the policy's text.

        Raises:
            ValueError: Prose follows a call before its result, a result has no call, or one turn
                mixes words that are trained on with words that are not.
        """
        out: list[Turn] = []
        text, calls, results = "", list[ToolCall](), list[str]()
        speaker: Speaker | None = None

        def close() -> None:
            gap = "\n\n" if layout == "retool" and calls and text else ""
            out.append(
                Turn(
                    text=text + gap,
                    calls=tuple(calls),
                    results=tuple(results),
                    trained=speaker is not Speaker.OTHER,
                )
            )

        for segment in self.segments:
            if segment.result is not None:
                if len(results) == len(calls):
                    raise ValueError(f"turn {len(out) + 1} has a result without a call")
                results.append(segment.result.text)
                continue
            if results:
                close()
                text, calls, results, speaker = "", [], [], None
            speaker = speaker or segment.speaker
            if speaker is not segment.speaker:
                mixed = f"{speaker} and {segment.speaker}"
                raise ValueError(f"turn {len(out) + 1} mixes the speakers {mixed}")
            if segment.call is not None:
                calls.append(segment.call)
                continue
            if calls:
                raise ValueError(f"turn {len(out) + 1} has text after a call and before its result")
            body = segment.text
            if layout == "retool" and segment.kind is Kind.ANSWER:
                body = f"<answer>\n{body}\n</answer>"
            text = f"{text}\n\n{body}" if text else body
        if text or calls:
            close()
        return out
