"""What the loop needs from whoever samples tokens, and how an engine fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class EngineError(Exception):
    """The engine did not work: this trajectory is aborted, and may be tried again."""


class EngineConfigError(EngineError):
    """The engine can never work as configured (a flag, a name, an address): the whole run stops."""


class ContextOverflowError(EngineError):
    """The engine refused the prompt as longer than its context window."""


class FinishReason(StrEnum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one turn."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: off."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens!r}")
        if not 0.0 <= self.temperature <= 100.0:
            raise ValueError(
                f"temperature must be between 0 (greedy) and 100, got {self.temperature!r}"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p!r}; 1 turns it off")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k must be -1 (off) or >= 1, got {self.top_k!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine sampled. A sampled stop token is part of `ids`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per id. If the engine gave fewer, so does this: the loop aborts and invents none."""
    finish: FinishReason
    weight_version: int | None = None
    """The weights that sampled it, if one version sampled it all."""
    weight_versions: tuple[int | None, ...] | None = None
    """One per id, from an engine whose weights may change in the middle of a turn."""


class Engine(Protocol):
    """Token ids in, token ids out.

    An engine may also offer `async release(session_id)`; the loop then calls it once when a
    trajectory ends.
    """

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        """Continue the prompt.

        Args:
            prompt_ids: The whole trajectory so far. Not to be changed.
            sampling: Parameters of this turn.
            session_id: Constant over a trajectory, so that an engine can keep its KV cache or its
                replica.

        Raises:
            EngineError: The engine did not work.
        """
        ...
