"""The embedded engine: its log-probabilities, its sampling, and its scheduling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from retool_rollout import ContextOverflowError, EngineError, FinishReason, Generation, Sampling
from retool_trainer.config import ModelShape
from retool_trainer.engines import ContinuingEngine, EmbeddedEngine
from retool_trainer.engines._decoder import Decoder
from retool_trainer.engines._sampling import sample
from retool_trainer.policy import make_random_hf

VOCAB_SIZE = 97


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "llama"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    shape = ModelShape(
        architecture=request.param,
        hidden_size=64,
        num_layers=2,
        mlp_size=96,
        head_dim=16,
        tied_embeddings=request.param != "llama",
    )
    make_random_hf(shape, VOCAB_SIZE, folder, seed=3)
    _make_sharper(folder)
    return folder


def _make_sharper(folder: Path) -> None:
    """Random weights of deviation 0.02 give almost flat distributions, which would hide errors."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = {
        name: value * (6 if value.ndim == 2 else 1) for name, value in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(checkpoint, max_concurrency=6, max_model_len=64, num_threads=1)
    yield engine
    engine.close()


def reference_logprobs(checkpoint: Path, ids: list[int], temperature: float = 1.0) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0] / temperature
    table = torch.log_softmax(logits, dim=-1)
    return [0.0] + [float(table[i - 1, token]) for i, token in enumerate(ids) if i]


async def generate(
    engine: EmbeddedEngine, prompt: list[int], session_id: str, **options: object
) -> Generation:
    sampling = Sampling(max_tokens=8, seed=5, **options)  # type: ignore[arg-type]
    return await engine.generate(prompt, sampling, session_id=session_id)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_transformers(
    engine: EmbeddedEngine, checkpoint: Path, temperature: float
) -> None:
    prompts = [[1, 2, 3, 4, 5], [9, 8], [7] * 30]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(generate(engine, prompt, f"s{i}", temperature=temperature))
            for i, prompt in enumerate(prompts)
        ]
    for prompt, task in zip(prompts, tasks, strict=True):
        generation = task.result()
        expected = reference_logprobs(checkpoint, [*prompt, *generation.ids], temperature)
        assert generation.logprobs == pytest.approx(expected[len(prompt) :], abs=1e-4)


async def test_a_session_goes_on_after_a_tool_as_if_it_had_been_read_at_once(
    engine: EmbeddedEngine, checkpoint: Path
) -> None:
    first = await generate(engine, [1, 2, 3], "turns")
    ids = [1, 2, 3, *first.ids, 50, 51, 52]
    second = await generate(engine, ids, "turns")
    expected = reference_logprobs(checkpoint, [*ids, *second.ids])
    assert second.logprobs == pytest.approx(expected[len(ids) :], abs=1e-4)


async def test_a_shared_prompt_is_read_once_and_moved_rows_keep_their_cache(
    engine: EmbeddedEngine, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, bool]] = []
    forward = Decoder.forward

    def recorded(self: Decoder, *args: torch.Tensor | None) -> torch.Tensor:
        ids, rows = args[0], args[3]
        assert ids is not None
        shapes.append((ids.shape[0], rows is None))
        return forward(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "forward", recorded)
    prompts = [[1, 2, 3, 4], [9, 8, 7]]

    async def one(index: int) -> tuple[list[int], Generation]:
        # The sessions of the low rows end first, and leave gaps before those that go on.
        name, prompt = f"s{index}", prompts[index // 3]
        sampling = Sampling(max_tokens=1 + 2 * index, seed=index)
        generation = await engine.generate(prompt, sampling, session_id=name)
        if index == 5:
            prompt = [*prompt, *generation.ids, 50, 51]
            generation = await engine.generate(prompt, sampling, session_id=name)
        await engine.release(name)
        return prompt, generation

    engine.lockstep(num_trajectories=6, concurrency=6)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index)) for index in range(6)]
    for prompt, generation in (task.result() for task in tasks):
        expected = reference_logprobs(checkpoint, [*prompt, *generation.ids])
        assert generation.logprobs == pytest.approx(expected[len(prompt) :], abs=1e-4)
    assert shapes[0] == (2, False)
    assert all(in_place for _, in_place in shapes[1:])


