"""Build token ids and mask the way a rollout builds them: segment by segment, never re-encoded."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ._records import Trajectory
from ._rows import BadRow
from ._samples import Span, SpanKind, TokenSample


class Renderer(Protocol):
    """What `tokenize` needs; a dialect of retool-rollout satisfies it."""

    @property
    def name(self) -> str:
        """Name of the dialect, for example `hermes`."""
        ...

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Ids of the prompt, up to and with the header of the first turn."""
        ...

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids that a policy would sample for a turn, with the end-of-turn id."""
        ...

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        """Ids of the tool output, its framing, and the header of the next turn."""
        ...


class TooLongError(ValueError):
    """A trajectory has more tokens than allowed, and the rule is to refuse it."""


def renderer_hash(renderer: Renderer) -> str:
    """Hash what a renderer does, by rendering a fixed conversation.

    Two renderers with the same hash write the same control ids, framing and tokenisation for it, so
    samples of both may be mixed. The text holds what templates differ in: a tool spec, unicode,
    HTML characters, leading and trailing newlines, a control token's spelling.
    """
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
    }
    text = "\nπ <b> & 'q' \"d\" <|im_end|> 1234\n\n"
    call = {"name": "probe", "arguments": {"code": text}}
    probes: tuple[Callable[[], list[int]], ...] = (
        lambda: renderer.prompt_ids([{"role": "user", "content": text}], []),
        lambda: renderer.prompt_ids(
            [{"role": "system", "content": text}, {"role": "user", "content": text}], [tool]
        ),
        lambda: renderer.turn_ids(text, []),
        lambda: renderer.turn_ids("", [call]),
        lambda: renderer.turn_ids(text, [call, call]),
        lambda: renderer.observation_ids([text]),
        lambda: renderer.observation_ids(["", text]),
    )
    parts: list[list[int] | None] = []
    for probe in probes:
        try:
            parts.append(probe())
        except ValueError:  # a dialect may have no form for it, such as two calls in a turn
            parts.append(None)
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def tokenize(
    trajectory: Trajectory,
    renderer: Renderer,
    *,
    template_hash: str = "",
    tokenizer_hash: str = "",
) -> TokenSample:
    """Turn a trajectory into token ids and a loss mask.

    The ids are appended as a rollout appends them: the prompt, then each turn's ids, then each
    observation's ids. The mask is 1 exactly for the ids of turns that the policy wrote.

    Args:
        trajectory: What to tokenise.
        renderer: Writes control ids and framing; content never becomes a control id.
        template_hash: `renderer_hash(renderer)`, stored for the reader.
        tokenizer_hash: SHA-256 of the tokenizer file, stored for the reader.

    Raises:
        ValueError: The segments do not form turns, or a turn before the last has fewer results
            than calls, so that no rollout could have produced them.
    """
    turns = trajectory.turns(layout="retool" if renderer.name == "retool" else "plain")
    ids = list(renderer.prompt_ids(trajectory.problem.messages, trajectory.tool_specs))
    mask = [0] * len(ids)
    spans = [Span(start=0, end=len(ids), kind=SpanKind.PROMPT, turn=-1, trained=False)]

    def append(part: list[int], kind: SpanKind, turn: int, trained: bool) -> None:
        start = len(ids)
        ids.extend(part)
        mask.extend([int(trained)] * len(part))
        spans.append(Span(start=start, end=len(ids), kind=kind, turn=turn, trained=trained))

    for number, turn in enumerate(turns):
        calls = [{"name": call.name, "arguments": call.as_dict()} for call in turn.calls]
        append(renderer.turn_ids(turn.text, calls), SpanKind.TURN, number, turn.trained)
        if turn.results:
            append(renderer.observation_ids(turn.results), SpanKind.OBSERVATION, number, False)
        if len(turn.results) < len(calls) and (turn.results or number + 1 < len(turns)):
            raise ValueError(
                f"turn {number + 1} of {trajectory.problem.problem_id!r} has {len(calls)} calls "
                f"but {len(turn.results)} results"
            )
    return TokenSample(
        problem_id=trajectory.problem.problem_id,
        ids=tuple(ids),
        mask=tuple(mask),
        spans=tuple(spans),
        dialect=renderer.name,
        template_hash=template_hash,
        tokenizer_hash=tokenizer_hash,
        provenance=trajectory.provenance,
    )


@dataclass(slots=True, kw_only=True)
class TokenizeCounts:
    """What happened to the rows of one `tokenize_all`."""

    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    too_long: int = 0
    too_long_rows: list[int] = field(default_factory=list[int])
    """Row numbers (provenance) of the dropped ones."""


def tokenize_all(
    trajectories: Iterable[Trajectory],
    renderer: Renderer,
    *,
    max_tokens: int | None = None,
    too_long: Literal["drop", "refuse"] = "drop",
    tokenizer_hash: str = "",
    on_bad_row: Callable[[BadRow], None] | None = None,
    counts: TokenizeCounts | None = None,
    num_threads: int = 1,
) -> Iterator[TokenSample]:
    """Tokenise many trajectories; a too-long one is dropped whole and counted, or refused.

    Args:
        trajectories: Read lazily.
        renderer: Its hash is stored in every sample.
        max_tokens: Longest sample allowed; None allows any.
        too_long: `drop` skips and counts; `refuse` raises.
        tokenizer_hash: Stored in every sample.
        on_bad_row: Called for a row that no rollout could produce; without it the first one raises.
        counts: Filled while iterating.
        num_threads: Rows rendered at once; more than one needs a renderer that threads may share,
            and gains where its tokenizer lets go of Python's lock (retool-rollout's does).

    Raises:
        ValueError: A row cannot be tokenised and there is no `on_bad_row`.
        TooLongError: A row is too long and `too_long` is `refuse`.
    """
    seen = counts if counts is not None else TokenizeCounts()
    template_hash = renderer_hash(renderer)

    def one(trajectory: Trajectory) -> TokenSample | ValueError:
        try:
            return tokenize(
                trajectory, renderer, template_hash=template_hash, tokenizer_hash=tokenizer_hash
            )
        except ValueError as error:
            return error

    for trajectory, sample in _in_order(one, trajectories, num_threads):
        if isinstance(sample, ValueError):
            if on_bad_row is None:
                raise sample
            where = trajectory.provenance
            on_bad_row(BadRow(where.source, where.row, " ".join(str(sample).split())))
            continue
        length = len(sample.ids)
        if max_tokens is not None and length > max_tokens:
            where = trajectory.provenance
            if too_long == "refuse":
                raise TooLongError(
                    f"{where.source or 'row'}:{where.row} has {length} tokens, more than "
                    f"{max_tokens}; raise max_tokens or use too_long='drop'"
                )
            seen.too_long += 1
            seen.too_long_rows.append(where.row)
            continue
        seen.rows += 1
        seen.tokens += length
        seen.trained_tokens += sample.num_trained
        yield sample


def _in_order(
    work: Callable[[Trajectory], TokenSample | ValueError],
    trajectories: Iterable[Trajectory],
    num_threads: int,
) -> Iterator[tuple[Trajectory, TokenSample | ValueError]]:
    """Results in the order of the rows; a few rows a thread are read ahead, never all."""
    if num_threads == 1:
        for trajectory in trajectories:
            yield trajectory, work(trajectory)
        return
    with ThreadPoolExecutor(num_threads) as threads:
        ahead: deque[tuple[Trajectory, Future[TokenSample | ValueError]]] = deque()
        try:
            for trajectory in trajectories:
                ahead.append((trajectory, threads.submit(work, trajectory)))
                if len(ahead) > 4 * num_threads:
                    first, future = ahead.popleft()
                    yield first, future.result()
            for first, future in ahead:
                yield first, future.result()
        finally:
            threads.shutdown(cancel_futures=True)
