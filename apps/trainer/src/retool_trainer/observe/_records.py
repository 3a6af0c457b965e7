"""One trajectory as it is kept, shown and replayed: a plain value that the pipeline fills."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from retool_rollout import Trajectory

Speaker = Literal["prompt", "policy", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of tokens by one speaker; `tool` includes the framing of the next turn."""

    speaker: Speaker
    start: int
    end: int
    """The tokens are `ids[start:end]`."""
    text: str
    """Their decoding, control tokens shown. For reading only: nothing is encoded from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call and how it ended."""

    turn: int
    """From 0."""
    name: str
    arguments: str
    """As JSON."""
    outcome: str
    ok: bool
    text: str
    """What the policy read."""
    wall_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One trajectory of a step with all that training and grading knew of it.

    `ids`, `mask`, `engine_logprobs`, `weight_versions` and, where they are not None,
    `policy_logprobs` and `reference_logprobs` have one length.
    """

    step: int
    group: int
    """Which group of the step, from 0."""
    sample: int
    """Which trajectory of the group, from 0."""
    problem_id: str
    gold: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the policy sampled the token."""
    engine_logprobs: tuple[float, ...]
    """As recorded when sampled; 0.0 outside the mask."""
    policy_logprobs: tuple[float, ...] | None = None
    """Under the policy before the step's first update; None where they were not computed."""
    reference_logprobs: tuple[float, ...] | None = None
    weight_versions: tuple[int | None, ...]
    """Updates that the sampling weights had seen; None outside the mask."""
    prompt_length: int
    segments: tuple[Segment, ...] = ()
    pieces: tuple[str, ...] = ()
    """Each token's own text, for the viewer; may be empty."""
    calls: tuple[Call, ...] = ()
    num_turns: int
    status: str
    stop_reason: str
    answer: str | None = None
    correct: bool | None = None
    """None: could not be graded."""
    reward: float | None = None
    """None: not a sample to learn from."""
    reward_components: Mapping[str, float] = field(default_factory=dict[str, float])
    advantage: float | None = None
    """None: it was not in the batch."""
    wall_time_s: float = 0.0
    error: str | None = None

    def __post_init__(self) -> None:
        lengths = {
            name: len(values)
            for name, values in (
                ("ids", self.ids),
                ("mask", self.mask),
                ("engine_logprobs", self.engine_logprobs),
                ("weight_versions", self.weight_versions),
                ("policy_logprobs", self.policy_logprobs),
                ("reference_logprobs", self.reference_logprobs),
                ("pieces", self.pieces or None),
            )
            if values is not None
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"per-token columns must have one length, got {lengths}")

    @property
    def trained(self) -> bool:
        """It was in the batch."""
        return self.advantage is not None

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)


def make_record(
    trajectory: Trajectory,
    *,
    step: int,
    group: int,
    sample: int,
    gold: str,
    decode: Callable[[Sequence[int]], str] | None = None,
    correct: bool | None = None,
    reward: float | None = None,
    reward_components: Mapping[str, float] | None = None,
    advantage: float | None = None,
    policy_logprobs: Sequence[float] | None = None,
    reference_logprobs: Sequence[float] | None = None,
) -> SampleRecord:
    """Join a trajectory with what grading and training made of it.

    Args:
        trajectory: As the rollout returned it.
        step: The step that drew it.
        group: Its group in the step, from 0.
        sample: Its place in the group, from 0.
        gold: The problem's answer, as text.
        decode: ids -> text with control tokens shown; None leaves the texts out.
        correct: The grade.
        reward: The shaped reward.
        reward_components: Its parts.
        advantage: Of the trajectory; None when it is not in the batch.
        policy_logprobs: One per id, before the update.
        reference_logprobs: One per id.
    """
    return SampleRecord(
        step=step,
        group=group,
        sample=sample,
        problem_id=trajectory.problem_id,
        gold=gold,
        ids=trajectory.ids,
        mask=trajectory.mask,
        engine_logprobs=trajectory.logprobs,
        policy_logprobs=_floats(policy_logprobs),
        reference_logprobs=_floats(reference_logprobs),
        weight_versions=trajectory.weight_versions,
        prompt_length=trajectory.prompt_length,
        segments=(
            split_segments(trajectory.ids, trajectory.mask, trajectory.prompt_length, decode)
            if decode
            else ()
        ),
        pieces=token_pieces(trajectory.ids, decode) if decode else (),
        calls=tuple(
            Call(
                turn=index,
                name=call.name,
                arguments=json.dumps(dict(call.arguments), ensure_ascii=False),
                outcome=call.outcome,
                ok=call.ok,
                text=call.text,
                wall_time_s=call.wall_time_s,
            )
            for index, turn in enumerate(trajectory.turns)
            for call in turn.calls
        ),
        num_turns=len(trajectory.turns),
        status=str(trajectory.status),
        stop_reason=str(trajectory.stop_reason),
        answer=trajectory.answer,
        correct=correct,
        reward=reward,
        reward_components=dict(reward_components or {}),
        advantage=advantage,
        wall_time_s=trajectory.wall_time_s,
        error=trajectory.error,
    )


def split_segments(
    ids: Sequence[int],
    mask: Sequence[int],
    prompt_length: int,
    decode: Callable[[Sequence[int]], str],
) -> tuple[Segment, ...]:
    """Cut a trajectory where the speaker changes."""
    segments: list[Segment] = []
    start = 0
    while start < len(ids):
        end = prompt_length if start < prompt_length else start + 1
        while start >= prompt_length and end < len(ids) and mask[end] == mask[start]:
            end += 1
        speaker: Speaker = (
            "prompt" if start < prompt_length else "policy" if mask[start] else "tool"
        )
        text = decode(ids[start:end])
        segments.append(Segment(speaker=speaker, start=start, end=end, text=text))
        start = end
    return tuple(segments)


def token_pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[str, ...]:
    """Decode each token alone; part of a character shows as U+FFFD."""
    return tuple(_piece(decode, token) for token in ids)


@lru_cache(maxsize=1 << 18)  # a vocabulary's worth: decoding costs more than the rest of a record
def _piece(decode: Callable[[Sequence[int]], str], token: int) -> str:
    return decode([token])


def _floats(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)
