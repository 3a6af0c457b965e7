"""Partial rollouts: a turn that a weight update interrupts goes on from its tokens.

The update ends requests under way with what they have. This engine asks again, with those tokens as
part of the prompt: the old tokens keep their log-probabilities and the version that sampled them,
the new ones get theirs, and the loop above sees one turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retool_rollout import Engine, FinishReason, Generation, Sampling


class ContinuingEngine:
    """An `Engine` that finishes interrupted turns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        """Continue the prompt, through as many weight updates as come; see `Engine`."""
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int | None] = []
        while True:
            part = await self._engine.generate(
                [*prompt_ids, *ids],
                replace(sampling, max_tokens=sampling.max_tokens - len(ids)),
                session_id=session_id,
            )
            ids += part.ids
            logprobs += part.logprobs
            versions += part.weight_versions or [part.weight_version] * len(part.ids)
            interrupted = part.finish is FinishReason.ABORT
            if not interrupted or len(ids) >= sampling.max_tokens:
                return Generation(
                    ids=tuple(ids),
                    logprobs=tuple(logprobs),
                    finish=FinishReason.LENGTH if interrupted else part.finish,
                    weight_version=part.weight_version,
                    weight_versions=tuple(versions),
                )

    async def release(self, session_id: str) -> None:
        """Pass on the end of a trajectory."""
        release = getattr(self._engine, "release", None)
        if release:
            await release(session_id)
