"""Many trajectories at once: G per problem, bounded, streamed as groups finish."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from zlib import crc32

from ._engine import Sampling
from ._errors import first_error
from ._loop import Problem, rollout
from ._metrics import RolloutMetrics
from ._trajectory import Status, StopReason, Trajectory

P = TypeVar("P", bound=Problem)

_TRY_AGAIN = (StopReason.ENGINE_ERROR, StopReason.BAD_LOGPROBS, StopReason.TOOL_ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Generic[P]):
    """The trajectories of one problem."""

    index: int
    """Position of the problem in the input."""
    problem: P
    trajectories: tuple[Trajectory, ...]


async def rollout_groups(
    problems: Iterable[P],
    *,
    group_size: int,
    concurrency: int,
    sampling: Sampling,
    attempts: int = 1,
    metrics: RolloutMetrics | None = None,
    **options: Any,
) -> AsyncGenerator[Group[P]]:
    """Roll out every problem `group_size` times and yield each group when its last trajectory ends.

    Leave the loop early with `contextlib.aclosing`, so that what is still running ends at once.

    Args:
        problems: Taken one by one, as slots become free.
        group_size: Trajectories per problem.
        concurrency: Trajectories in flight. Finished groups that nobody has taken count too, so
            memory is bounded.
        sampling: As for `rollout`; a seed is varied by trajectory.
        attempts: How often a trajectory is tried in all when the engine or the tool machinery
            fails. A retry resumes:
            the turns that were complete are kept.
        metrics: Counts every trajectory, and measures stalls of the event loop meanwhile.
        options: The other arguments of `rollout`.

    Raises:
        EngineConfigError: The engine can never work as configured; everything in flight is
            cancelled.
    """
    for name, value in (
        ("group_size", group_size),
        ("concurrency", concurrency),
        ("attempts", attempts),
    ):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value!r}")
    counted = metrics or RolloutMetrics()
    slots = asyncio.Semaphore(concurrency)
    open_groups = asyncio.Semaphore(2 * -(-concurrency // group_size))
    finished: asyncio.Queue[Group[P] | None] = asyncio.Queue()

    async def one(problem: P, index: int, member: int) -> Trajectory:
        seed = sampling.seed
        own = (
            sampling
            if seed is None
            else replace(sampling, seed=crc32(f"{seed} {index} {member}".encode()))
        )
        try:
            trajectory = await rollout(problem, sampling=own, **options)
            for _ in range(attempts - 1):
                if (
                    trajectory.status is not Status.ABORTED
                    or trajectory.stop_reason not in _TRY_AGAIN
                ):
                    break
                counted.retries += 1
                trajectory = await rollout(problem, sampling=own, resume=trajectory, **options)
            counted.add(trajectory)
            return trajectory
        finally:
            slots.release()

    async def group_of(problem: P, index: int, tasks: list[asyncio.Task[Trajectory]]) -> None:
        trajectories = tuple([await task for task in tasks])
        await finished.put(Group(index=index, problem=problem, trajectories=trajectories))

    async def supervise() -> None:
        try:
            async with counted.stalls, asyncio.TaskGroup() as running:
                for index, problem in enumerate(problems):
                    await open_groups.acquire()
                    tasks: list[asyncio.Task[Trajectory]] = []
                    for member in range(group_size):
                        await slots.acquire()
                        tasks.append(running.create_task(one(problem, index, member)))
                    running.create_task(group_of(problem, index, tasks))
        finally:
            finished.put_nowait(None)

    supervisor = asyncio.create_task(supervise())
    try:
        while (group := await finished.get()) is not None:
            open_groups.release()
            yield group
        try:
            await supervisor
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})
        if not supervisor.cancelled():
            supervisor.exception()  # seen: it was raised above, or nobody waits for it any more
