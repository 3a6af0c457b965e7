"""The loop: who spoke, what ends a trajectory, what an interruption leaves."""

import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_rollout import (
    ContextOverflowError,
    EngineConfigError,
    EngineError,
    FinishReason,
    Generation,
    Limits,
    Reply,
    Sampling,
    ScriptedEngine,
    Status,
    StopReason,
    Trajectory,
    _calls,
    make_dialect,
    rollout,
)

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}
ANSWER = r"\boxed{42}"


@pytest.fixture(scope="module")
def dialect(tiny):
    return make_dialect("hermes", tiny, tool_specs=())


@pytest.fixture
def roll(dialect, tools, question):
    """Roll out with the usual arguments; `limits` may be given as keywords."""

    async def run(engine, *, max_tokens=4096, tools=tools, limits=None, **options):
        if isinstance(engine, list):
            engine = ScriptedEngine(engine)
        return await rollout(
            question,
            engine=engine,
            tools=tools,
            dialect=dialect,
            limits=limits or Limits(),
            sampling=Sampling(max_tokens=max_tokens),
            **options,
        )

    return run


class Answers:
    """An engine that gives prepared answers: generations, or errors to raise."""

    def __init__(self, *answers):
        self.answers, self.asked, self.released = list(answers), [], []

    async def generate(self, prompt_ids, sampling, *, session_id):
        self.asked.append((list(prompt_ids), sampling, session_id))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def release(self, session_id):
        self.released.append(session_id)


def generation(ids, finish=FinishReason.STOP, **changes):
    made = Generation(ids=tuple(ids), logprobs=(-0.5,) * len(ids), finish=finish)
    return replace(made, **changes)


async def test_only_what_the_policy_sampled_has_mask_1(dialect, roll, tools, question):
    first, last = dialect.turn_ids("Computing.", [CALL, CALL]), dialect.turn_ids(ANSWER, [])
    done = await roll([first, last])
    assert (done.status, done.stop_reason) == (Status.COMPLETED, StopReason.ANSWERED)
    assert done.answer == "42"
    parts = [
        (dialect.prompt_ids(question.messages, ()), 0),
        (first, 1),
        (dialect.observation_ids(["42", "42"]), 0),
        (last, 1),
    ]
    assert list(done.ids) == [token for ids, _ in parts for token in ids]
    assert list(done.mask) == [mask for ids, mask in parts for _ in ids]
    assert [p for p, m in zip(done.logprobs, done.mask, strict=True) if m == 0] == [0.0] * (
        len(parts[0][0]) + len(parts[2][0])
    )
    assert [turn.text for turn in done.turns][1] == ANSWER
    assert done.final_text == ANSWER
    assert done.num_calls == len(tools.seen) == 2


async def test_a_tokenizer_without_markers_spells_them(bare, tools, question):
    dialect = make_dialect("hermes", bare)
    assert dialect.stop == ("<|im_end|>",)
    done = await rollout(
        question,
        engine=ScriptedEngine([dialect.turn_ids("", [CALL]), dialect.turn_ids(ANSWER, [])]),
        tools=tools,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=1000),
    )
    assert done.answer == "42"
    assert bare.decode(done.ids).endswith(
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n\\boxed{42}<|im_end|>"
    )


async def test_without_system_prompt_and_tools_the_prompt_has_no_system_block(
    dialect, tiny, question
):
    assert tiny.decode(dialect.prompt_ids(question.messages, ())) == (
        "<|im_start|>user\nWhat is 6 * 7?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_odd_tokenisation_is_kept_as_it_was_sampled(qwen, tools, question):
    # "print" spelled letter by letter: no encoder would do that (trl#5224).
    dialect = make_dialect("hermes", qwen)
    letters = [token for letter in f"say {ANSWER}" for token in qwen.encode_text(letter)]
    assert letters != qwen.encode_text(f"say {ANSWER}")
    turn = [*letters, qwen.control_id("<|im_end|>")]
    done = await rollout(
        question,
        engine=ScriptedEngine([turn]),
        tools=tools,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=1000),
    )
    assert list(done.response_ids) == turn
    assert done.answer == "42"