async def test_the_same_seed_draws_the_same_tokens_whoever_else_is_in_the_batch(
    engine: EmbeddedEngine,
) -> None:
    alone = await generate(engine, [1, 2, 3], "alone")
    async with asyncio.TaskGroup() as group:
        crowd = [group.create_task(generate(engine, [i, 3], f"c{i}")) for i in range(4)]
        among = group.create_task(generate(engine, [1, 2, 3], "among"))
    assert among.result().ids == alone.ids
    assert len({task.result().ids for task in crowd}) > 1


async def test_greedy_takes_the_most_likely_token(engine: EmbeddedEngine, checkpoint: Path) -> None:
    generation = await generate(engine, [4, 5, 6], "greedy", temperature=0.0)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = [4, 5, 6]
    for token in generation.ids:
        with torch.no_grad():
            assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


async def test_a_stop_token_ends_the_turn_and_is_part_of_it(engine: EmbeddedEngine) -> None:
    free = await generate(engine, [1, 2], "free", temperature=0.0)
    stopped = await generate(engine, [1, 2], "stop", temperature=0.0, stop_token_ids=(free.ids[2],))
    assert stopped.ids == free.ids[: free.ids.index(free.ids[2]) + 1]
    assert stopped.finish is FinishReason.STOP
    assert free.finish is FinishReason.LENGTH


