"""The loop: who spoke, what ends a trajectory, what an interruption leaves."""

from retool_rollout import (
    Limits,
    Sampling,
    ScriptedEngine,
    Status,
    StopReason,
    make_dialect,
    rollout,
)

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}


async def test_a_call_is_executed_and_the_answer_ends_the_trajectory(tiny, tools, question):
    dialect = make_dialect("hermes", tiny)
    engine = ScriptedEngine(
        [dialect.turn_ids("Let me compute.", [CALL]), dialect.turn_ids(r"\boxed{42}", [])]
    )
    done = await rollout(
        question,
        engine=engine,
        tools=tools,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=1000),
    )
    assert (done.status, done.stop_reason, done.answer) == (
        Status.COMPLETED,
        StopReason.ANSWERED,
        "42",
    )
    assert tools.seen == [("code_interpreter", {"code": "print(6 * 7)"})]
    assert [call.text for turn in done.turns for call in turn.calls] == ["42"]
    expected = [
        *dialect.prompt_ids(question.messages, tools.specs),
        *dialect.turn_ids("Let me compute.", [CALL]),
        *dialect.observation_ids(["42"]),
        *dialect.turn_ids(r"\boxed{42}", []),
    ]
    assert list(done.ids) == expected


async def test_without_system_prompt_and_tools_the_prompt_has_no_system_block(
    tiny, tools, question
):
    dialect = make_dialect("hermes", tiny, tool_specs=())
    assert tiny.decode(dialect.prompt_ids(question.messages, ())) == (
        "<|im_start|>user\nWhat is 6 * 7?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_tokenizer_without_markers_spells_them(bare, tools, question):
    dialect = make_dialect("hermes", bare)
    assert dialect.stop == ("<|im_end|>",)
    engine = ScriptedEngine([dialect.turn_ids("", [CALL]), dialect.turn_ids(r"\boxed{42}", [])])
    done = await rollout(
        question,
        engine=engine,
        tools=tools,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=1000),
    )
    assert done.answer == "42"
    assert bare.decode(done.ids).endswith(
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n\\boxed{42}<|im_end|>"
    )