async def test_an_answer_in_tool_output_earns_nothing(dialect, roll, make_tools):
    tools = make_tools(answer=lambda name, arguments: r"\boxed{666}")
    done = await roll([dialect.turn_ids("", [CALL]), dialect.turn_ids("Done.", [])], tools=tools)
    assert (done.answer, done.stop_reason) == (None, StopReason.NO_CALL)
    assert "666" not in done.own_text


async def test_a_malformed_call_is_answered_and_the_policy_goes_on(dialect, roll, tools, tiny):
    broken = [*tiny.encode_pieces([("<tool_call>{oops</tool_call><|im_end|>", True)])]
    done = await roll([broken, dialect.turn_ids(ANSWER, [])])
    (call,) = done.turns[0].calls
    assert (call.outcome, call.ok) == ("bad_call", False)
    assert "not executed" in call.text
    assert not tools.seen
    assert done.answer == "42"


async def test_a_turn_cut_by_its_length_runs_no_call(dialect, roll, tools):
    turn = dialect.turn_ids("", [CALL, CALL])
    done = await roll([turn], max_tokens=len(turn) - 5)
    assert (done.status, done.stop_reason) == (Status.TRUNCATED, StopReason.TURN_LENGTH)
    assert not tools.seen
    assert done.num_sampled == len(turn) - 5


async def test_each_limit_has_its_own_reason(dialect, roll, question):
    turn, last = dialect.turn_ids("", [CALL]), dialect.turn_ids(ANSWER, [])
    prompt = len(dialect.prompt_ids(question.messages, ()))
    observation = len(dialect.observation_ids(["42"]))
    cases = [
        (Limits(turns=1), StopReason.MAX_TURNS),
        (Limits(calls=1), StopReason.MAX_CALLS),
        (Limits(turn_tokens=len(turn) - 1), StopReason.TURN_LENGTH),
        (Limits(response_tokens=len(turn) - 1), StopReason.RESPONSE_LENGTH),
        (Limits(response_tokens=len(turn) + observation), StopReason.RESPONSE_LENGTH),
        (Limits(response_tokens=len(turn) + 3), StopReason.RESPONSE_LENGTH),
        (Limits(context_tokens=prompt + len(turn) + 3), StopReason.CONTEXT_LENGTH),
    ]
    for limits, reason in cases:
        done = await roll([turn, turn, last], limits=limits)
        assert (done.status, done.stop_reason) == (Status.TRUNCATED, reason), limits
        assert len(done.ids) <= limits.context_tokens
        assert len(done.response_ids) <= limits.response_tokens


async def test_a_prompt_beyond_the_context_fails_before_anything_is_sampled(roll):
    done = await roll(Answers(), limits=Limits(context_tokens=10))
    assert (done.status, done.stop_reason) == (Status.FAILED, StopReason.PROMPT_TOO_LONG)
    assert "10" in str(done.error)


async def test_a_problem_that_cannot_be_rendered_fails_alone(dialect, make_question):
    done = await rollout(
        make_question(messages=({"role": "user", "content": 7},)),
        engine=Answers(),
        tools=None,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=10),
    )
    assert (done.status, done.stop_reason) == (Status.FAILED, StopReason.BAD_PROMPT)
    assert "must be text" in str(done.error)


@pytest.mark.parametrize("moment", ["open", "close"])
async def test_a_tool_session_that_fails_is_no_crash(dialect, roll, make_tools, moment):
    class Broken(make_tools):
        @asynccontextmanager
        async def session(self):
            if moment == "open":
                raise OSError("no isolator")
            yield self
            raise OSError("cannot close")

    done = await roll([dialect.turn_ids(ANSWER, [])], tools=Broken(), stateful=True)
    if moment == "open":
        assert (done.status, done.stop_reason) == (Status.ABORTED, StopReason.TOOL_ERROR)
        assert "no isolator" in str(done.error)
    else:  # the trajectory is whole
        assert (done.status, done.answer) == (Status.COMPLETED, "42")


