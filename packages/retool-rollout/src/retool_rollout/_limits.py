"""Ceilings for one trajectory."""

from dataclasses import dataclass, fields
from typing import Literal

Cut = Literal["head", "middle", "tail"]
"""Which part of a long tool output is taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ceilings for one trajectory; reaching one truncates it."""

    turns: int = 16
    calls: int = 16
    """Calls in the whole trajectory, malformed ones included."""
    parallel_calls: int = 8
    """Calls of one turn that are executed; the rest are answered with a refusal."""
    turn_tokens: int | None = None
    """Sampled tokens of one turn. None: `Sampling.max_tokens` alone decides."""
    response_tokens: int = 8192
    """Everything after the prompt, tool output included."""
    context_tokens: int = 32_768
    """Prompt and response."""
    observation_chars: int = 4096
    """Of one reply. What is cut out is replaced by a note."""
    observation_cut: Cut = "middle"
    wall_time_s: float = 1800.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "observation_cut":
                if value not in ("head", "middle", "tail"):
                    raise ValueError(
                        f"observation_cut must be 'head', 'middle' or 'tail', got {value!r}"
                    )
            elif value is None and item.name == "turn_tokens":
                continue
            elif value is None or not value > 0:
                raise ValueError(f"{item.name} must be > 0, got {value!r}")
        if self.observation_chars < 64:
            raise ValueError(
                f"observation_chars must be >= 64, got {self.observation_chars!r}: "
                "the note about the cut needs room"
            )


def cut_text(text: str, max_chars: int, where: Cut) -> str:
    """Shorten tool output to `max_chars` characters, note included."""
    if len(text) <= max_chars:
        return text
    # The note's length depends on the number in it; the longest number leaves room for all others.
    room = max_chars - len(f"\n... [{len(text)} characters cut] ...\n")
    note = f"\n... [{len(text) - room} characters cut] ...\n"
    if where == "head":
        return note.lstrip("\n") + text[-room:]
    if where == "tail":
        return text[:room] + note.rstrip("\n")
    head = room - room // 2
    return text[:head] + note + text[len(text) - room // 2 :]
