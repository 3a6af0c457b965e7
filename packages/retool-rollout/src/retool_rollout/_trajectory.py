"""A finished (or interrupted) trajectory: its tokens, who spoke them, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a trajectory ended."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    """A limit cut it; the tokens are good."""
    ABORTED = "aborted"
    """Our side failed or interrupted it: not a sample. It can be resumed."""
    FAILED = "failed"
    """It could not even start, and trying again will not help."""


class StopReason(StrEnum):
    """Why exactly it ended."""

    ANSWERED = "answered"  # completed
    NO_CALL = "no_call"
    MAX_TURNS = "max_turns"  # truncated
    MAX_CALLS = "max_calls"
    TURN_LENGTH = "turn_length"
    RESPONSE_LENGTH = "response_length"
    CONTEXT_LENGTH = "context_length"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"  # aborted
    ENGINE_ERROR = "engine_error"
    BAD_LOGPROBS = "bad_logprobs"
    TOOL_ERROR = "tool_error"
    PROMPT_TOO_LONG = "prompt_too_long"  # failed
    BAD_PROMPT = "bad_prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call of a turn and how it ended."""

    name: str
    arguments: Mapping[str, Any]
    outcome: str
    ok: bool
    text: str
    """What the policy read, after the cut."""
    wall_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One generation and its tool results."""

    text: str
    """What the policy wrote, calls included, without the token that ends the turn."""
    start: int
    end: int
    """The sampled tokens are `ids[start:end]`."""
    observation_end: int
    """The observation is `ids[end:observation_end]`."""
    complete: bool
    """The policy finished the turn; False after an interruption or a length stop."""
    calls: tuple[CallRecord, ...] = ()
    """Empty until the tools have run."""
    generate_s: float = 0.0
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Tokens as they were sampled and appended, never decoded and encoded again."""

    problem_id: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1: the policy sampled this token. 0: prompt, framing or tool output."""
    logprobs: tuple[float, ...]
    """Of the sampled tokens, when they were sampled. 0.0 where the mask is 0."""
    weight_versions: tuple[int | None, ...]
    """The weights that sampled each token. None where the mask is 0 or the engine does not tell."""
    prompt_length: int
    turns: tuple[TurnRecord, ...]
    status: Status
    stop_reason: StopReason
    answer: str | None = None
    """What the last turn states as its answer."""
    error: str | None = None
    """What went wrong, for an aborted or failed trajectory."""
    wall_time_s: float = 0.0

    def __post_init__(self) -> None:
        lengths = (len(self.ids), len(self.mask), len(self.logprobs), len(self.weight_versions))
        if len(set(lengths)) != 1:
            raise ValueError(
                f"ids, mask, logprobs and weight_versions must have one length, got {lengths}"
            )

    @property
    def final_text(self) -> str:
        """The policy's last turn: its own words, never prompt or tool output."""
        return self.turns[-1].text if self.turns else ""

    @property
    def own_text(self) -> str:
        """Every word of the policy, turn after turn."""
        return "\n".join(turn.text for turn in self.turns)

    @property
    def response_ids(self) -> tuple[int, ...]:
        """Everything after the prompt."""
        return self.ids[self.prompt_length :]

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)

    @property
    def num_calls(self) -> int:
        """Calls that were answered."""
        return sum(len(turn.calls) for turn in self.turns)