async def test_a_tool_session_that_does_not_close_is_left_behind(
    dialect, roll, make_tools, monkeypatch
):
    class Stuck(make_tools):
        @asynccontextmanager
        async def session(self):
            yield self
            await asyncio.sleep(60)

    monkeypatch.setattr(_calls, "CLOSE_TIMEOUT_S", 0.05)
    async with asyncio.timeout(10):
        done = await roll([dialect.turn_ids(ANSWER, [])], tools=Stuck(), stateful=True)
    assert (done.status, done.answer) == (Status.COMPLETED, "42")


async def test_max_tokens_of_each_turn_is_what_is_left(dialect, roll):
    turn = dialect.turn_ids("", [CALL])
    engine = Answers(generation(turn), generation(dialect.turn_ids(ANSWER, [])))
    await roll(engine, limits=Limits(response_tokens=300), max_tokens=250)
    observation = len(dialect.observation_ids(["42"]))
    assert [asked.max_tokens for _, asked, _ in engine.asked] == [
        250,
        300 - len(turn) - observation,
    ]


async def test_an_engine_that_ignores_max_tokens_cannot_break_the_budget(dialect, roll):
    done = await roll(Answers(generation([5] * 999)), limits=Limits(response_tokens=100))
    assert (done.status, len(done.response_ids)) == (Status.TRUNCATED, 100)


async def test_tokens_past_the_stop_are_dropped(dialect, roll, tiny):
    turn = dialect.turn_ids(ANSWER, [])
    done = await roll(Answers(generation([*turn, 1, 2, 3])))
    assert list(done.response_ids) == turn
    retool = make_dialect("retool", tiny)
    program = retool.turn_ids("", [CALL])
    past = [*program, *tiny.encode_text("\n<interpreter>41</interpreter>")]
    engine = Answers(generation(past), generation(retool.turn_ids(ANSWER, [])))

    class One:
        messages, problem_id = ({"role": "user", "content": "?"},), "p"

    done = await rollout(
        One(),
        engine=engine,
        tools=None,
        dialect=retool,
        limits=Limits(),
        sampling=Sampling(max_tokens=1000),
    )
    assert done.ids[done.turns[0].start : done.turns[0].end] == tuple(program)


async def test_a_stop_string_that_an_interruption_divides_still_ends_the_turn(
    tiny, tools, question
):
    retool = make_dialect("retool", tiny)
    program = retool.turn_ids("", [CALL])
    # The engine sees only its own half of `</code>`, and writes on.
    rest = [*program[-3:], *tiny.encode_text("\n<interpreter>41</interpreter>")]
    engine = Answers(
        generation(program[:-3], FinishReason.ABORT),
        generation(rest, FinishReason.LENGTH),
        generation(retool.turn_ids(ANSWER, [])),
    )

    async def run(resume):
        return await rollout(
            question,
            engine=engine,
            tools=tools,
            dialect=retool,
            limits=Limits(),
            sampling=Sampling(max_tokens=1000),
            resume=resume,
        )

    done = await run(await run(None))
    assert done.ids[done.turns[0].start : done.turns[0].end] == tuple(program)
    assert (done.status, done.answer, len(tools.seen)) == (Status.COMPLETED, "42", 1)


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.ABORT])
async def test_a_turn_whose_last_token_is_its_stop_is_complete(dialect, roll, finish):
    # SGLang looks at the length before it looks at the token.
    done = await roll(Answers(generation(dialect.turn_ids(ANSWER, []), finish)))
    assert (done.status, done.stop_reason) == (Status.COMPLETED, StopReason.ANSWERED)


