"""The hooks against the contracts of vime and slime, and the parts that all hooks share."""

import asyncio
import pickle
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from retool_reward import Speaker, grade
from retool_reward._harness import recorded_turns, spans_of_messages
from retool_reward.hooks import slime, trl, verifiers, verl, vime

ARGS = SimpleNamespace(reward_key="score", grpo_std_normalization=True)


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The fields of vime's and slime's Sample that a reward sees."""

    response: str
    label: str | None
    prompt: str = "Put the answer in \\boxed{}. For example \\boxed{42}."
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)
    reward: Any = None
    group_index: int = 0
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] | None = None
    remove_sample: bool = False


def call(code: str, *, ok: bool = True) -> dict[str, Any]:
    return {"name": "code_interpreter", "arguments": {"code": code}, "ok": ok}


@pytest.mark.parametrize("hook", [vime, slime])
async def test_one_sample_gets_score_acc_and_pred(hook: Any) -> None:
    sample = Sample("Answer: \\boxed{42}", "42", metadata={"calls": [call("print(1)")]})
    result = await hook.reward_func(ARGS, sample)
    assert result["score"] == 1.05
    assert result["acc"] is True
    assert result["pred"] == "42"


async def test_a_list_gets_a_list_and_the_prompt_earns_nothing() -> None:
    samples = [Sample("Answer: \\boxed{42}", "42"), Sample("I do not know.", "42")]
    results = await slime.reward_func(ARGS, samples, evaluation=False)
    assert [result["score"] for result in results] == [1.0, 0.0]
    assert [result["acc"] for result in results] == [True, False]


async def test_a_sample_without_a_verdict_leaves_the_loss() -> None:
    ungradable, failed = Sample("\\boxed{7}", ""), Sample("\\boxed{7}", "7", status=Status.FAILED)
    for result in await slime.reward_func(ARGS, [ungradable, failed]):
        assert result["score"] == 0.0
    assert ungradable.remove_sample
    assert failed.remove_sample


async def test_the_mask_says_who_spoke_where_a_decoder_is_given() -> None:
    words = ["\\boxed{1}", " tool: \\boxed{42}", " so I say nothing"]
    args = SimpleNamespace(reward_decode=lambda ids: "".join(words[i] for i in ids))
    sample = Sample("".join(words), "42", tokens=[9, 0, 1, 2], loss_mask=[1, 0, 1])
    assert (await slime.reward_func(args, sample))["acc"] is False
    assert (await slime.reward_func(args, sample))["pred"] == "1"


async def test_what_retool_rollout_records_is_read() -> None:
    record = {"own_text": "so \\boxed{1}", "outcomes": ["ok", "failed", "ok"], "turns": 3}
    sample = Sample("\\boxed{1} <tool_response>", "1", metadata={"retool": record})
    result = await slime.reward_func(ARGS, sample)
    assert (result["score"], result["pred"]) == (1.1, "1")


async def test_the_slime_preset_counts_like_slime() -> None:
    sample = Sample("\\boxed{0}", "1")
    sample.tool_call_count = 3  # type: ignore[attr-defined]
    args = SimpleNamespace(reward_preset="slime")
    assert (await slime.reward_func(args, sample))["score"] == min(-0.6, -1.0 + (3 - 2) / 2 * 0.1)


async def test_rewards_are_normalised_within_their_group() -> None:
    samples = [Sample(f"\\boxed{{{n}}}", "1", group_index=n % 2) for n in range(4)]
    samples += [Sample("\\boxed{1}", "", group_index=0)]
    for sample in samples:
        sample.reward = await slime.reward_func(ARGS, sample)
    raw, normalised = slime.post_process_rewards(ARGS, samples)
    assert raw == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert normalised[1] == pytest.approx(-normalised[3])
    assert normalised[1] > 0.7
    assert normalised[0] == normalised[2] == normalised[4] == 0.0


async def test_one_failed_group_shows_what_std_normalisation_does_to_a_bonus() -> None:
    samples = [Sample("\\boxed{0}", "1") for _ in range(8)]
    samples[0].metadata = {"calls": [call("print(1)")]}
    for sample in samples:
        sample.reward = await slime.reward_func(ARGS, sample)
    _, normalised = slime.post_process_rewards(ARGS, samples)
    assert normalised[0] == pytest.approx(2.475, abs=1e-3)  # as much as the only right one of 8
    args = SimpleNamespace(**{**vars(ARGS), "reward_preset": "success_gated"})
    _, gated = slime.post_process_rewards(args, samples)
    assert gated == [0.0] * 8


async def test_success_gated_rewards_right_samples_of_mixed_groups() -> None:
    args = SimpleNamespace(**{**vars(ARGS), "reward_preset": "success_gated"})
    samples = [Sample("\\boxed{1}", "1"), Sample("\\boxed{1}", "1"), Sample("\\boxed{0}", "1")]
    samples[0].metadata = {"calls": [call("a"), call("b"), call("b"), call("c", ok=False)]}
    samples[2].metadata = {"calls": [call("a")]}
    for sample in samples:
        sample.reward = await slime.reward_func(args, sample)
    raw, normalised = slime.post_process_rewards(args, samples)
    assert raw == [1.1, 1.0, 0.0]
    assert normalised[0] > normalised[1] > 0 > normalised[2]


async def test_success_gated_zeroes_what_was_truncated_in_the_group_too() -> None:
    args = SimpleNamespace(
        **{**vars(ARGS), "reward_preset": "success_gated", "reward_truncated": "zero"}
    )
    samples = [Sample("\\boxed{1}", "1", status=Status.TRUNCATED), Sample("\\boxed{1}", "1")]
    for sample in samples:
        sample.reward = await slime.reward_func(args, sample)
    raw, _ = slime.post_process_rewards(args, samples)
    assert raw == [sample.reward["score"] for sample in samples] == [0.0, 1.0]


async def test_verl_gets_a_mapping_and_no_silent_zero() -> None:
    info = {"calls": [call("print(1)")], "num_turns": 4}
    result = await verl.compute_score("math", "Answer: \\boxed{3}", "3", extra_info=info)
    assert (result["score"], result["acc"], result["pred"]) == (1.05, True, "3")
    result = await verl.compute_score("math", "\\boxed{2}", "3", extra_info=info, preset="verl")
    assert result["score"] == min(-0.6, -1.0 + (4 - 2) / 2 * 0.1)
    with pytest.raises(ValueError, match="no verdict"):
        await verl.compute_score("math", "\\boxed{2}", "")
    zero = await verl.compute_score("math", "\\boxed{2}", "", ungradable="zero")
    assert zero["score"] == 0.0


async def test_trl_gets_a_list_with_none_for_no_verdict() -> None:
    completions = [
        "\\boxed{1}",
        [
            {"role": "assistant", "content": "\\boxed{0}"},
            {"role": "tool", "content": "\\boxed{1}"},
        ],
        "\\boxed{1}",
    ]
    columns = {"answer": ["1", "1", ""], "trainer_state": None}
    assert await trl.accuracy_reward(completions=completions, prompts=[], **columns) == [1, 0, None]
    shaped = pickle.loads(pickle.dumps(trl.RetoolReward(gold_column="gold")))
    calls = [[call("print(1)")], None, None]
    rewards = shaped(completions=completions, gold=["1", "1", "1"], calls=calls)
    assert rewards == [1.05, 0.0, 1.0]
    with pytest.raises(ValueError, match="gold_column"):
        shaped(completions=completions, answer=["1", "1", "1"])


async def test_verifiers_reads_the_assistant_only() -> None:
    completion = [
        {"role": "assistant", "content": "\\boxed{1}"},
        {"role": "user", "content": "\\boxed{2}"},
    ]
    assert await verifiers.correct_answer(parser=None, completion=completion, answer="1") == 1.0
    assert await verifiers.correct_answer(parser=None, completion=completion, answer="2") == 0.0
    state = {"calls": [call("x"), call("x"), call("y", ok=False)]}
    assert await verifiers.retool_reward(completion=completion, answer="1", state=state) == 1.05


def test_hooks_run_off_the_main_thread() -> None:
    def work() -> float:
        return asyncio.run(slime.reward_func(ARGS, Sample("\\boxed{\\frac{2}{4}}", "1/2")))["score"]

    async def main() -> float:
        return await asyncio.to_thread(work)

    assert asyncio.run(main()) == 1.0


def test_content_parts_and_objects_are_read_and_nonsense_is_refused() -> None:
    parts = [{"type": "text", "text": "\\boxed{"}, {"type": "text", "text": "5}"}]
    spans = spans_of_messages([SimpleNamespace(role="assistant", content=parts)])
    assert not isinstance(spans, str)
    assert spans[0].speaker is Speaker.POLICY
    assert grade(spans, 5).correct is True
    with pytest.raises(TypeError, match="completion"):
        spans_of_messages(5)


@pytest.mark.parametrize("count", [-1, True, 1.5, "3"])
def test_a_recorded_count_must_be_a_count(count: object) -> None:
    with pytest.raises(ValueError, match="num_tool_calls_ok"):
        recorded_turns({"num_tool_calls_ok": count})
    assert recorded_turns({"num_tool_calls_ok": 3}) == 3
    assert recorded_turns(None) == 0
