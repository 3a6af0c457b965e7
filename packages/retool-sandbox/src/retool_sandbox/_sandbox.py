"""Run untrusted programs: single runs, and sessions whose variables persist."""

import asyncio
import itertools
import logging
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Literal, Self, TypeVar

from ._errors import IsolationUnavailable, SandboxError
from ._exchange import make_blobs, make_request, make_result
from ._policy import Policy
from ._selftest import Check, quick_checks, thorough_checks
from ._types import Level, Limits, Outcome, RunResult
from ._worker import ENVIRONMENT_NAMES, Answer, Worker, library_path

Tier = Literal["stdlib", "math", "science"]
T = TypeVar("T")

ALLOW_NONE = "RETOOL_SANDBOX_ALLOW_NONE"
_ISOLATIONS = ("require", "best_effort", *(level.value for level in Level))
ANSWER_GRACE_S = 60.0  # long: on a machine that swaps, a healthy zygote can be seconds late
_TRIES = 10
_TIERS = ("stdlib", "math", "science")

logger = logging.getLogger(__name__)


class Sandbox:
    """Runs Python programs that nobody has read.

    Use it as an async context manager. It belongs to the event loop that entered it; calls from
    other loops of the same process are carried over to that loop.

    Args:
        tier: Libraries that are loaded before the first run: "stdlib", "math" (numpy, sympy) or
            "science" (adds scipy, pandas).
        isolation: "require" refuses to start below Landlock + seccomp; "best_effort" takes what is
            there and stamps it on every result; the name of a level asks for exactly that level;
            "none" also needs RETOOL_SANDBOX_ALLOW_NONE=1 in the environment.
        limits: Ceilings for every run that brings none of its own.
        concurrency: Programs that run at the same time; the rest waits. Default: the CPU count.
        spares: Children forked ahead of time. Default: as many as concurrency, at most 8.
        max_sessions: Live sessions; one more ends the one used least recently that runs no turn.
        packages: Further installed distributions that programs may import, with what they require.
        policy: What the source of a program may name; not a boundary.
        self_test: Attack the level's guarantees on entering and refuse if one does not hold.
        cgroups: Use a memory cgroup where one can be had; off, rlimits and a memory watch do it.

    Raises:
        IsolationUnavailable: On entering, when the isolation asked for cannot be had.
    """

    def __init__(
        self,
        *,
        tier: Tier = "math",
        isolation: str = "require",
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        concurrency: int | None = None,
        spares: int | None = None,
        max_sessions: int = 64,
        packages: Sequence[str] = (),
        cgroups: bool = True,
        self_test: bool = True,
        policy: Policy | None = None,
    ) -> None:
        if isolation not in _ISOLATIONS:
            raise ValueError(
                f"isolation must be one of {', '.join(_ISOLATIONS)}, got {isolation!r}"
            )
        if isolation == "none" and os.environ.get(ALLOW_NONE) != "1":
            raise IsolationUnavailable(
                f"isolation='none' runs untrusted code unprotected; set {ALLOW_NONE}=1 to allow it"
            )
        if tier not in _TIERS:
            raise ValueError(f"tier must be one of {', '.join(_TIERS)}, got {tier!r}")
        if concurrency is None:
            concurrency = len(os.sched_getaffinity(0))
        if concurrency < 1:
            raise ValueError(f"concurrency must be >= 1, got {concurrency}")
        if max_sessions < 1:
            raise ValueError(f"max_sessions must be >= 1, got {max_sessions}")
        self._tier = tier
        self._isolation = isolation
        self._limits = limits
        self._concurrency = concurrency
        self._num_spares = min(concurrency, 8) if spares is None else spares
        self._max_sessions = max_sessions
        self._packages = tuple(packages)
        self._cgroups = cgroups
        self._self_test = self_test
        self._policy = policy
        self._ids = itertools.count(1)
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner_pid = 0
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    @property
    def limits(self) -> Limits:
        """The ceilings of a run that brings none."""
        return self._limits

    @property
    def policy(self) -> Policy | None:
        """What the source of a program may name, unless a run brings another policy."""
        return self._policy

    @property
    def level(self) -> Level:
        """The isolation that programs run at."""
        if self._worker is None:
            raise SandboxError("the sandbox is not open; use `async with Sandbox() as sandbox`")
        return Level(self._worker.level)

    @property
    def facts(self) -> dict[str, Any]:
        """What the start found out: level, Landlock version, memory limit, failed probes."""
        if self._worker is None:
            raise SandboxError("the sandbox is not open; use `async with Sandbox() as sandbox`")
        return self._worker.facts

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise SandboxError("the sandbox is open already")
        self._loop = asyncio.get_running_loop()
        self._owner_pid = os.getpid()
        self._slots = asyncio.Semaphore(self._concurrency)
        self._starting = asyncio.Lock()
        try:
            await self._live_worker()
        except BaseException:
            self._loop = None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop = None  # runs that still wait for their turn must not start a zygote again
        async with self._starting:
            worker, self._worker = self._worker, None
            self._sessions.clear()
            if worker is not None:
                await worker.stop()

    async def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        policy: Policy | None = None,
    ) -> RunResult:
        """Run one program from nothing and say how it ended.

        Args:
            code: Python source.
            stdin: What the program reads; without it, reading meets the end of file at once.
            files: Relative path to content, placed into the scratch directory beforehand.
            limits: Ceilings of this run.
            policy: What the source may name, instead of the sandbox's own policy.
            seed: Seeds `random` and numpy; without it every run has numbers of its own.

        Raises:
            SandboxError: The sandbox did not work (never: the program did not work).
            ValueError: A file's name leads out of the scratch, or the input is more than half of
                `memory_mib`.
        """
        limits = limits or self._limits
        request = make_request(limits, files, seed, policy or self._policy)
        blobs = make_blobs(code, stdin, files, limits)
        return await self._on_loop(self._run(request, blobs))

    async def review(self, code: str, policy: Policy) -> str | None:
        """Why a policy would refuse a program, without running it; None if it would not."""
        request = {**make_request(self._limits, None, None, policy), "review_only": True}
        result = await self._on_loop(self._run(request, make_blobs(code, "", None, self._limits)))
        return result.detail if result.outcome is Outcome.REFUSED else None

    @asynccontextmanager
    async def session(self, *, limits: Limits | None = None) -> AsyncGenerator["Session", None]:
        """Open an interpreter whose variables persist from one run to the next."""
        session = Session(next(self._ids), limits or self._limits, self._policy, self._bridged_turn)
        try:
            yield session
        finally:
            session.closed = True
            if self._loop is not None:
                await self._on_loop(self._end(session))

    async def spare_pids(self) -> list[int]:
        """Pids, as the caller sees them, of children that wait for a program."""
        worker = await self._live_worker()
        head, _ = await worker.ask({"op": "stats"}, [], 10.0)
        return [int(pid) for pid in head["spares"]]

    # -- inside the owner loop -----------------------------------------------------------------

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None or os.getpid() != self._owner_pid:
            work.close()
            raise SandboxError(
                "the sandbox is not open in this process; use `async with Sandbox() as sandbox`"
            )
        if loop is asyncio.get_running_loop():
            return await work
        if not loop.is_running():
            work.close()
            raise SandboxError("the event loop that opened the sandbox runs no longer")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    async def _live_worker(self) -> Worker:
        async with self._starting:
            if self._loop is None:
                raise SandboxError("the sandbox was closed before this run started")
            worker = self._worker
            if worker is not None and worker.alive:
                return worker
            if worker is not None:
                await worker.stop()
            fresh = Worker(
                {
                    "tier": self._tier,
                    "isolation": self._isolation,
                    "packages": list(self._packages),
                    "path": library_path(),
                    "cgroups": self._cgroups,
                    "host_pid": os.getpid(),
                    "name": f"retool-sandbox-{os.getpid()}-{os.urandom(4).hex()}",
                    "spares": self._num_spares,
                    "limits": asdict(self._limits),
                }
            )
            await fresh.start()
            if worker is None or worker.level != fresh.level:
                if self._self_test:
                    await self._attack(fresh)
                self._warn_if_weak(fresh)
            self._worker = fresh
            return fresh

    async def _attack(self, worker: Worker) -> None:
        """Refuse a level whose guarantees do not hold."""
        level = Level(worker.level)
        try:
            checks = await quick_checks(_runner(worker), level, ENVIRONMENT_NAMES)
            failed = [f"{check.name}: {check.measured}" for check in checks if not check.ok]
            if failed:
                raise IsolationUnavailable(
                    f"the self-test broke level {level.value!r}: " + "; ".join(failed)
                    + "; run `retool-sandbox doctor`"
                )  # fmt: skip
        except BaseException:
            await worker.stop()
            raise

    def _warn_if_weak(self, worker: Worker) -> None:
        level = Level(worker.level)
        if self._isolation == "best_effort" and level not in (Level.FULL, Level.LANDLOCK):
            logger.warning(
                "isolation is only %r here: %s",
                level.value,
                "; ".join(worker.facts["failed_probes"]),
            )

    async def check(self) -> list[Check]:
        """Attack every guarantee of the level in use; what `retool-sandbox doctor` shows."""
        worker = await self._live_worker()
        return await thorough_checks(_runner(worker), Level(worker.level), ENVIRONMENT_NAMES)

    async def _run(self, request: dict[str, Any], blobs: list[bytes]) -> RunResult:
        async with self._slots:
            worker, answer = await self._ask(request, blobs)
            return make_result(answer, worker.level)

    async def _turn(
        self, session: "Session", request: dict[str, Any], blobs: list[bytes]
    ) -> RunResult:
        async with session.lock, self._slots:
            if session.closed:
                raise SandboxError("the session was closed; this turn did not start")
            session.worker = await self._live_worker()
            session.running = True
            self._touch(session)
            request = {**request, "session": session.session_id}
            try:
                session.worker, answer = await self._ask(request, blobs)
            finally:
                session.running = False
            head = answer[0]
            over = head.get("over", True)
            lost = over or (session.has_state and head["fresh"])
            result = make_result(answer, session.worker.level, lost=lost)
            # A turn that raised keeps the mark: the next one has to say that the state is lost.
            session.has_state = not over
        return result

    async def _ask(self, request: dict[str, Any], blobs: list[bytes]) -> tuple[Worker, Answer]:
        tries = 0
        while True:
            worker = await self._live_worker()
            answer = await worker.ask(request, blobs, _deadline_s(request))
            tries += 1
            # A child that somebody killed before it began: nothing ran, another one may.
            if answer[0]["outcome"] != "not_started" or tries == _TRIES:
                return worker, answer

    async def _bridged_turn(
        self, session: "Session", request: dict[str, Any], blobs: list[bytes]
    ) -> RunResult:
        return await self._on_loop(self._turn(session, request, blobs))

    def _touch(self, session: "Session") -> None:
        self._sessions[session.session_id] = session
        self._sessions.move_to_end(session.session_id)
        idle = [each for each in self._sessions.values() if not each.running]
        for oldest in idle[: max(0, len(self._sessions) - self._max_sessions)]:
            del self._sessions[oldest.session_id]
            if oldest.worker is not None:
                oldest.worker.send({"op": "end_session", "session": oldest.session_id})

    async def _end(self, session: "Session") -> None:
        self._sessions.pop(session.session_id, None)
        if session.worker is not None:
            session.worker.send({"op": "end_session", "session": session.session_id})