@pytest.mark.parametrize(
    "logprobs",
    [(), (-0.5,), (-0.5, math.nan), (-0.5, -math.inf), (-0.5, -0.5, -0.5)],
    ids=["missing", "short", "nan", "infinite", "long"],
)
async def test_unusable_logprobs_abort_and_are_never_zeros(roll, logprobs):
    done = await roll(Answers(generation([1, 2], logprobs=logprobs)))
    assert (done.status, done.stop_reason) == (Status.ABORTED, StopReason.BAD_LOGPROBS)
    assert done.num_sampled == 0
    assert len(done.ids) == done.prompt_length


async def test_a_broken_engine_aborts_and_a_misconfigured_one_raises(roll):
    done = await roll(Answers(EngineError("reset by peer")))
    assert (done.status, done.stop_reason) == (Status.ABORTED, StopReason.ENGINE_ERROR)
    assert done.error == "reset by peer"
    done = await roll(Answers(ContextOverflowError("2048")))
    assert (done.status, done.stop_reason) == (Status.TRUNCATED, StopReason.CONTEXT_LENGTH)
    done = await roll(Answers(generation([])))
    assert done.stop_reason is StopReason.ENGINE_ERROR
    with pytest.raises(EngineConfigError, match="flag"):
        await roll(Answers(EngineConfigError("the flag is missing")))


async def test_tool_machinery_that_fails_aborts_and_never_becomes_tool_output(
    dialect, roll, make_tools
):
    def fail(name, arguments):
        raise RuntimeError("no isolator")

    for stateful in (False, True):
        done = await roll(
            [dialect.turn_ids("", [CALL, CALL])], tools=make_tools(answer=fail), stateful=stateful
        )
        assert (done.status, done.stop_reason) == (Status.ABORTED, StopReason.TOOL_ERROR)
        assert "no isolator" in str(done.error)
        assert len(done.ids) == done.turns[0].end
    # Under limits that it is beyond already, nothing more is appended.
    small = Limits(context_tokens=len(done.ids) - 20)
    assert (await roll([], resume=done, limits=small)).ids == done.ids
    # It goes on where it stood: the turn is not sampled again, its tools run.
    resumed = await roll([dialect.turn_ids(ANSWER, [])], resume=done)
    assert resumed.ids[: len(done.ids)] == done.ids
    assert (resumed.status, resumed.answer, resumed.num_calls) == (Status.COMPLETED, "42", 2)


async def test_calls_beyond_the_limits_are_refused_in_words(dialect, roll, tools):
    turns = [dialect.turn_ids("", [CALL] * 4), dialect.turn_ids(ANSWER, [])]
    done = await roll(turns, limits=Limits(parallel_calls=2, calls=3))
    assert [call.outcome for call in done.turns[0].calls] == ["ok", "ok", "not_run", "not_run"]
    assert "at most 2 calls per turn and 3 in all" in done.turns[0].calls[3].text
    assert len(tools.seen) == 2
    done = await roll(turns, limits=Limits(parallel_calls=2, observation_chars=64))
    assert max(len(call.text) for call in done.turns[0].calls) <= 64


@pytest.mark.parametrize("where", ["head", "middle", "tail"])
async def test_long_tool_output_is_cut_where_asked(dialect, roll, make_tools, where):
    tools = make_tools(answer=lambda name, arguments: "a" * 5000 + "z" * 5000)
    turns = [dialect.turn_ids("", [CALL]), dialect.turn_ids(ANSWER, [])]
    limits = Limits(observation_chars=200, observation_cut=where)
    (call,) = (await roll(turns, tools=tools, limits=limits)).turns[0].calls
    assert len(call.text) <= 200
    assert "characters cut" in call.text
    assert call.text.startswith("a") is (where != "head")
    assert call.text.endswith("z") is (where != "tail")


