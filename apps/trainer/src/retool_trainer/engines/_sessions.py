"""What the embedded engine knows of its callers: requests, sessions, and whom lock-step awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from retool_rollout import Generation, Sampling


@dataclass(slots=True)
class Request:
    """A call of `generate` that is under way."""

    prompt_ids: list[int]
    sampling: Sampling
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    uniforms: np.ndarray
    """A number in [0, 1) for each token to sample: its randomness, whatever else is batched."""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class Session:
    """A row of the cache, and the tokens that it holds."""

    session_id: str
    row: int
    cached_ids: list[int] = field(default_factory=list[int])
    request: Request | None = None

    def pending(self) -> list[int]:
        """Tokens that are part of the request but not yet in the cache; never empty."""
        assert self.request is not None
        known = len(self.cached_ids)
        prompt = self.request.prompt_ids
        if known < len(prompt):
            return prompt[known:]
        return self.request.ids[known - len(prompt) :]


@dataclass(slots=True)
class Expected:
    """How many sessions a lock-step step has to wait for."""

    num_trajectories: int
    concurrency: int
    num_released: int = 0

    def num_missing(self, num_ready: int) -> int:
        """How many have still to ask for a token before the next step."""
        live = min(self.concurrency, self.num_trajectories - self.num_released)
        return live - num_ready


def uniforms_of(seed: int | None, position: int, count: int) -> np.ndarray:
    """Random numbers that depend on the request's seed and position only."""
    entropy = None if seed is None else (seed, position)
    return np.random.default_rng(entropy).random(count)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from their start."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
