"""The actor that makes trajectories: engine client, tools, loop and grader in one event loop."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retool_data import Problem
from retool_reward import AsyncGrader, Grade, Span, Speaker
from retool_rollout import (
    Dialect,
    Limits,
    Sampling,
    ToolExecutor,
    Trajectory,
    rollout_groups,
)
from retool_trainer.config import RunConfig
from retool_trainer.dialects import make_run_dialect
from retool_trainer.engines import ContinuingEngine, EngineHandle, open_engine
from retool_trainer.platform import get_platform
from retool_trainer.tools import open_tools

from ._calls import result

_START_TIMEOUT_S = 900.0
_GRADE_DEADLINE_S = 120.0
_ATTEMPTS = 3  # of a trajectory whose server failed: one for a reset socket, one for a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """A batch of problems to solve."""

    problems: tuple[Problem, ...]
    group_size: int
    temperature: float
    top_p: float = 1.0
    response_tokens: int | None = None
    """Instead of the configured limit."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedSample:
    """A trajectory and its grade."""

    trajectory: Trajectory
    grade: Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedGroup:
    """The trajectories of one problem."""

    problem: Problem
    samples: tuple[GradedSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats:
    """What a batch cost."""

    wall_time_s: float
    num_sampled_tokens: int


class _RolloutActor:
    """The actor itself; everything that it opens is closed by `close`."""

    def __init__(self, config: RunConfig, hf_folder: str, urls: Sequence[str]) -> None:
        self._config, self._hf_folder, self._urls = config, Path(hf_folder), urls
        self._partial = bool(config.rl and config.rl.schedule.partial_rollouts)
        self._stack = AsyncExitStack()
        self._handle: EngineHandle
        self._tools: ToolExecutor
        self._grader: AsyncGrader
        self._dialect: Dialect

    async def start(self) -> None:
        """Open engine, tools and grader."""
        config = self._config
        self._tools = await self._stack.enter_async_context(open_tools(config.sandbox))
        self._grader = await self._stack.enter_async_context(
            AsyncGrader(workers=config.rl.reward.grader_workers if config.rl else 1)
        )
        self._handle = await self._stack.enter_async_context(
            open_engine(config, self._hf_folder, self._urls)
        )
        self._dialect = await asyncio.to_thread(make_run_dialect, config, self._hf_folder)

    async def collect(self, request: RolloutRequest) -> tuple[list[GradedGroup], RolloutStats]:
        """Solve the problems; groups come back in the order of the problems."""
        began_s = time.monotonic()
        groups: list[GradedGroup] = []
        wave_size = len(request.problems)
        if self._handle.embedded:
            # Lock-step needs every trajectory of a wave to have a row of the cache.
            wave_size = max(1, self._config.engine.max_concurrency // request.group_size)
        for start in range(0, len(request.problems), wave_size):
            groups += await self._wave(request, start, request.problems[start : start + wave_size])
        num_sampled = sum(s.trajectory.num_sampled for g in groups for s in g.samples)
        return groups, RolloutStats(
            wall_time_s=time.monotonic() - began_s, num_sampled_tokens=num_sampled
        )

    async def _wave(
        self, request: RolloutRequest, start: int, problems: Sequence[Problem]
    ) -> list[GradedGroup]:
        limits, concurrency = self._config.limits, self._config.engine.max_concurrency
        num_trajectories = len(problems) * request.group_size
        if self._handle.embedded and not self._partial:
            self._handle.embedded.lockstep(
                num_trajectories=num_trajectories, concurrency=min(concurrency, num_trajectories)
            )
        groups = rollout_groups(
            problems,
            group_size=request.group_size,
            concurrency=concurrency * self._config.engine.replicas,
            sampling=Sampling(
                max_tokens=limits.tokens_per_turn,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=zlib.crc32(f"{request.seed} {start}".encode()),
            ),
            engine=ContinuingEngine(self._handle.engine) if self._partial else self._handle.engine,
            tools=self._tools,
            dialect=self._dialect,
            limits=Limits(
                turns=limits.max_turns,
                calls=limits.max_calls,
                turn_tokens=limits.tokens_per_turn,
                response_tokens=request.response_tokens or limits.response_tokens,
                context_tokens=limits.context_tokens,
                observation_chars=limits.observation_chars,
                wall_time_s=limits.wall_time_s,
            ),
            stateful=self._config.sandbox.stateful,
            attempts=1 if self._handle.embedded else _ATTEMPTS,
        )
        finished = [group async for group in groups]
        finished.sort(key=lambda group: group.index)
        return await self._graded([(group.problem, group.trajectories) for group in finished])

    async def _graded(
        self, groups: Sequence[tuple[Problem, tuple[Trajectory, ...]]]
    ) -> list[GradedGroup]:
        items = [
            (_own_words(trajectory), problem.gold or "")
            for problem, members in groups
            for trajectory in members
        ]
        grades = iter(await self._grader.grade_many(items, deadline_s=_GRADE_DEADLINE_S))
        return [
            GradedGroup(
                problem=problem,
                samples=tuple(GradedSample(trajectory=t, grade=next(grades)) for t in members),
            )
            for problem, members in groups
        ]

    async def load(self, folder: str, weight_version: int) -> None:
        """Give the engine new weights."""
        await self._handle.load(Path(folder), weight_version)

    async def pause(self) -> None:
        """Stop sampling before weights are sent."""
        await self._handle.pause()

    async def resume(self, weight_version: int) -> None:
        """Sample again with the weights that were sent."""
        await self._handle.resume(weight_version)

    async def generate(self, prompts: list[list[int]], max_tokens: int, seed: int) -> list[Any]:
        """Sample without tools, for the probe after a weight update; servers take turns."""
        engines = self._handle.servers or (self._handle.engine,)
        sampling = Sampling(max_tokens=max_tokens, temperature=1.0, seed=seed)
        if self._handle.embedded:
            self._handle.embedded.lockstep(num_trajectories=len(prompts), concurrency=len(prompts))

        async def one(index: int, prompt: list[int]) -> Any:
            session_id = f"probe-{index}-{time.monotonic_ns()}"
            engine = engines[index % len(engines)]
            try:
                return await engine.generate(
                    prompt, replace(sampling, seed=seed + index), session_id=session_id
                )
            finally:
                release = getattr(engine, "release", None)
                if release:
                    await release(session_id)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(i, prompt)) for i, prompt in enumerate(prompts)]
        return [task.result() for task in tasks]

    async def prompt_ids(self, problems: list[Problem]) -> list[list[int]]:
        """The prompts of problems as the loop builds them."""
        specs = self._tools.specs if self._config.offer_tools else ()
        return [self._dialect.prompt_ids(problem.messages, specs) for problem in problems]

    def tool_specs(self) -> list[dict[str, Any]]:
        """The tools as the prompt lists them."""
        return [dict(spec) for spec in self._tools.specs]

    def process_id(self) -> int:
        """For tests that kill the actor."""
        return os.getpid()

    async def close(self) -> None:
        """Close engine, tools and grader."""
        await self._stack.aclose()


