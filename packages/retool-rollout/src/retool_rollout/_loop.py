"""The multi-turn loop: from a problem to a trajectory."""

import asyncio
import logging
import time
import zlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ._calls import Calls
from ._dialect import Dialect
from ._end import End
from ._engine import (
    ContextOverflowError,
    Engine,
    EngineConfigError,
    EngineError,
    FinishReason,
    Generation,
    Sampling,
)
from ._limits import Limits
from ._sampled import usable
from ._template import TemplateError
from ._tools import NoTools, ToolExecutor
from ._trajectory import Status, StopReason, Trajectory, TurnRecord
from ._turn import Turn

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT_S = 5.0


class Problem(Protocol):
    """What the loop needs of a problem."""

    @property
    def problem_id(self) -> str:
        """Names the problem in trajectories and logs."""
        ...

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation so far: `{"role": ..., "content": ...}` each."""
        ...


async def rollout(
    problem: Problem,
    *,
    engine: Engine,
    tools: ToolExecutor | None,
    dialect: Dialect,
    limits: Limits,
    sampling: Sampling,
    stateful: bool = False,
    resume: Trajectory | None = None,
    interrupt: asyncio.Event | None = None,
    session_id: str | None = None,
    prompt_ids: Sequence[int] | None = None,
) -> Trajectory:
    """Let the policy think and call tools until it answers or a limit ends it.

    Args:
        problem: Its messages become the prompt.
        engine: Samples.
        tools: Executes calls. None: the policy has no tools.
        dialect: The format; its stop strings and ids are added to those of `sampling`.
        limits: Ceilings.
        sampling: Parameters of every turn. `max_tokens` is lowered to what the limits leave; a seed
            is varied by turn.
        stateful: Run the calls of the trajectory in one session, in order, instead of each alone.
        resume: An aborted trajectory to go on from: its tokens, logprobs and weight versions stay
            as they are.
            With `stateful`, its calls are executed again first, because the session's variables are
            gone.
        interrupt: When set, the trajectory ends as aborted at once; a generation in flight is
            cancelled.
        session_id: Passed to the engine. None: made from the problem.
        prompt_ids: A prompt that somebody else has rendered, instead of the dialect's.

    Returns:
        The trajectory. An engine or tool machinery that failed gives an aborted one, never a made-
        up observation.

    Raises:
        EngineConfigError: The engine can never work as configured.
        ValueError: `resume` is no aborted trajectory.
    """
    if resume is not None and resume.status is not Status.ABORTED:
        raise ValueError(
            f"only an aborted trajectory can be resumed, this one is {resume.status.value!r}"
        )
    run = _Run(
        problem=problem,
        engine=engine,
        tools=tools if tools is not None else NoTools(),
        dialect=dialect,
        limits=limits,
        sampling=sampling,
        stateful=stateful,
        interrupt=interrupt,
        session_id=session_id or f"{problem.problem_id}-{time.monotonic_ns()}",
        prompt_ids=prompt_ids,
    )
    if resume is not None:
        run.load(resume)
    return await run.finish()


class _Run:
    """The state of one rollout. Tokens enter through `_append` only: four lists, one length."""

    def __init__(
        self,
        *,
        problem: Problem,
        engine: Engine,
        tools: ToolExecutor,
        dialect: Dialect,
        limits: Limits,
        sampling: Sampling,
        stateful: bool,
        interrupt: asyncio.Event | None,
        session_id: str,
        prompt_ids: Sequence[int] | None,
    ) -> None:
        self.problem, self.engine, self.tools, self.dialect = problem, engine, tools, dialect
        self.limits, self.stateful, self.interrupt, self.session_id = (
            limits,
            stateful,
            interrupt,
            session_id,
        )
        self.sampling = replace(
            sampling,
            stop=tuple(dict.fromkeys((*sampling.stop, *dialect.stop))),
            stop_token_ids=tuple(
                dict.fromkeys((*sampling.stop_token_ids, *dialect.stop_token_ids))
            ),
        )
        self.prompt_ids = prompt_ids
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int | None] = []
        self.prompt_length = 0
        self.turns: list[TurnRecord] = []
        self.answer: str | None = None
        self.earlier_s = 0.0
        self.resumed = False
        self.started_s = time.monotonic()

    def load(self, trajectory: Trajectory) -> None:
        """Start from an interrupted trajectory."""
        self.ids, self.mask = list(trajectory.ids), list(trajectory.mask)
        self.logprobs, self.versions = list(trajectory.logprobs), list(trajectory.weight_versions)
        self.prompt_length, self.turns = trajectory.prompt_length, list(trajectory.turns)
        self.earlier_s = trajectory.wall_time_s
        self.resumed = bool(trajectory.ids)

    async def finish(self) -> Trajectory:
        """Run to the end and freeze."""
        status, reason, error = Status.ABORTED, StopReason.INTERRUPTED, None
        clock = asyncio.timeout(max(0.0, self.limits.wall_time_s - self.earlier_s))
        try:
            async with clock:
                await self._unless_interrupted(self._turns())
        except End as end:
            status, reason, error = end.status, end.reason, end.error
        except TimeoutError:
            if not clock.expired():
                raise
            status, reason = Status.TRUNCATED, StopReason.TIME_LIMIT
        finally:
            await self._release()
        if error is not None:
            logger.warning(
                "problem %s: %s (%s): %s",
                self.problem.problem_id,
                status.value,
                reason.value,
                error,
            )
        return Trajectory(
            problem_id=self.problem.problem_id,
            ids=tuple(self.ids),
            mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            weight_versions=tuple(self.versions),
            prompt_length=self.prompt_length,
            turns=tuple(self.turns),
            status=status,
            stop_reason=reason,
            answer=self.answer,
            error=error,
            wall_time_s=self.earlier_s + time.monotonic() - self.started_s,
        )

    async def _turns(self) -> None:
        if not self.ids:
            self._prompt()
        opened = Calls.open(
            self.tools,
            self.dialect,
            self.limits,
            stateful=self.stateful,
            name=self.problem.problem_id,
        )
        async with opened as calls:
            if self.resumed and self.stateful:
                await calls.replay(self.turns)
            while True:
                turn = self._pending_turn() or await self._sample_turn()
                if turn.ends:
                    self.answer = turn.answer
                    reason = StopReason.NO_CALL if turn.answer is None else StopReason.ANSWERED
                    raise End(Status.COMPLETED, reason)
                await self._observe(calls, turn)

    def _prompt(self) -> None:
        ids = self.prompt_ids
        if ids is None:
            specs = self.dialect.tool_specs
            specs = self.tools.specs if specs is None else specs
            try:
                ids = self.dialect.prompt_ids(self.problem.messages, specs)
            except TemplateError as error:  # one bad problem must not end a run of thousands
                raise End(Status.FAILED, StopReason.BAD_PROMPT, str(error)) from error
        self.prompt_length = len(ids)
        self._append(ids, mask=0)
        if len(ids) >= self.limits.context_tokens:
            error = f"the prompt has {len(ids)} tokens and the context {self.limits.context_tokens}"
            raise End(Status.FAILED, StopReason.PROMPT_TOO_LONG, error)

    def _pending_turn(self) -> Turn | None:
        """The last turn, if a resumed trajectory was interrupted before its tools had run."""
        if (
            self.turns
            and self.turns[-1].complete
            and self.turns[-1].observation_end == self.turns[-1].end
        ):
            return self.dialect.parse(self.turns[-1].text)
        return None

    async def _sample_turn(self) -> Turn:
        """Sample until the policy ends its turn."""
        open_turn = self.turns.pop() if self.turns and not self.turns[-1].complete else None
        start = open_turn.start if open_turn else len(self.ids)
        before_s = open_turn.generate_s if open_turn else 0.0
        began_s = time.monotonic()
        finish: FinishReason | None = None
        try:
            room, reason = self._room(start)
            seed = self.sampling.seed
            sampling = replace(
                self.sampling,
                max_tokens=room,
                seed=None
                if seed is None
                else zlib.crc32(f"{seed} {len(self.turns)} {len(self.ids)}".encode()),
            )
            generation = usable(
                await self._generate(sampling),
                room,
                self.sampling,
                self.dialect.tokenizer,
                earlier=self.ids[start:],
            )
            versions = generation.weight_versions or [generation.weight_version] * len(
                generation.ids
            )
            self._append(generation.ids, 1, generation.logprobs, versions)
            finish = generation.finish
        finally:
            # An interrupted turn keeps what it had, so that it can be resumed.
            if finish is not None or open_turn is not None:
                self.turns.append(
                    TurnRecord(
                        text=self.dialect.turn_text(self.ids[start:]),
                        start=start,
                        end=len(self.ids),
                        observation_end=len(self.ids),
                        complete=finish is FinishReason.STOP,
                        generate_s=before_s + time.monotonic() - began_s,
                    )
                )
        if finish is FinishReason.ABORT:
            raise End(Status.ABORTED, StopReason.INTERRUPTED)
        if finish is FinishReason.LENGTH:
            self.answer = self.dialect.parse(self.turns[-1].text).answer
            raise End(Status.TRUNCATED, reason)
        return self.dialect.parse(self.turns[-1].text)

    def _room(self, start: int) -> tuple[int, StopReason]:
        """How many tokens this turn may still sample, and which limit says so."""
        used = len(self.ids)
        if start == used and len(self.turns) >= self.limits.turns:
            raise End(Status.TRUNCATED, StopReason.MAX_TURNS)
        turn_tokens = min(
            self.sampling.max_tokens, self.limits.turn_tokens or self.sampling.max_tokens
        )
        room, reason = min(
            (self.limits.context_tokens - used, StopReason.CONTEXT_LENGTH),
            (self.limits.response_tokens - (used - self.prompt_length), StopReason.RESPONSE_LENGTH),
            (turn_tokens - (used - start), StopReason.TURN_LENGTH),
            key=lambda pair: pair[0],
        )
        if room < 1:
            raise End(Status.TRUNCATED, reason)
        return room, reason

    async def _generate(self, sampling: Sampling) -> Generation:
        try:
            return await self.engine.generate(self.ids, sampling, session_id=self.session_id)
        except EngineConfigError:
            raise
        except ContextOverflowError as error:
            raise End(Status.TRUNCATED, StopReason.CONTEXT_LENGTH, str(error)) from error
        except EngineError as error:
            raise End(Status.ABORTED, StopReason.ENGINE_ERROR, str(error)) from error

    async def _observe(self, calls: Calls, turn: Turn) -> None:
        """Run the calls of the last turn and append what the policy reads next."""
        answered = sum(len(record.calls) for record in self.turns)
        if turn.calls and answered >= self.limits.calls:
            raise End(Status.TRUNCATED, StopReason.MAX_CALLS)
        if len(self.turns) >= self.limits.turns:
            raise End(Status.TRUNCATED, StopReason.MAX_TURNS)
        began_s = time.monotonic()
        records = await calls.execute(turn.calls, self.limits.calls - answered)
        tool_s = time.monotonic() - began_s
        ids = (
            self.dialect.observation_ids([record.text for record in records])
            if records
            else self.dialect.nudge_ids()
        )
        room, reason = min(
            (self.limits.context_tokens - len(self.ids), StopReason.CONTEXT_LENGTH),
            (
                self.limits.response_tokens - (len(self.ids) - self.prompt_length),
                StopReason.RESPONSE_LENGTH,
            ),
            key=lambda pair: pair[0],
        )
        # A trajectory that is resumed under smaller limits may be beyond them already.
        self._append(ids[: max(0, room)], mask=0)
        self.turns[-1] = replace(
            self.turns[-1], calls=tuple(records), tool_s=tool_s, observation_end=len(self.ids)
        )
        if len(ids) >= room:  # cut, or nothing left to answer with
            raise End(Status.TRUNCATED, reason)

    def _append(
        self,
        ids: Sequence[int],
        mask: int,
        logprobs: Sequence[float] | None = None,
        versions: Sequence[int | None] | None = None,
    ) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.versions += versions if versions is not None else [None] * len(ids)

    async def _unless_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        if self.interrupt is None:
            await work
            return
        task = asyncio.ensure_future(work)
        alarm = asyncio.ensure_future(self.interrupt.wait())
        try:
            await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unfinished = [waiting for waiting in (task, alarm) if not waiting.done()]
            for waiting in unfinished:
                waiting.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
        if task.cancelled():
            raise End(Status.ABORTED, StopReason.INTERRUPTED)
        task.result()

    async def _release(self) -> None:
        release = getattr(self.engine, "release", None)
        if release is None:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await release(self.session_id)
        except Exception as error:  # noqa: BLE001 - the trajectory is whole, and the engine drops a session by itself sooner or later
            logger.warning("engine did not release session %s: %r", self.session_id, error)