async def test_more_sessions_than_rows_wait_for_a_row(engine: EmbeddedEngine) -> None:
    async def one(index: int) -> Generation:
        try:
            return await generate(engine, [index, 1], f"many-{index}")
        finally:
            await engine.release(f"many-{index}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index)) for index in range(20)]
    assert all(len(task.result().ids) == 8 for task in tasks)


async def test_a_full_context_ends_the_turn_and_a_longer_prompt_is_refused(
    engine: EmbeddedEngine,
) -> None:
    generation = await generate(engine, [1] * 60, "long")
    assert (len(generation.ids), generation.finish) == (4, FinishReason.LENGTH)
    with pytest.raises(ContextOverflowError, match="64 tokens"):
        await generate(engine, [1] * 64, "longer")


@pytest.fixture
def paces(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Each forward pass takes one: a test says how far the engine's thread may go."""
    paces = threading.Semaphore(0)
    forward = Decoder.forward

    def paced(self: Decoder, *args: torch.Tensor | None) -> torch.Tensor:
        assert paces.acquire(timeout=60), "the test let no further step go"
        return forward(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "forward", paced)
    return paces


async def _until_sampled(engine: EmbeddedEngine, num_tokens: int) -> None:
    async with asyncio.timeout(60):
        while engine.num_sampled_tokens < num_tokens:  # noqa: ASYNC110 - a thread has no event to await
            await asyncio.sleep(0.001)


async def test_new_weights_end_what_is_under_way_and_are_used_from_the_next_token_on(
    engine: EmbeddedEngine, checkpoint: Path, tmp_path: Path, paces: threading.Semaphore
) -> None:
    other = tmp_path / "other"
    make_random_hf(
        ModelShape(
            architecture=_architecture(checkpoint),
            hidden_size=64,
            num_layers=2,
            mlp_size=96,
            head_dim=16,
            tied_embeddings=_architecture(checkpoint) != "llama",
        ),
        VOCAB_SIZE,
        other,
        seed=8,
    )
    _make_sharper(other)
    sampling = Sampling(max_tokens=50, seed=1)
    running = asyncio.create_task(engine.generate([1, 2], sampling, session_id="x"))
    paces.release(3)
    await _until_sampled(engine, 3)
    loading = asyncio.create_task(engine.load(other, weight_version=7))
    await asyncio.sleep(0)  # the load is posted before the step that is now let go
    paces.release(1000)
    await loading
    first = await running
    assert first.finish is FinishReason.ABORT
    assert len(first.ids) <= 4  # the load came before the second step at the latest
    assert first.weight_version == 0
    ids = [1, 2, *first.ids]
    second = await generate(engine, ids, "x")
    assert second.weight_version == 7
    expected = reference_logprobs(other, [*ids, *second.ids])
    assert second.logprobs == pytest.approx(expected[len(ids) :], abs=1e-4)


async def test_a_partial_rollout_goes_on_through_weight_updates_and_keeps_its_old_logprobs(
    engine: EmbeddedEngine, checkpoint: Path, paces: threading.Semaphore
) -> None:
    sampling = Sampling(max_tokens=40, seed=1)
    running = asyncio.create_task(
        ContinuingEngine(engine).generate([1, 2], sampling, session_id="x")
    )
    for version in (1, 2):
        seen = engine.num_sampled_tokens
        paces.release(3)
        await _until_sampled(engine, seen + 3)
        loading = asyncio.create_task(engine.load(checkpoint, weight_version=version))
        await asyncio.sleep(0)
        paces.release()  # the step before which the thread reads its mail
        await loading
    paces.release(1000)
    whole = await running
    assert len(whole.ids) == len(whole.logprobs) == 40
    assert whole.finish is FinishReason.LENGTH
    versions = whole.weight_versions
    assert versions is not None
    assert sorted(set(versions)) == [0, 1, 2]
    assert list(versions) == sorted(versions)
    expected = reference_logprobs(checkpoint, [1, 2, *whole.ids])
    assert whole.logprobs == pytest.approx(expected[2:], abs=1e-4)


def _architecture(checkpoint: Path) -> str:
    import json

    return json.loads((checkpoint / "config.json").read_text())["model_type"]


async def test_a_checkpoint_of_another_shape_is_refused_and_the_engine_goes_on(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    make_random_hf(ModelShape(num_layers=1), VOCAB_SIZE, tmp_path / "other", seed=0)
    with pytest.raises(ValueError, match="the engine was built for"):
        await engine.load(tmp_path / "other", weight_version=1)
    assert len((await generate(engine, [1], "after")).ids) == 8


async def test_lockstep_waits_for_a_slow_tool_and_repeats_to_the_bit(
    engine: EmbeddedEngine,
) -> None:
    async def run(delays_s: list[float]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        engine.lockstep(num_trajectories=3, concurrency=3)

        async def one(index: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
            name = f"lock-{index}"
            prompt = [index, 2, 3]
            first = await generate(engine, prompt, name)
            await asyncio.sleep(delays_s[index])
            second = await generate(engine, [*prompt, *first.ids, 5, 6], name)
            await engine.release(name)
            return first.ids + second.ids, first.logprobs + second.logprobs

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index)) for index in range(3)]
        return [task.result() for task in tasks]

    assert await run([0.0, 0.05, 0.0]) == await run([0.03, 0.0, 0.01])


async def test_lockstep_ends_with_an_error_when_a_trajectory_never_comes(checkpoint: Path) -> None:
    engine = EmbeddedEngine(checkpoint, max_concurrency=2, max_model_len=32, step_timeout_s=0.2)
    engine.lockstep(num_trajectories=2, concurrency=2)
    with pytest.raises(EngineError, match="lock-step waited"):
        await generate(engine, [1], "alone")
    engine.close()


async def test_closing_fails_what_is_under_way(checkpoint: Path) -> None:
    engine = EmbeddedEngine(checkpoint, max_concurrency=2, max_model_len=64)
    engine.lockstep(num_trajectories=2, concurrency=2)  # so that the request waits
    running = asyncio.create_task(generate(engine, [1], "x"))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineError, match="closed"):
        await running


async def test_a_cancelled_request_gives_its_row_back(engine: EmbeddedEngine) -> None:
    engine.lockstep(num_trajectories=100, concurrency=100)
    tasks = [asyncio.create_task(generate(engine, [1], f"c{i}")) for i in range(6)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    engine.lockstep(num_trajectories=1, concurrency=1)
    assert len((await generate(engine, [1], "next")).ids) == 8


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=20),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.2, 3),
)
@settings(deadline=None)
def test_a_draw_is_a_token_and_its_own_logprob(
    logits: list[float], uniform: float, temperature: float
) -> None:
    sampling = Sampling(max_tokens=1, temperature=temperature)
    [(token, logprob)] = sample(torch.tensor([logits]), [sampling], [uniform])
    expected = torch.log_softmax(torch.tensor(logits) / temperature, dim=-1)
    assert 0 <= token < len(logits)
    assert logprob == pytest.approx(float(expected[token]), abs=1e-5)


def test_draws_follow_the_distribution_and_top_k_top_p_cut_it() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    uniforms = np.linspace(0, 1, 1000, endpoint=False)

    def shares(**options: object) -> list[float]:
        sampling = Sampling(max_tokens=1, **options)  # type: ignore[arg-type]
        drawn = [t for t, _ in sample(logits.expand(1000, 4), [sampling] * 1000, list(uniforms))]
        return [drawn.count(token) / 1000 for token in range(4)]

    assert shares() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=2e-3)
    assert shares(top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=2e-3)
    assert shares(top_p=0.85) == pytest.approx([0.5263, 0.3158, 0.1579, 0], abs=2e-3)