async def test_parallel_calls_run_at_once_and_answer_in_order(dialect, roll, make_tools):
    arrived = asyncio.Barrier(2)

    async def answer(name, arguments):
        async with asyncio.timeout(5):
            await arrived.wait()  # passes only if both calls are there together
        return arguments["code"]

    calls = [{"name": "code_interpreter", "arguments": {"code": code}} for code in ("1", "2")]
    turns = [dialect.turn_ids("", calls), dialect.turn_ids(ANSWER, [])]
    done = await roll(turns, tools=make_tools(answer=answer))
    assert [call.text for call in done.turns[0].calls] == ["1", "2"]


async def test_a_limiter_inside_the_executor_is_taken_once(dialect, make_tools, question):
    # vime#382: taking a semaphore of one twice hangs at the first call.
    slots = asyncio.Semaphore(1)

    async def answer(name, arguments):
        async with slots:
            await asyncio.sleep(0)
        return "42"

    tools = make_tools(answer=answer)
    turns = [dialect.turn_ids("", [CALL, CALL]), dialect.turn_ids(ANSWER, [])]
    async with asyncio.timeout(10):
        done = await asyncio.gather(
            *(
                rollout(
                    question,
                    engine=ScriptedEngine(turns),
                    tools=tools,
                    dialect=dialect,
                    limits=Limits(),
                    sampling=Sampling(max_tokens=1000),
                )
                for _ in range(16)
            )
        )
    assert {one.answer for one in done} == {"42"}


async def test_time_is_a_limit_too(dialect, roll, make_tools):
    async def slow(name, arguments):
        await asyncio.sleep(60)

    tools = make_tools(answer=slow)
    done = await roll(
        [dialect.turn_ids("", [CALL])], tools=tools, limits=Limits(wall_time_s=0.1), stateful=True
    )
    assert (done.status, done.stop_reason) == (Status.TRUNCATED, StopReason.TIME_LIMIT)
    assert tools.open_sessions == 0


async def test_an_interrupted_generation_resumes_with_its_old_tokens(dialect, roll, tiny):
    turn = dialect.turn_ids("Let me compute.", [CALL])
    half = generation(turn[:7], FinishReason.ABORT, weight_version=3)
    first = await roll(Answers(half), max_tokens=500)
    assert (first.status, first.stop_reason) == (Status.ABORTED, StopReason.INTERRUPTED)
    assert not first.turns[0].complete
    engine = Answers(
        generation(turn[7:], weight_version=4, logprobs=(-0.25,) * len(turn[7:])),
        generation(dialect.turn_ids(ANSWER, []), weight_version=5),
    )
    done = await roll(engine, resume=first, max_tokens=500)
    assert engine.asked[0][1].max_tokens == 493  # one budget for the turn, not one for each attempt
    assert done.turns[0].text == tiny.decode(turn[:-1])
    assert list(done.ids[first.prompt_length :][: len(turn)]) == turn
    sampled = [
        (version, logprob)
        for version, logprob, mask in zip(
            done.weight_versions, done.logprobs, done.mask, strict=True
        )
        if mask
    ]
    last = len(dialect.turn_ids(ANSWER, []))
    assert sampled == [(3, -0.5)] * 7 + [(4, -0.25)] * (len(turn) - 7) + [(5, -0.5)] * last
    assert (len(done.turns), done.answer) == (2, "42")


async def test_versions_that_change_inside_a_turn_are_kept_per_token(dialect, roll):
    turn = dialect.turn_ids(ANSWER, [])
    versions = tuple([1] * 4 + [2] * (len(turn) - 4))
    done = await roll(Answers(generation(turn, weight_versions=versions)))
    assert done.weight_versions[done.prompt_length :] == versions