def _own_words(trajectory: Trajectory) -> list[Span]:
    """Turns and tool replies, each with its speaker: a box that the tool printed earns nothing."""
    spans: list[Span] = []
    for turn in trajectory.turns:
        spans.append(Span(turn.text, Speaker.POLICY))
        spans += [Span(call.text, Speaker.TOOL) for call in turn.calls]
    return spans


class Rollouts:
    """The rollout actor as the driver sees it."""

    def __init__(self, config: RunConfig, hf_folder: Path, urls: Sequence[str]) -> None:
        """Start the actor; it opens its parts in the background, the first call waits for it."""
        import ray

        platform = get_platform(config.platform)
        environment = {item.name: item.value for item in platform.environment("driver", config)}
        actor: Any = ray.remote(_RolloutActor)
        self._actor: Any = actor.options(
            num_cpus=1, max_concurrency=1000, runtime_env={"env_vars": environment}
        ).remote(config, str(hf_folder.absolute()), list(urls))
        self._started: Any = self._actor.start.remote()

    def _ready(self) -> None:
        if self._started is not None:
            started, self._started = self._started, None
            result(started, what="start of the rollouts", timeout_s=_START_TIMEOUT_S)

    def begin_collect(self, request: RolloutRequest) -> Any:
        """Start solving a batch; pass the reference to `finish_collect`."""
        self._ready()
        return self._actor.collect.remote(request)

    def finish_collect(self, reference: Any) -> tuple[list[GradedGroup], RolloutStats]:
        """Wait for a batch."""
        return result(reference, what="rollouts")

    def collect(self, request: RolloutRequest) -> tuple[list[GradedGroup], RolloutStats]:
        """Solve a batch of problems."""
        return self.finish_collect(self.begin_collect(request))

    def load(self, folder: Path, weight_version: int) -> None:
        """Give the engine new weights."""
        self._ready()
        path = str(folder.absolute())
        result(self._actor.load.remote(path, weight_version), what="weight update")

    def pause(self) -> None:
        """Stop sampling."""
        self._ready()
        result(self._actor.pause.remote(), what="pause of the engines")

    def resume(self, weight_version: int) -> None:
        """Sample again."""
        result(self._actor.resume.remote(weight_version), what="resume of the engines")

    def tool_specs(self) -> list[dict[str, Any]]:
        """The tools that the prompt lists."""
        self._ready()
        return result(self._actor.tool_specs.remote(), what="tools")

    def generate(self, prompts: list[list[int]], max_tokens: int, seed: int) -> list[Any]:
        """Sample without tools."""
        self._ready()
        return result(self._actor.generate.remote(prompts, max_tokens, seed), what="probe")

    def prompt_ids(self, problems: list[Problem]) -> list[list[int]]:
        """The prompts of problems."""
        self._ready()
        return result(self._actor.prompt_ids.remote(problems), what="prompts")

    def process_id(self) -> int:
        """Of the actor."""
        return result(self._actor.process_id.remote(), what="rollouts")

    def kill(self) -> None:
        """End the actor now: whoever waits for it gets a WorkerError."""
        import ray

        ray.kill(self._actor)

    def close(self) -> None:
        """Close the actor's parts, then end it."""
        import ray

        from ._calls import WorkerError

        try:
            result(self._actor.close.remote(), what="end of the rollouts", timeout_s=60.0)
        except WorkerError:
            pass  # it is dead already, and what it had opened died with it
        finally:
            ray.kill(self._actor)
