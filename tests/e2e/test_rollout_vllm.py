"""Rollouts against a real vLLM: numbers that agree, weights that change, a server that dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retool_rollout import (
    EngineConfigError,
    Limits,
    Reply,
    Sampling,
    Status,
    StopReason,
    Tokenizer,
    ToolCallRequest,
    Turn,
    VllmEngine,
    make_dialect,
    rollout,
)

# The first test to run waits for the server to start.
pytestmark = pytest.mark.timeout(900)

TOLERANCE = 1e-4
# Random weights end a turn by chance: every lower-case letter is a stop token, so turns have
# about ten tokens.
LETTERS = tuple(range(64, 90))


@dataclass(frozen=True)
class Question:
    problem_id: str
    messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "6 * 7?"},)


class Tools:
    specs: Sequence[Mapping[str, Any]] = ()

    def __init__(self) -> None:
        self.calls = 0

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        self.calls += 1
        return Reply(text=f"result {self.calls} <|im_end|>")

    @asynccontextmanager
    async def session(self):
        yield self


def dialect_of(folder):
    """Hermes, but every turn counts as a call: random weights never write one."""
    dialect = make_dialect("hermes", Tokenizer.load(folder), tool_specs=())
    dialect.parse = lambda text: Turn(  # type: ignore[method-assign]
        text=text, calls=(ToolCallRequest(name="f", arguments={"code": text}),), ends=False
    )
    return dialect


def scores(folder, ids):
    """Log-probability of each token after the first, from transformers in float32."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    chosen = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])
    return [0.0, *chosen[:, 0].tolist()]


def assert_sampled_by(trajectory, folder, version=None):
    expected = scores(folder, list(trajectory.ids))
    checked = 0
    for got, want, mask, label in zip(
        trajectory.logprobs, expected, trajectory.mask, trajectory.weight_versions, strict=True
    ):
        if mask and version in (None, label):
            assert got == pytest.approx(want, abs=TOLERANCE)
            checked += 1
    return checked


async def run(number, engine, folder, *, tools=None, max_tokens=64, stops=LETTERS, **options):
    return await rollout(
        Question(f"p{number}"),
        engine=engine,
        tools=tools or Tools(),
        dialect=dialect_of(folder),
        limits=Limits(turns=4, context_tokens=2000),
        sampling=Sampling(max_tokens=max_tokens, stop_token_ids=stops, seed=number),
        **options,
    )


@pytest.fixture
async def engine(vllm_server, tiny_qwen3):
    """The shared server with its first weights, labelled 1."""
    await asyncio.to_thread(vllm_server.reload, tiny_qwen3)
    async with VllmEngine(vllm_server.url, model=str(tiny_qwen3), timeout_s=120) as engine:
        await engine.reset_prefix_cache()
        await engine.set_weight_version(1)
        yield engine


async def test_logprobs_of_multi_turn_rollouts_equal_those_of_transformers(engine, tiny_qwen3):
    done = await asyncio.gather(*(run(number, engine, tiny_qwen3) for number in range(4)))
    for trajectory in done:
        assert trajectory.status is Status.TRUNCATED
        assert len(trajectory.turns) >= 2 or trajectory.stop_reason is StopReason.TURN_LENGTH
        assert assert_sampled_by(trajectory, tiny_qwen3) == trajectory.num_sampled > 0
        assert {
            v for v, m in zip(trajectory.weight_versions, trajectory.mask, strict=True) if m
        } == {1}
    assert max(len(trajectory.turns) for trajectory in done) == 4


async def test_weights_reloaded_in_mid_flight_keep_each_token_with_its_own(
    engine, vllm_server, tiny_qwen3, make_tiny_qwen3
):
    other = make_tiny_qwen3(1)
    # No stop but the end of the turn: long turns, so that the reload falls into them.
    interrupt = asyncio.Event()
    flying = [
        asyncio.create_task(
            run(number, engine, tiny_qwen3, max_tokens=900, stops=(), interrupt=interrupt)
        )
        for number in range(6)
    ]
    await asyncio.sleep(1.0)
    async with engine.paused(mode="abort"):
        # What was in flight has been answered; a turn that began after the pause waits for its end.
        await asyncio.wait(flying, timeout=10)
        interrupt.set()
        aborted = [await task for task in flying]
        await asyncio.to_thread(vllm_server.reload, other)
        await engine.reset_prefix_cache()
        await engine.set_weight_version(2)
        assert await engine.served_weight_versions() == {vllm_server.url: 2}
        assert await engine.is_paused() == {vllm_server.url: True}
    # One that the pause caught before its first token has nothing to keep.
    begun = [one for one in aborted if one.status is Status.ABORTED and one.num_sampled]
    assert begun
    for old in begun:
        assert old.stop_reason is StopReason.INTERRUPTED
        new = await run(99, engine, tiny_qwen3, max_tokens=900, stops=LETTERS, resume=old)
        kept = len(old.ids)
        assert new.ids[:kept] == old.ids
        assert new.logprobs[:kept] == old.logprobs
        sampled = [v for v, mask in zip(new.weight_versions, new.mask, strict=True) if mask]
        assert set(sampled) == {1, 2}
        assert sampled == sorted(sampled)
        assert_sampled_by(new, tiny_qwen3, version=1)
        assert assert_sampled_by(new, other, version=2) > 0


