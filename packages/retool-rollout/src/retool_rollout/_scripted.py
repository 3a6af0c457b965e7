"""An engine that says what it is told, for tests, demos and benchmarks."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ._engine import EngineError, FinishReason, Generation, Sampling

Script = Callable[[Sequence[int], Sampling, str], Sequence[int]]
"""(prompt ids, sampling, session id) -> the ids to answer with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds a generation takes: `first_token_s + tokens * per_token_s`, give or take."""

    first_token_s: float = 0.0
    per_token_s: float = 0.0
    spread: float = 0.0
    """Each generation is slower or faster by up to this share, as in a real batch; 0: all alike."""

    def __post_init__(self) -> None:
        if self.first_token_s < 0 or self.per_token_s < 0:
            raise ValueError(f"a latency cannot be negative, got {self!r}")
        if not 0.0 <= self.spread < 1.0:
            raise ValueError(f"spread must be in [0, 1), got {self.spread!r}")


class ScriptedEngine:
    """Answers with given token ids, cut at `max_tokens` as a real engine cuts.

    The script is a list of turns, played in order for each session, or a function. Turns come from
    `Dialect.turn_ids`.
    """

    def __init__(
        self,
        script: Sequence[Sequence[int]] | Script,
        *,
        latency: Latency | None = None,
        weight_version: int | None = 0,
    ) -> None:
        self._script = script
        self._latency = latency or Latency()
        self._turn_of: dict[str, int] = {}
        self._dice = random.Random(0)
        self.weight_version = weight_version

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        """Play the next turn of the session."""
        if callable(self._script):
            ids = tuple(self._script(prompt_ids, sampling, session_id))
        else:
            turn = self._turn_of.get(session_id, 0)
            if turn >= len(self._script):
                raise EngineError(
                    f"the script has {len(self._script)} turns, session {session_id} wants one more"
                )
            self._turn_of[session_id] = turn + 1
            ids = tuple(self._script[turn])
        finish = FinishReason.STOP if len(ids) <= sampling.max_tokens else FinishReason.LENGTH
        ids = ids[: sampling.max_tokens]
        seconds = self._latency.first_token_s + self._latency.per_token_s * len(ids)
        spread = self._latency.spread
        await asyncio.sleep(seconds * self._dice.uniform(1.0 - spread, 1.0 + spread))
        return Generation(
            ids=ids,
            logprobs=(math.log(0.5),) * len(ids),
            finish=finish,
            weight_version=self.weight_version,
        )

    async def release(self, session_id: str) -> None:
        """Forget where the session stood."""
        self._turn_of.pop(session_id, None)
