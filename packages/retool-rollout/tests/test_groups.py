"""Groups: bounded, streamed, and whole under fire."""

import asyncio
import random
from collections import Counter
from contextlib import aclosing

import pytest
from aiohttp import web

from retool_rollout import (
    EngineConfigError,
    EngineError,
    Limits,
    RolloutMetrics,
    Sampling,
    ScriptedEngine,
    Status,
    StopReason,
    VllmEngine,
    make_dialect,
    rollout_groups,
)
from retool_rollout import _http as http

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}


@pytest.fixture(scope="module")
def dialect(tiny):
    return make_dialect("hermes", tiny, tool_specs=())


@pytest.fixture
def options(dialect, tools):
    return {
        "tools": tools,
        "dialect": dialect,
        "limits": Limits(),
        "sampling": Sampling(max_tokens=500),
    }


@pytest.fixture
def turns(dialect):
    return [dialect.turn_ids("", [CALL]), dialect.turn_ids(r"\boxed{42}", [])]


class Counting(ScriptedEngine):
    """Counts how many generations are open at once."""

    open = most = 0

    async def generate(self, prompt_ids, sampling, *, session_id):
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(0.001)
            return await super().generate(prompt_ids, sampling, session_id=session_id)
        finally:
            self.open -= 1


async def test_every_problem_comes_back_once_and_never_more_at_a_time_than_allowed(
    make_question, options, turns
):
    engine = Counting(turns)
    problems = [make_question(problem_id=f"p{i}") for i in range(30)]
    metrics = RolloutMetrics()
    seen = [
        group
        async for group in rollout_groups(
            problems, group_size=4, concurrency=6, engine=engine, metrics=metrics, **options
        )
    ]
    assert sorted(group.index for group in seen) == list(range(30))
    for group in seen:
        assert group.problem is problems[group.index]
        assert [t.problem_id for t in group.trajectories] == [group.problem.problem_id] * 4
    assert engine.most == 6
    numbers = metrics.summary()
    assert (numbers["trajectories"], numbers["status/completed"], numbers["tool/calls"]) == (
        120,
        120,
        120,
    )
    assert numbers["stall/p99_ms"] >= 0


async def test_problems_are_taken_as_slots_become_free(make_question, options, turns):
    taken = []

    def problems():
        for i in range(1000):
            taken.append(i)
            yield make_question(problem_id=f"p{i}")

    groups = rollout_groups(
        problems(), group_size=2, concurrency=4, engine=Counting(turns), **options
    )
    async with aclosing(groups):
        async for _ in groups:
            await asyncio.sleep(0.05)  # a slow consumer
            if len(taken) > 8:
                break
        assert len(taken) < 16


async def test_leaving_early_leaves_nothing_running(make_question, options, dialect):
    before = asyncio.all_tasks()
    slow = Counting(lambda *_: dialect.turn_ids("", [CALL]))
    groups = rollout_groups(
        [make_question(problem_id=f"p{i}") for i in range(50)],
        group_size=2,
        concurrency=8,
        engine=slow,
        **options,
    )
    async with aclosing(groups):
        async for _ in groups:
            break
    assert slow.open == 0
    assert asyncio.all_tasks() == before


async def test_a_configuration_error_ends_everything(make_question, options):
    class Refusing:
        async def generate(self, prompt_ids, sampling, *, session_id):
            raise EngineConfigError("start vLLM with --enable-scale-out")

    before = asyncio.all_tasks()
    groups = rollout_groups(
        [make_question()] * 5, group_size=2, concurrency=4, engine=Refusing(), **options
    )
    with pytest.raises(EngineConfigError, match="scale-out"):
        await anext(groups)
    assert asyncio.all_tasks() == before


