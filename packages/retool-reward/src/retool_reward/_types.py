"""The words of grading: spans with their speaker, reasons, grades, and the knobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Speaker(StrEnum):
    """Who wrote a span of a trajectory. Only the policy's text can earn anything."""

    POLICY = "policy"
    PROMPT = "prompt"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a trajectory's text and who wrote it."""

    text: str
    speaker: Speaker = Speaker.POLICY


class Reason(StrEnum):
    """Why a grade is what it is."""

    MATCH = "match"
    MISMATCH = "mismatch"
    NO_ANSWER = "no_answer"
    GOLD_UNPARSABLE = "gold_unparsable"
    TIMEOUT = "timeout"  # the answer could not be evaluated in its time; counts as wrong
    OUT_OF_MEMORY = "out_of_memory"  # the same for memory
    ABORTED = "aborted"  # the grader did not work or was out of time: no verdict


class Multiple(StrEnum):
    """What to do with several boxes."""

    ADJACENT = "adjacent"  # the last box, joined with the boxes it is listed with
    LAST = "last"  # the last box alone
    REJECT_MULTI = "reject_multi"  # boxes that differ are no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One verdict.

    `correct` is None where there is no verdict: the gold cannot be parsed, or the grader failed.
    `path` names the layer that decided: integer, extract, spelling, choice, text, value, symbolic,
    math_verify, gold, cache or deadline.
    """

    correct: bool | None
    pred: str | None
    reason: Reason
    path: str
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeConfig:
    """How answers are read and compared."""

    multiple: Multiple = Multiple.ADJACENT
    require_box: bool = False
    """Only a box is an answer; `Answer: 42` and `<answer>42</answer>` are not."""
    max_answer_chars: int = 20_000
    """A longer answer is no answer: no gold is that long."""
    decimal_places: int = 4
    """A decimal with at least this many places may stand for an exact gold that rounds to it."""
    symbolic: bool = True
    """Ask sympy and Math-Verify, in a worker that can be killed, where nothing else decides."""
    symbolic_time_s: float = 0.8
    """Processor time of one symbolic question; at most five times as much by the clock."""
    symbolic_memory_mib: int = 512
    """Memory of one symbolic worker."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_answer_chars <= 1_000_000:
            raise ValueError(
                f"max_answer_chars must be in 1..1000000, got {self.max_answer_chars!r}"
            )
        if not 1 <= self.decimal_places <= 30:
            raise ValueError(f"decimal_places must be in 1..30, got {self.decimal_places!r}")
        if not 0 < self.symbolic_time_s <= 60:
            raise ValueError(f"symbolic_time_s must be in (0, 60], got {self.symbolic_time_s!r}")
        if self.symbolic_memory_mib < 256:
            raise ValueError(
                f"symbolic_memory_mib must be >= 256 (sympy alone needs 200), got "
                f"{self.symbolic_memory_mib!r}"
            )
        object.__setattr__(self, "multiple", Multiple(self.multiple))


Answer: TypeAlias = str | Sequence[Span]
Gold: TypeAlias = str | int | float
