"""Calls to Ray actors with a deadline, and failures told in the words of the run."""

from __future__ import annotations

from typing import Any

from retool_rollout import EngineError
from retool_trainer.errors import RunFailedError
from retool_trainer.weights import WeightSyncError

# Enough for the longest single call (a checkpoint of a large model), and an end to any hang.
CALL_TIMEOUT_S = 3600.0


class WorkerError(RunFailedError):
    """An actor or its engine failed or did not answer; the run goes on from its checkpoint."""


def result(references: Any, *, what: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """Wait for one reference or a list of them.

    Raises:
        WorkerError: An actor died, the engine it called failed, or nothing came within the time.
        Exception: What the call itself raised, as it was raised.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError, WorkerCrashedError

    try:
        return ray.get(references, timeout=timeout_s)
    except GetTimeoutError as error:
        raise WorkerError(f"{what}: no answer within {timeout_s:g} s") from error
    except RayTaskError as error:
        cause = error.cause
        if isinstance(
            cause,
            RayActorError | WorkerCrashedError | ConnectionError | EngineError | WeightSyncError,
        ):
            raise WorkerError(f"{what}: {cause}") from error
        raise (cause if isinstance(cause, Exception) else error) from error
    except (RayActorError, WorkerCrashedError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise WorkerError(f"{what}: {first_line}") from error
