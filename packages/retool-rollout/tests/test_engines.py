"""Engines over HTTP: what they send, what they retry, what they say when it cannot work."""

import asyncio
import contextlib
import math
from collections import Counter

import pytest
from aiohttp import web

from retool_rollout import (
    ContextOverflowError,
    EngineConfigError,
    EngineError,
    FinishReason,
    Limits,
    Sampling,
    ScriptedEngine,
    SglangEngine,
    Status,
    VllmEngine,
    make_dialect,
    rollout,
)
from retool_rollout import _http as http
from retool_rollout._replicas import Replicas

SAMPLING = Sampling(max_tokens=50, stop=("</code>",), stop_token_ids=(7,), seed=3, top_k=5)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(http, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(http, "LONGEST_PAUSE_S", 0.05)


@pytest.fixture(params=[VllmEngine, SglangEngine], ids=["vllm", "sglang"])
async def engine(request, fake_server):
    fake_server.turns = [[1, 2, 3]]
    async with request.param(fake_server.url, timeout_s=5) as engine:
        yield engine


async def test_tokens_go_in_and_tokens_come_out(engine, fake_server):
    made = await engine.generate([9, 8], SAMPLING, session_id="s")
    assert (made.ids, made.logprobs, made.finish) == ((1, 2, 3), (-0.5,) * 3, FinishReason.STOP)
    (body,) = fake_server.bodies
    assert body.get("token_ids", body.get("input_ids")) == [9, 8]
    parameters = body["sampling_params"]
    assert parameters.get("max_tokens", parameters.get("max_new_tokens")) == 50
    assert (parameters["top_k"], parameters["stop"]) == (5, ["</code>"])
    assert parameters["stop_token_ids"] == [7]
    assert parameters["skip_special_tokens"] is False
    names = {"X-Session-ID", "X-SMG-Routing-Key"} & set(fake_server.headers[0])
    assert [fake_server.headers[0][name] for name in names] == ["s"]


async def test_any_problem_name_makes_a_session_name(engine, fake_server):
    for name in ("What is\n6 * 7?\r\n-1", "\ud800 é-2", "x" * 100_000 + "-3"):
        made = await engine.generate([9], SAMPLING, session_id=name)
        assert made.ids == (1, 2, 3)
    sent = [
        headers.get("X-Session-ID") or headers["X-SMG-Routing-Key"]
        for headers in fake_server.headers
    ]
    assert [name[-2:] for name in sent] == ["-1", "-2", "-3"]


async def test_tokens_of_a_turn_during_which_the_weights_changed_have_no_label(fake_server):
    fake_server.turns = [[1, 2]]
    async with VllmEngine(fake_server.url, weight_version=5) as engine:

        async def update(request):
            engine.weight_version = 6

        fake_server.fault = update
        made = await engine.generate([9], SAMPLING, session_id="s")
        assert made.weight_version is None
        fake_server.fault = None
        assert (await engine.generate([9], SAMPLING, session_id="s")).weight_version == 6


async def test_vllm_asks_for_logprobs_and_keeps_the_stop_string(fake_server):
    fake_server.turns = [[1]]
    async with VllmEngine(fake_server.url, model="m", api_key="secret") as engine:
        await engine.generate([9], SAMPLING, session_id="s")
    (body,) = fake_server.bodies
    assert body["model"] == "m"
    assert body["sampling_params"]["logprobs"] == 1
    assert body["sampling_params"]["include_stop_str_in_output"] is True
    assert body["sampling_params"]["seed"] == 3
    assert fake_server.headers[0]["Authorization"] == "Bearer secret"


async def test_vllm_reads_the_weights_of_each_token(fake_server):
    async def spans(request):
        choice = {
            "token_ids": [1, 2, 3, 4],
            "finish_reason": "abort",
            "logprobs": {"content": [{"logprob": p} for p in (-1.0, -9999.0, None, -2.0)]},
            "weight_versions": [
                {"version": "default", "start": 0, "end": 1},
                {"version": "6", "start": 1, "end": 3},
                {"version": "7", "start": 3, "end": 9},
            ],
        }
        return web.json_response({"choices": [choice]})

    fake_server.fault = spans
    async with VllmEngine(fake_server.url, weight_version=5) as engine:
        made = await engine.generate([9], SAMPLING, session_id="s")
    assert made.finish is FinishReason.ABORT
    assert made.weight_versions == (5, 6, 6, 7)
    # vLLM writes -9999 for minus infinity: that is no number to train on.
    assert [math.isnan(p) for p in made.logprobs] == [False, True, True, False]


@pytest.mark.parametrize(
    ("status", "text", "error", "words"),
    [
        (403, "Scale-out endpoints are disabled.", EngineConfigError, "--enable-scale-out"),
        (401, "Unauthorized", EngineConfigError, "API key"),
        (404, "The model `m` does not exist", EngineConfigError, "serves no model named 'm'"),
        (404, "Not Found", EngineConfigError, "has no /inference/v1/generate"),
        (
            400,
            "The decoder prompt (length 9) is longer than the maximum model length of 8.",
            ContextOverflowError,
            "too long",
        ),
        (400, "This model's maximum context length is 8 tokens", ContextOverflowError, "too long"),
        (400, "top_p must be in (0, 1]", EngineError, "top_p"),
        (422, "field required", EngineError, "field required"),
    ],
)
async def test_a_refusal_says_what_to_do_and_is_not_retried(
    fake_server, status, text, error, words
):
    fake_server.status, fake_server.text = status, text
    async with VllmEngine(fake_server.url, model="m") as engine:
        with pytest.raises(error, match=words.replace("(", r"\(")) as caught:
            await engine.generate([9], SAMPLING, session_id="s")
    assert type(caught.value) is error
    assert len(fake_server.bodies) == 1


async def test_sglang_refusals_are_told_apart(fake_server):
    async with SglangEngine(fake_server.url) as engine:
        for status, text, error in (
            (404, "", EngineConfigError),
            (403, "", EngineConfigError),
            (400, "longer than the model's context length", ContextOverflowError),
            (400, "?", EngineError),
        ):
            fake_server.status, fake_server.text = status, text
            with pytest.raises(error):
                await engine.generate([9], SAMPLING, session_id="s")


def reset(request):
    request.transport.abort()
    return web.Response()


async def half(request):
    return web.Response(text='{"choices": [{"token_', content_type="application/json")


async def broken_off(request):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    request.transport.abort()
    return response


async def hang(request):
    await asyncio.sleep(60)


FAULTS = {
    "500": lambda request: web.Response(status=500, text="EngineCore died"),
    "503": lambda request: web.Response(status=503),
    "429": lambda request: web.Response(status=429),
    "reset": reset,
    "half a JSON": half,
    "broken off": broken_off,
    "no choices": lambda request: web.json_response({"choices": []}),
    "a list": lambda request: web.json_response([]),
    "odd finish": lambda request: web.json_response(
        {"choices": [{"token_ids": [1], "finish_reason": "repetition?"}]}
    ),
    "no finish": lambda request: web.json_response(
        {"choices": [{"token_ids": [1], "finish_reason": None}]}
    ),
    "hang": hang,
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_failed_attempt_is_tried_again(fake_server, name):
    fake_server.turns = [[1]]
    failures = iter(range(2))

    async def fault(request):
        if next(failures, None) is None:
            return None
        answer = FAULTS[name](request)
        return await answer if asyncio.iscoroutine(answer) else answer

    fake_server.fault = fault
    async with VllmEngine(fake_server.url, timeout_s=0.5) as engine:
        made = await engine.generate([9], SAMPLING, session_id="s")
        assert (made.ids, engine.retries) == ((1,), 2)


async def test_attempts_end_and_the_last_trouble_is_told(fake_server):
    fake_server.status, fake_server.text = 503, "warming up"
    async with VllmEngine(fake_server.url, attempts=3) as engine:
        with pytest.raises(EngineError, match=r"3 attempts failed.*503: warming up"):
            await engine.generate([9], SAMPLING, session_id="s")
    assert len(fake_server.bodies) == 3


async def test_another_replica_takes_over_and_keeps_the_session(fake_server, tiny, tools, question):
    dialect = make_dialect("hermes", tiny, tool_specs=())
    call = {"name": "f", "arguments": {"code": "1"}}
    fake_server.turns = [dialect.turn_ids("", [call]), dialect.turn_ids(r"\boxed{1}", [])]
    gone = "http://127.0.0.1:9"  # nothing listens there
    async with VllmEngine([gone, fake_server.url], attempts=2) as engine:
        done = await rollout(
            question,
            engine=engine,
            tools=tools,
            dialect=dialect,
            limits=Limits(),
            sampling=Sampling(max_tokens=200),
        )
        assert (done.status, done.answer) == (Status.COMPLETED, "1")
        assert engine.retries == 1  # the second turn went straight to the replica that works
        assert await engine.healthy() == {gone: False, fake_server.url: True}
        with pytest.raises(EngineError, match="not healthy"):
            await engine.wait_until_healthy(0.1, poll_s=0.02)


def test_a_session_stays_and_new_ones_go_where_least_is_going_on():
    replicas = Replicas(["http://a", "http://b"])
    with replicas.use("1") as first, replicas.use("2") as second, replicas.use("1") as again:
        assert first is again
        assert {first.url, second.url} == {"http://a", "http://b"}
    replicas.failed(first, "1")
    with replicas.use("1") as moved:
        assert moved is second
    replicas.worked(first)
    assert first.rests_until_s == 0.0


@pytest.mark.parametrize("urls", [[], ["localhost:80"], ["http://a", "http://a/"]])
def test_bad_urls_are_refused(urls):
    with pytest.raises(ValueError, match=r"URL|http|twice"):
        VllmEngine(urls)


async def test_a_pause_is_lifted_even_if_the_sync_fails(fake_server):
    for kind, paths in (
        (VllmEngine, ["/pause?mode=keep", "/resume"]),
        (SglangEngine, ["/pause_generation", "/continue_generation"]),
    ):
        fake_server.paths.clear()
        async with kind(fake_server.url) as engine:
            options = {"mode": "keep"} if kind is VllmEngine else {}
            with pytest.raises(RuntimeError, match="sync"):
                async with engine.paused(**options):
                    raise RuntimeError("sync failed")
        assert fake_server.paths == paths


async def test_a_pause_that_reaches_half_of_the_replicas_is_lifted(fake_server):
    async with VllmEngine([fake_server.url, "http://127.0.0.1:9"]) as engine:
        with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
            async with engine.paused():
                pytest.fail("one replica is not paused")
    assert fake_server.paths == ["/pause?mode=abort", "/resume"]


@pytest.fixture
async def forgetful_server():
    """The URL of a server that drops every connection after its first answer, as uvicorn does with
    one that was idle for 5 s: the client learns of it when its next request is lost."""

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.close()


async def test_a_control_request_is_never_lost_on_an_idle_connection(forgetful_server):
    async with VllmEngine(forgetful_server) as engine:
        assert all((await engine.healthy()).values())
        for _ in range(3):
            await engine.resume()


async def test_vllm_control_requests(fake_server):
    async with VllmEngine(fake_server.url) as engine:
        await engine.set_weight_version(5)
        assert engine.weight_version == 5
        assert await engine.served_weight_versions() == {fake_server.url: 5}
        assert await engine.is_paused() == {fake_server.url: True}
        assert await engine.served_models() == {fake_server.url: ["m"]}
        await engine.abort_all()
        await engine.reset_prefix_cache()
        fake_server.fault = lambda request: asyncio.sleep(0, web.Response(text="done"))
        with pytest.raises(EngineError, match="no JSON: 'done'"):
            await engine.control("/odd")
        fake_server.fault = None
        fake_server.status, fake_server.text = 404, "no dev mode"
        with pytest.raises(EngineError, match=r"/pause.*404: no dev mode"):
            await engine.pause()
    assert Counter(path.partition("?")[0] for path in fake_server.paths)["/pause"] == 1


async def test_a_cancelled_request_leaves_no_connection(fake_server):
    arrived = asyncio.Event()

    async def wait(request):
        arrived.set()
        await asyncio.sleep(60)

    fake_server.fault = wait
    async with VllmEngine(fake_server.url) as engine:
        task = asyncio.create_task(engine.generate([9], SAMPLING, session_id="s"))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.replicas._replicas[0].in_flight == 0


async def test_a_script_that_ends_says_so_and_long_turns_are_cut():
    engine = ScriptedEngine([[1, 2, 3]])
    made = await engine.generate([0], Sampling(max_tokens=2), session_id="s")
    assert (made.ids, made.finish) == ((1, 2), FinishReason.LENGTH)
    with pytest.raises(EngineError, match="wants one more"):
        await engine.generate([0], Sampling(max_tokens=2), session_id="s")
    engine = ScriptedEngine(lambda prompt, sampling, session: [len(prompt)])
    assert (await engine.generate([0, 0], Sampling(max_tokens=2), session_id="s")).ids == (2,)
