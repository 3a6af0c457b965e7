"""What a batch may lose before the run goes back to its checkpoint, and how Ray's failures read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ObjectLostError, OutOfMemoryError, RayTaskError

from retool_rollout import Status
from retool_trainer.workers import RolloutRequest, WorkerError, Workers
from retool_trainer.workers._calls import result


def workers_that_collect(statuses: list[Status]) -> Workers:
    """Workers whose rollouts end so, one group; all servers are well."""
    samples = [
        SimpleNamespace(trajectory=SimpleNamespace(status=status, error="the engine is closed"))
        for status in statuses
    ]
    workers: Any = object.__new__(Workers)
    workers.servers = SimpleNamespace(check=lambda: None)
    workers.rollouts = SimpleNamespace(collect=lambda _: ([SimpleNamespace(samples=samples)], None))
    return workers


REQUEST = RolloutRequest(problems=(), group_size=4, temperature=1.0, seed=0)


def test_a_batch_that_lost_most_of_its_trajectories_is_drawn_again() -> None:
    workers = workers_that_collect([Status.COMPLETED, *[Status.ABORTED] * 3])
    with pytest.raises(WorkerError, match="3 of 4 trajectories were aborted: the engine is closed"):
        workers.collect(REQUEST)


def test_a_batch_may_lose_some_trajectories() -> None:
    groups, _ = workers_that_collect([Status.COMPLETED, Status.ABORTED]).collect(REQUEST)
    assert len(groups) == 1


@pytest.mark.parametrize("error", [OutOfMemoryError("too much"), ObjectLostError("0", None, "")])
def test_what_ray_lost_sends_the_run_back_to_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "get", lost)
    with pytest.raises(WorkerError, match="rollouts: "):
        result([], what="rollouts")


def test_a_rank_whose_peer_died_sends_the_run_back_although_its_error_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = RayTaskError("step", "", RuntimeError("Connection closed by peer"))
    outcomes = {"survivor": broken, "dead": ActorDiedError()}

    def get(references: Any, timeout: float) -> None:
        raise broken if isinstance(references, list) else outcomes[references]

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda *_, **__: None)
    with pytest.raises(WorkerError, match="step: Connection closed by peer"):
        result(["survivor", "dead"], what="step")
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        result(["survivor", "survivor"], what="step")