async def test_a_failed_trajectory_is_resumed_and_a_seed_differs_by_member(
    make_question, options, turns
):
    class Flaky(ScriptedEngine):
        def __init__(self):
            super().__init__([])
            self.seeds = []

        async def generate(self, prompt_ids, sampling, *, session_id):
            self.seeds.append(sampling.seed)
            number = len(self.seeds)
            if number % 3 == 0:
                raise EngineError("gone")
            ids = turns[1] if 42 in prompt_ids and len(prompt_ids) > 150 else turns[0]
            return await ScriptedEngine([ids]).generate(prompt_ids, sampling, session_id="x")

    engine, metrics = Flaky(), RolloutMetrics()
    options["sampling"] = Sampling(max_tokens=500, seed=1)
    options["limits"] = Limits(turns=3)
    (group,) = [
        group
        async for group in rollout_groups(
            [make_question()],
            group_size=6,
            concurrency=6,
            attempts=9,
            engine=engine,
            metrics=metrics,
            **options,
        )
    ]
    assert {t.status for t in group.trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
    assert metrics.retries > 0
    assert len(set(engine.seeds)) > 6


@pytest.mark.parametrize("name", ["group_size", "concurrency", "attempts"])
async def test_counts_below_one_are_refused(make_question, options, name):
    arguments = {"group_size": 1, "concurrency": 1, "attempts": 1, name: 0}
    with pytest.raises(ValueError, match=name):
        async for _ in rollout_groups([], engine=ScriptedEngine([]), **arguments, **options):
            pass


async def test_a_thousand_trajectories_under_fire_each_end_exactly_once(
    fake_server, make_question, make_tools, options, turns, monkeypatch
):
    monkeypatch.setattr(http, "FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(http, "LONGEST_PAUSE_S", 0.02)
    dice = random.Random(20)
    injected: Counter[str] = Counter()
    fake_server.turns = turns

    async def fault(request):
        kind = dice.choices(
            ["none", "500", "reset", "half", "no logprobs", "hang", "slow"],
            [70, 6, 6, 6, 6, 1, 5],
        )[0]
        injected[kind] += 1
        match kind:
            case "500":
                return web.Response(status=500, text="EngineCore died")
            case "reset":
                request.transport.abort()
                return web.Response()
            case "half":
                return web.Response(text='{"choices": [{"tok', content_type="application/json")
            case "no logprobs":
                body = await request.json()
                ids = fake_server.next_ids(body["token_ids"])
                choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": None}
                return web.json_response({"choices": [choice]})
            case "hang":
                await asyncio.sleep(30)
            case "slow":
                await asyncio.sleep(0.05)
        return None

    fake_server.fault = fault

    async def tool(name, arguments):
        await asyncio.sleep(0)
        if dice.random() < 0.02:
            raise OSError("sandbox gone")
        return "42"

    options["tools"] = executor = make_tools(answer=tool)
    problems = [make_question(problem_id=f"p{i}") for i in range(250)]
    before = asyncio.all_tasks()
    ended: Counter[str] = Counter()
    statuses: Counter[Status] = Counter()
    async with VllmEngine(fake_server.url, attempts=2, timeout_s=2.0) as engine:
        async for group in rollout_groups(
            problems, group_size=4, concurrency=64, engine=engine, stateful=True, **options
        ):
            for trajectory in group.trajectories:
                ended[trajectory.problem_id] += 1
                statuses[trajectory.status] += 1
                if trajectory.status is Status.COMPLETED:
                    assert trajectory.answer == "42"
                else:
                    assert trajectory.status is Status.ABORTED
                    assert trajectory.error
                    assert trajectory.stop_reason in (
                        StopReason.ENGINE_ERROR,
                        StopReason.BAD_LOGPROBS,
                        StopReason.TOOL_ERROR,
                    )
        assert engine.replicas._replicas[0].in_flight == 0
        assert not engine.replicas._home
    assert ended == {problem.problem_id: 4 for problem in problems}
    assert statuses[Status.COMPLETED] > 500
    assert statuses[Status.ABORTED] > 50
    assert min(injected.values()) > 0
    assert executor.open_sessions == 0
    left = {repr(task) for task in asyncio.all_tasks() - before}
    assert not {task for task in left if "RequestHandler" not in task}  # those are the server's