async def test_a_resumed_session_runs_the_earlier_calls_again(dialect, roll, make_tools):
    tools = make_tools()
    engine = Answers(generation(dialect.turn_ids("", [CALL])), EngineError("gone"))
    first = await roll(engine, tools=tools, stateful=True)
    assert first.status is Status.ABORTED
    again = make_tools()
    done = await roll([dialect.turn_ids(ANSWER, [])], tools=again, stateful=True, resume=first)
    assert again.seen == tools.seen
    assert (done.answer, done.num_calls) == ("42", 1)


async def test_only_an_aborted_trajectory_can_be_resumed(dialect, roll):
    done = await roll([dialect.turn_ids(ANSWER, [])])
    with pytest.raises(ValueError, match="completed"):
        await roll([], resume=done)


async def test_an_interrupt_ends_the_trajectory_at_once(dialect, roll, make_tools):
    stop = asyncio.Event()

    async def slow(name, arguments):
        stop.set()
        await asyncio.sleep(60)

    async with asyncio.timeout(10):
        done = await roll(
            [dialect.turn_ids("", [CALL])], tools=make_tools(answer=slow), interrupt=stop
        )
    assert (done.status, done.stop_reason) == (Status.ABORTED, StopReason.INTERRUPTED)
    assert done.turns[0].complete
    assert not done.turns[0].calls


@pytest.mark.parametrize("phase", ["engine", "tool"])
async def test_cancelling_leaves_nothing_running(dialect, roll, make_tools, phase):
    ended = []

    async def forever(*_, **__):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(phase)

    engine = Answers(generation(dialect.turn_ids("", [CALL, CALL])))
    if phase == "engine":
        engine.generate = forever
    tools = make_tools(answer=forever)
    before = asyncio.all_tasks()
    task = asyncio.create_task(roll(engine, tools=tools, interrupt=asyncio.Event()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == (["engine"] if phase == "engine" else ["tool", "tool"])
    assert asyncio.all_tasks() == before
    assert len(engine.released) == 1


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("stop", ["cancel", "interrupt", "time"])
async def test_a_tool_that_answers_its_cancellation_with_an_error_does_not_undo_it(
    dialect, roll, make_tools, stop, stateful
):
    running, interrupt = asyncio.Event(), asyncio.Event()

    async def stubborn(name, arguments):
        running.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise OSError("connection closed") from None

    task = asyncio.create_task(
        roll(
            [dialect.turn_ids("", [CALL])],
            tools=make_tools(answer=stubborn),
            limits=Limits(wall_time_s=0.2 if stop == "time" else 60),
            interrupt=interrupt if stop == "interrupt" else None,
            stateful=stateful,
        )
    )
    await running.wait()
    if stop == "cancel":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    interrupt.set()
    done = await task
    reason = StopReason.TIME_LIMIT if stop == "time" else StopReason.INTERRUPTED
    assert (done.stop_reason, done.error) == (reason, None)


async def test_an_engine_that_cannot_release_costs_no_trajectory(dialect, roll):
    class Forgetful(ScriptedEngine):
        async def release(self, session_id):
            raise ConnectionError("gone")

    assert (await roll(Forgetful([dialect.turn_ids(ANSWER, [])]))).answer == "42"


async def test_a_session_has_one_id_and_is_released_once(dialect, roll):
    engine = Answers(
        generation(dialect.turn_ids("", [CALL])), generation(dialect.turn_ids(ANSWER, []))
    )
    await roll(engine, session_id="s-1")
    assert [session for _, _, session in engine.asked] == ["s-1", "s-1"]
    assert engine.released == ["s-1"]


async def test_without_tools_a_call_is_told_so(dialect, roll):
    done = await roll([dialect.turn_ids("", [CALL]), dialect.turn_ids(ANSWER, [])], tools=None)
    assert "no tool" in done.turns[0].calls[0].text


def test_configurations_reject_bad_values_at_birth():
    for bad in (
        lambda: Limits(turns=0),
        lambda: Limits(observation_cut="left"),
        lambda: Limits(observation_chars=10),
        lambda: Sampling(max_tokens=0),
        lambda: Sampling(max_tokens=1, temperature=-1),
        lambda: Sampling(max_tokens=1, top_p=0),
        lambda: Sampling(max_tokens=1, top_k=0),
        lambda: ScriptedEngine([], latency=-1) and Reply(text="x").text.nope,
    ):
        with pytest.raises((ValueError, AttributeError)):
            bad()


def test_a_trajectory_of_unequal_lengths_cannot_exist():
    with pytest.raises(ValueError, match="one length"):
        Trajectory(
            problem_id="p",
            ids=(1, 2),
            mask=(0, 0),
            logprobs=(0.0,),
            weight_versions=(None, None),
            prompt_length=2,
            turns=(),
            status=Status.FAILED,
            stop_reason=StopReason.PROMPT_TOO_LONG,
        )


TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(1, 3)),
        st.tuples(st.just("answer"), st.just(0)),
        st.tuples(st.just("noise"), st.integers(1, 40)),
        st.tuples(st.just("broken"), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("error"), st.just(0)),
        st.tuples(st.just("nan"), st.integers(1, 9)),
    ),
    max_size=8,
)
LIMITS = st.builds(
    Limits,
    turns=st.integers(1, 5),
    calls=st.integers(1, 5),
    parallel_calls=st.integers(1, 3),
    turn_tokens=st.none() | st.integers(1, 200),
    response_tokens=st.integers(1, 600),
    context_tokens=st.integers(50, 700),
    observation_chars=st.integers(64, 200),
)


