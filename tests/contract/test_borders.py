"""The libraries fit together although none knows another: checked by pyright and at run time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

import retool_data
import retool_reward
import retool_rollout
import retool_sandbox
from retool_rollout import FinishReason, Generation, Sampling

# -- pyright: a giver that no longer satisfies its receiver fails to type-check --------------------


def rollout_takes_the_sandboxs_tools(
    tools: retool_sandbox.ToolRegistry,
) -> retool_rollout.ToolExecutor:
    return tools


def data_takes_the_sandboxs_tools(tools: retool_sandbox.ToolRegistry) -> retool_data.Executor:
    return tools


def data_takes_rollouts_dialects(dialect: retool_rollout.Dialect) -> retool_data.Renderer:
    return dialect


def rollout_takes_datas_problems(problem: retool_data.Problem) -> retool_rollout.Problem:
    return problem


def reward_counts_rollouts_calls(
    calls: Iterable[retool_rollout.CallRecord],
) -> Iterable[retool_reward.Call]:
    return calls


def an_engine_is_an_engine(
    scripted: retool_rollout.ScriptedEngine, vllm: retool_rollout.VllmEngine
) -> tuple[retool_rollout.Engine, retool_rollout.Engine]:
    return scripted, vllm


# -- run time: one trajectory travels through all four ---------------------------------------------

CODE = "print(17 * 23)"
ANSWER = "Answer: \\boxed{391}"


@pytest.fixture
def tokenizer(tmp_path: Path) -> retool_rollout.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    controls = "<|endoftext|> <|im_start|> <|im_end|> <tool_call> </tool_call>"
    controls += " <tool_response> </tool_response>"
    made.train_from_iterator(
        [],
        trainers.BpeTrainer(
            special_tokens=controls.split(),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    return retool_rollout.Tokenizer.load(file)


class Replies:
    """An engine that says fixed turns, token by token as a policy would sample them."""

    def __init__(self, turns: list[list[int]]) -> None:
        self._turns = turns

    async def generate(
        self, prompt_ids: object, sampling: Sampling, *, session_id: str
    ) -> Generation:
        ids = tuple(self._turns.pop(0))
        return Generation(ids=ids, logprobs=(-0.5,) * len(ids), finish=FinishReason.STOP)


async def test_a_problem_becomes_a_graded_trajectory_whose_sft_rendering_has_the_same_ids(
    tokenizer: retool_rollout.Tokenizer,
) -> None:
    problem = retool_data.Problem(problem_id="p1", statement="What is 17 * 23?", gold="391")
    dialect = retool_rollout.make_dialect("hermes", tokenizer)
    call = {"name": "code_interpreter", "arguments": {"code": CODE}}
    engine = Replies([dialect.turn_ids("", [call]), dialect.turn_ids(ANSWER, [])])
    async with retool_sandbox.Sandbox(tier="stdlib") as sandbox:
        tools = retool_sandbox.code_interpreter(sandbox)
        trajectory = await retool_rollout.rollout(
            problem,
            engine=engine,
            tools=tools,
            dialect=dialect,
            limits=retool_rollout.Limits(),
            sampling=Sampling(max_tokens=100),
        )
        specs = list(tools.specs)
    calls = [record for turn in trajectory.turns for record in turn.calls]
    assert [record.outcome for record in calls] == ["ok"]
    assert retool_reward.count_tool_turns(calls) == 1
    grade = retool_reward.grade(trajectory.final_text, problem.gold or "")
    assert grade.correct is True
    reward = retool_reward.shape(grade.correct, 1, trajectory.status.value)
    assert reward.total == pytest.approx(1.05)

    demonstration = retool_data.Trajectory.from_turns(
        problem,
        [
            retool_data.Turn(
                calls=(
                    retool_data.ToolCall(
                        name="code_interpreter", arguments=json.dumps({"code": CODE})
                    ),
                ),
                results=(calls[0].text,),
            ),
            retool_data.Turn(text=ANSWER),
        ],
        tools=specs,
    )
    sample = retool_data.tokenize(demonstration, dialect)
    assert sample.ids == trajectory.ids
    assert sample.mask == trajectory.mask


async def test_validate_replays_recorded_calls_in_the_sandbox() -> None:
    problem = retool_data.Problem(problem_id="p1", statement="?", gold="4")
    trajectory = retool_data.Trajectory.from_turns(
        problem,
        [
            retool_data.Turn(
                calls=(
                    retool_data.ToolCall(
                        name="code_interpreter", arguments='{"code": "print(2+2)"}'
                    ),
                ),
                results=("5",),
            ),
            retool_data.Turn(text="So it is 5."),
        ],
    )
    async with retool_sandbox.Sandbox(tier="stdlib") as sandbox:
        replayed = await retool_data.replay(trajectory, retool_sandbox.code_interpreter(sandbox))
    statuses = [s.result.status for s in replayed.segments if s.result is not None]
    assert statuses == [retool_data.ReplayStatus.MISMATCH]


def test_no_library_pulls_in_torch_ray_or_vllm() -> None:
    import subprocess
    import sys

    code = (
        "import sys, retool_data, retool_reward, retool_rollout, retool_sandbox;"
        "heavy = {'torch', 'ray', 'vllm', 'megatron', 'transformers'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_tool_spec_is_the_one_that_the_dialect_prints(
    tokenizer: retool_rollout.Tokenizer,
) -> None:
    dialect = retool_rollout.make_dialect("hermes", tokenizer)
    ids = dialect.prompt_ids(
        [{"role": "user", "content": "hi"}], [retool_sandbox.CODE_INTERPRETER_SPEC]
    )
    assert json.dumps(retool_sandbox.CODE_INTERPRETER_SPEC) in tokenizer.decode(ids)


def test_everything_ends() -> None:
    """A loop that opened the sandbox is closed without a warning: warnings are errors here."""

    async def once() -> None:
        async with retool_sandbox.Sandbox(tier="stdlib") as sandbox:
            await sandbox.run("pass")

    asyncio.run(once())
