"""Calls to Ray actors with a deadline, and failures told in the words of the run."""

from __future__ import annotations

from typing import Any

from retool_rollout import EngineError
from retool_trainer.errors import RunFailedError
from retool_trainer.weights import WeightSyncError

# Enough for the longest single call (a checkpoint of a large model), and an end to any hang.
CALL_TIMEOUT_S = 3600.0
_NEWS_OF_A_DEATH_S = 30.0


class WorkerError(RunFailedError):
    """An actor or its engine failed or did not answer; the run goes on from its checkpoint."""


def result(references: Any, *, what: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """Wait for one reference or a list of them.

    Raises:
        WorkerError: An actor or a node died, the engine it called failed, or nothing came within
            the time.
        Exception: What the call itself raised, as it was raised.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    try:
        return ray.get(references, timeout=timeout_s)
    except GetTimeoutError as error:
        raise WorkerError(f"{what}: no answer within {timeout_s:g} s") from error
    except RayTaskError as error:
        cause = error.cause
        lost = isinstance(cause, RayError | ConnectionError | EngineError | WeightSyncError)
        if lost or _one_died(references):
            raise WorkerError(f"{what}: {cause}") from error
        raise (cause if isinstance(cause, Exception) else error) from error
    except RayError as error:  # of an actor, of a node, of its memory, of what lay there
        first_line = (str(error).strip() or repr(error)).splitlines()[0]
        raise WorkerError(f"{what}: {first_line}") from error


def _one_died(references: Any) -> bool:
    """A rank that dies breaks a collective of the others, whose errors may be the first to come."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    if not isinstance(references, list):
        return False
    calls: list[Any] = references
    ray.wait(calls, num_returns=len(calls), timeout=_NEWS_OF_A_DEATH_S)
    for call in calls:
        try:
            ray.get(call, timeout=0)
        except (RayTaskError, GetTimeoutError):
            continue
        except RayError:
            return True
    return False
