"""The actor that makes trajectories, without Ray and without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from retool_rollout import FinishReason, Generation, Sampling
from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import load_config
from retool_trainer.engines import EngineHandle
from retool_trainer.workers._rollouts import _RolloutActor  # pyright: ignore[reportPrivateUsage]


class Server:
    """A replica that says how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        self.num_asked += 1
        return Generation(ids=(7,), logprobs=(-1.0,), finish=FinishReason.STOP)


def test_the_probe_asks_every_replica() -> None:
    actor: Any = _RolloutActor(load_config(quickstart_config()), "", [])
    servers = [Server() for _ in range(6)]
    actor._handle = EngineHandle(servers=tuple(servers))
    generations = asyncio.run(actor.generate([[1], [2], [3], [4], [5], [6], [7]], 1, seed=0))
    assert len(generations) == 7
    assert [server.num_asked for server in servers] == [2, 1, 1, 1, 1, 1]