class Session:
    """One interpreter of its own; turns run one after another."""

    def __init__(
        self,
        session_id: int,
        limits: Limits,
        policy: Policy | None,
        turn: Callable[["Session", dict[str, Any], list[bytes]], Awaitable[RunResult]],
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._turn = turn
        self.session_id = session_id
        self.lock = asyncio.Lock()
        self.worker: Worker | None = None
        self.has_state = False
        self.running = False
        self.closed = False

    async def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> RunResult:
        """Run one turn. A turn that is killed takes the variables with it: `state_lost` says so."""
        limits = limits or self._limits
        request = make_request(limits, files, None, policy or self._policy)
        blobs = make_blobs(code, stdin, files, limits)
        return await self._turn(self, request, blobs)


def _runner(worker: Worker) -> Callable[[str, Limits], Awaitable[RunResult]]:
    async def run(code: str, limits: Limits) -> RunResult:
        request = make_request(limits, None, None, None)
        answer = await worker.ask(request, make_blobs(code, "", None, limits), _deadline_s(request))
        return make_result(answer, worker.level)

    return run


def _deadline_s(request: dict[str, Any]) -> float:
    # A zygote that is this late is stuck and is replaced.
    return float(request["limits"]["wall_time_s"]) + ANSWER_GRACE_S