@given(TURNS, LIMITS, st.data())
@settings(deadline=None)
def test_lengths_agree_budgets_hold_and_nothing_follows_the_end(
    dialect, make_question, turns, limits, data
):
    def answer(kind, size):
        match kind:
            case "call":
                return generation(dialect.turn_ids("x", [CALL] * size))
            case "answer":
                return generation(dialect.turn_ids(ANSWER, []))
            case "noise":
                return generation([65] * size, FinishReason.LENGTH)
            case "broken":
                return generation(
                    dialect.tokenizer.encode_pieces([("<tool_call>{<|im_end|>", True)])
                )
            case "abort":
                return generation([65] * size, FinishReason.ABORT)
            case "nan":
                return generation([65] * size, logprobs=(math.nan,) * size)
            case _:
                return EngineError("x")

    class Tool:
        specs = ()

        async def execute(self, name, arguments):
            return Reply(text=data.draw(st.text(max_size=300)))

    engine = Answers(*(answer(*turn) for turn in turns), *[EngineError("out")] * 9)
    question = make_question()

    async def run(resume):
        return await rollout(
            question,
            engine=engine,
            tools=Tool(),
            dialect=dialect,
            limits=limits,
            sampling=Sampling(max_tokens=300),
            resume=resume,
        )

    previous = None
    while True:
        done = asyncio.run(run(previous))
        assert len(done.ids) == len(done.mask) == len(done.logprobs) == len(done.weight_versions)
        assert len(done.response_ids) <= max(limits.response_tokens, 0)
        if done.status is not Status.FAILED:
            assert len(done.ids) <= limits.context_tokens
        assert len(done.turns) <= limits.turns
        assert done.num_calls <= limits.calls + 3 * limits.parallel_calls
        assert all(mask == 0 for mask in done.mask[: done.prompt_length])
        for turn in done.turns:
            assert set(done.mask[turn.start : turn.end]) <= {1}
            assert set(done.mask[turn.end : turn.observation_end]) <= {0}
        assert all(math.isfinite(p) for p in done.logprobs)
        if done.turns:
            assert done.turns[-1].observation_end == len(done.ids)
        if previous is not None:  # an interruption never costs what was there
            assert done.ids[: len(previous.ids)] == previous.ids
            assert done.logprobs[: len(previous.ids)] == previous.logprobs
        if done.status is not Status.ABORTED or not engine.answers:
            break
        previous = done
