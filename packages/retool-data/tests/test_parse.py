import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_data import Kind, load, load_trajectories
from retool_data._parse import framed_text, parse_hermes, parse_retool, parse_tora

RETOOL_PIECES = st.sampled_from(
    [
        "prose ",
        "\n",
        "  ",
        "<code>",
        "</code>",
        "```python\n",
        "```",
        "\n```\n",
        "print(1)",
        "<interpreter>",
        "</interpreter>",
        "<answer>",
        "</answer>",
        "\\boxed{1}",
        "é√",
    ]
)


@given(st.lists(RETOOL_PIECES, max_size=30).map("".join))
def test_cutting_retool_text_loses_no_character(text: str) -> None:
    segments = parse_retool(text)
    if segments:
        assert framed_text(segments) == text
    else:
        assert not text.strip()


@given(st.lists(RETOOL_PIECES | st.just("```output\n"), max_size=30).map("".join))
def test_cutting_tora_text_loses_no_character(text: str) -> None:
    segments = parse_tora(text)
    assert not segments or framed_text(segments) == text


def test_a_retool_row_becomes_prose_calls_outputs_and_answer(raw_row: dict[str, Any]) -> None:
    (trajectory,) = load_trajectories([raw_row])
    assert [segment.kind for segment in trajectory.segments] == [
        Kind.TEXT,
        Kind.CALL,
        Kind.RESULT,
        Kind.TEXT,
        Kind.CALL,
        Kind.RESULT,
        Kind.ANSWER,
    ]
    assert trajectory.segments[1].call is not None
    assert trajectory.segments[1].call.code == "x = 6 * 7\nprint(x)"
    assert trajectory.segments[2].result is not None
    assert trajectory.segments[2].result.text == "42"
    assert trajectory.segments[-1].text == "\\boxed{42}"
    assert trajectory.problem.statement == "What is 6 times 7?"


def test_code_without_a_fence_keeps_its_indentation() -> None:
    (segment,) = parse_retool("<code>\n  x = 1\n  print(x)\n</code>")
    assert segment.call is not None
    assert segment.call.code == "  x = 1\n  print(x)"


def test_an_interpreter_block_without_a_call_stays_prose() -> None:
    (segment,) = parse_retool("I remember <interpreter>5</interpreter> well.")
    assert segment.kind is Kind.TEXT


def test_pretty_printed_tool_json_is_read() -> None:
    call_json = json.dumps({"name": "t", "arguments": {"code": "a {b}"}}, indent=2)
    text = f"Go.\n<tool_call>\n{call_json}\n</tool_call>"
    prose, call = parse_hermes(text)
    assert prose.text == "Go."
    assert call.call is not None
    assert call.call.as_dict() == {"code": "a {b}"}


def test_raw_newlines_inside_the_code_string_are_read() -> None:
    (call,) = parse_hermes('<tool_call>{"name": "t", "arguments": {"code": "a\nb"}}</tool_call>')
    assert call.call is not None
    assert call.call.code == "a\nb"


def test_a_broken_tool_call_names_what_it_found() -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        parse_hermes('<tool_call>{"name": </tool_call>')
    with pytest.raises(ValueError, match="needs a name and arguments"):
        parse_hermes('<tool_call>{"nom": "x"}</tool_call>')


def test_hermes_results_in_user_messages_are_no_questions() -> None:
    call = json.dumps({"name": "code_interpreter", "arguments": {"code": "print(2)"}})
    row = {
        "messages": [
            {"role": "user", "content": "Two?"},
            {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
            {"role": "user", "content": "<tool_response>\n2\n</tool_response>"},
            {"role": "assistant", "content": "\\boxed{2}"},
        ]
    }
    (trajectory,) = load_trajectories([row])
    assert trajectory.problem.prompt == "Two?"
    assert [turn.results for turn in trajectory.turns()] == [("2",), ()]


@pytest.mark.parametrize(
    "output", ["see <tool_response> here", "a <tool_response>b</tool_response> c", " 1\n"]
)
def test_an_output_that_spells_the_tags_of_outputs_keeps_its_words(
    output: str, verl_row: dict[str, Any]
) -> None:
    verl_row["messages"][2]["content"] = output
    (trajectory,) = load_trajectories([verl_row])
    assert [turn.results for turn in trajectory.turns()] == [(output,), ("43",), ()]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_a_thought_kept_apart_stands_before_the_words(key: str) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", key: "hm"}]
    (trajectory,) = load_trajectories([{"messages": messages}])
    assert trajectory.turns()[0].text == "<think>\nhm\n</think>\n\ny"


@pytest.mark.parametrize(("key", "no"), [("weight", 0), ("step_loss_mask", 0), ("train", False)])
def test_a_message_that_must_not_be_trained_on_is_not(
    key: str, no: object, verl_row: dict[str, Any]
) -> None:
    verl_row["messages"][1][key] = no
    (trajectory,) = load_trajectories([verl_row])
    assert [turn.trained for turn in trajectory.turns()] == [False, True, True]


def test_earlier_questions_and_replies_become_history() -> None:
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "1"},
        ]
    }
    (trajectory,) = load_trajectories([row])
    assert trajectory.problem.messages == row["messages"][:-1]
    assert [segment.text for segment in trajectory.segments] == ["1"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "assistant", "content": "x"}], "no user message"),
        ([{"role": "user", "content": "x"}], "no assistant message"),
        ([{"role": "user", "content": " "}, {"role": "assistant", "content": "x"}], "empty"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}], "says nothing"),
        (
            [
                {"role": "user", "content": "x"},
                {"role": "system", "content": "y"},
                {"role": "assistant", "content": "z"},
            ],
            "a system message after the last question",
        ),
        (
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "y"},
                {"role": "user", "content": "<tool_response>\n1\n</tool_response>\nAnd why?"},
                {"role": "assistant", "content": "z"},
            ],
            r"words beside the <tool_response> blocks: .*And why\?",
        ),
        ([{"role": "judge", "content": "x"}], "unknown role 'judge'"),
        (
            [{"role": "user", "content": "x"}] + [{"role": "assistant", "content": "y"}] * 2,
            "two assistant messages in a row",
        ),
    ],
)
def test_a_conversation_that_no_rollout_produces_is_a_bad_row(
    messages: list[dict[str, str]], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        list(load([{"messages": messages}]))


def test_a_list_of_text_parts_is_read_and_an_image_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"prompt": [{"role": "user", "content": parts}], "label": "1"}
    (problem,) = load([row])
    assert problem.messages == [{"role": "user", "content": "ab"}]  # type: ignore[union-attr]
    parts[1] = {"type": "image_url", "image_url": "x"}
    with pytest.raises(ValueError, match="content must be text"):
        list(load([row]))