async def test_a_turn_frozen_over_a_reload_tells_where_its_weights_changed(
    engine, vllm_server, tiny_qwen3, make_tiny_qwen3
):
    other = make_tiny_qwen3(1)
    flying = asyncio.create_task(run(7, engine, tiny_qwen3, max_tokens=900, stops=()))
    await asyncio.sleep(0.5)
    async with engine.paused(mode="keep"):
        await asyncio.to_thread(vllm_server.reload, other)
        await engine.set_weight_version(2)
    done = await flying
    sampled = [v for v, mask in zip(done.weight_versions, done.mask, strict=True) if mask]
    assert set(sampled) == {1, 2}
    assert sampled == sorted(sampled)


async def test_what_the_server_refuses_is_said_clearly(engine, vllm_server, tiny_qwen3):
    async with VllmEngine(vllm_server.url, model="nobody") as wrong:
        with pytest.raises(EngineConfigError, match="serves no model named 'nobody'"):
            await run(0, wrong, tiny_qwen3)
    done = await rollout(
        Question("long", messages=({"role": "user", "content": "x" * 2100},)),
        engine=engine,
        tools=None,
        dialect=dialect_of(tiny_qwen3),
        limits=Limits(),
        sampling=Sampling(max_tokens=10),
    )
    assert (done.status, done.stop_reason) == (Status.TRUNCATED, StopReason.CONTEXT_LENGTH)
    assert (await engine.served_models())[vllm_server.url] == [str(tiny_qwen3)]


def test_the_evaluator_scores_a_served_model_and_does_not_repeat_itself(
    vllm_server, tiny_qwen3, tmp_path
):
    problems, output = tmp_path / "problems.jsonl", tmp_path / "output"
    problems.write_text(
        "".join(json.dumps({"problem": f"{n} + 1?", "answer": n + 1}) + "\n" for n in range(3))
    )
    command = [str(Path(sys.executable).with_name("retool-rollout")), "eval", "--json"]
    command += ["--endpoint", vllm_server.url, "--tokenizer", str(tiny_qwen3)]
    command += ["--data", str(problems), "--n", "2", "--output", str(output)]
    command += ["--max-context", "2048", "--max-response", "40", "--tools", "sandbox"]
    printed = [
        subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        for _ in range(2)
    ]
    first, again = map(json.loads, printed)
    stalls = [figures.pop("stall_p99_ms") for figures in (first, again)]
    assert min(stalls) == 0.0  # the second had nothing left to do
    assert first == again
    assert (first["samples"], first["missing"], first["ungraded"]) == (6, 0, 0)
    assert len((output / "samples.jsonl").read_text().splitlines()) == 6


async def test_a_server_killed_in_mid_flight_loses_and_doubles_nothing(
    engine, vllm_server, start_vllm, tiny_qwen3
):
    starting = start_vllm(tiny_qwen3)
    doomed = await asyncio.to_thread(starting.__enter__)
    try:
        urls = [doomed.url, vllm_server.url]
        async with VllmEngine(urls, model=str(tiny_qwen3), weight_version=1) as pair:
            flying = [
                asyncio.create_task(run(number, pair, tiny_qwen3, max_tokens=200, stops=()))
                for number in range(12)
            ]
            async with asyncio.timeout(60):
                while sum(replica.in_flight for replica in pair.replicas._replicas) < 12:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            os.killpg(doomed.process.pid, signal.SIGKILL)
            done = await asyncio.gather(*flying)
            assert await pair.healthy() == {doomed.url: False, vllm_server.url: True}
            assert pair.retries >= 1
        assert sorted(one.problem_id for one in done) == sorted(f"p{n}" for n in range(12))
        assert {one.status for one in done} == {Status.TRUNCATED}
        for one in done[:2]:
            assert_sampled_by(one, tiny_qwen3)
        async with VllmEngine(doomed.url, attempts=2) as dead:
            lost = await run(0, dead, tiny_qwen3)
        assert (lost.status, lost.stop_reason) == (Status.ABORTED, StopReason.ENGINE_ERROR)
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)
