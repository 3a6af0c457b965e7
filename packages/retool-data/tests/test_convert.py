import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from retool_data import (
    BadRow,
    BadRowError,
    Problem,
    Segment,
    Trajectory,
    convert,
    load,
    load_problems,
    load_trajectories,
    with_answer_form,
    write_rows,
)
from retool_data._write import TARGETS

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "Find $x$ < 3.\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


@pytest.fixture
def dapo_row() -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": DAPO, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "extra_info": {"index": "a"},
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("to", TARGETS)
def test_trajectories_come_back_unchanged_from_every_target(
    to: str, suffix: str, raw_row: dict[str, Any], verl_row: dict[str, Any], tmp_path: Path
) -> None:
    records = list(load([raw_row, verl_row]))
    file = tmp_path / f"out{suffix}"
    assert write_rows(file, convert(records, to)) == 2
    assert list(load(file)) == records


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("to", ["records", "slime", "vime", "verl", "trl"])
def test_problems_come_back_unchanged_from_every_target(
    to: str, suffix: str, dapo_row: dict[str, Any], tmp_path: Path
) -> None:
    records = list(load([dapo_row])) + list(load([{"prompt": "One?", "answer": 1}]))
    file = tmp_path / f"out{suffix}"
    assert write_rows(file, convert(records, to)) == 2
    assert list(load(file)) == records


def test_the_raw_layout_goes_through_both_dialects_and_back(
    raw_row: dict[str, Any], tmp_path: Path
) -> None:
    hermes, retool = tmp_path / "hermes.jsonl", tmp_path / "retool.jsonl"
    write_rows(hermes, convert(load([raw_row]), "hermes"))
    write_rows(retool, convert(load(hermes), "retool", plain=True))
    assert json.loads(retool.read_text()) == raw_row


def test_plain_rows_keep_what_training_reads(raw_row: dict[str, Any]) -> None:
    (row,) = convert(load([raw_row]), "hermes", plain=True)
    assert set(row) == {"messages", "tools"}
    (back,) = load_trajectories([row])
    (record,) = load_trajectories([raw_row])
    assert back.turns() == record.turns()


def test_hermes_rows_hold_the_tool_format_of_the_mission(verl_row: dict[str, Any]) -> None:
    (row,) = convert(load([verl_row]), "hermes", plain=True)
    assert row["messages"][1]["content"] == (
        'Let me compute it.\n<tool_call>\n{"name": "code_interpreter", "arguments": '
        '{"code": "x = 6 * 7\\nprint(x)"}}\n</tool_call>'
    )
    assert row["messages"][2] == {
        "role": "user",
        "content": "<tool_response>\n42\n</tool_response>",
    }


def test_the_sft_seed_script_is_reproduced(raw_row: dict[str, Any]) -> None:
    # sft_data_processing copies role and content of every message, and refuses role `tool`.
    (row,) = convert(load([raw_row]), "slime", plain=True)
    seed = [{"role": m["role"], "content": m["content"]} for m in raw_row["messages"]]
    assert row == {"messages": seed}


def test_the_rl_seed_script_is_reproduced(dapo_row: dict[str, Any]) -> None:
    # rl_data_preprocess takes the first message's text and the ground truth.
    (row,) = convert(load([dapo_row]), "slime", plain=True)
    assert row == {
        "prompt": dapo_row["prompt"][0]["content"],
        "label": dapo_row["reward_model"]["ground_truth"],
    }


def test_verls_own_rows_keep_the_columns_that_choose_the_scorer(dapo_row: dict[str, Any]) -> None:
    (row,) = convert(load([dapo_row]), "verl", plain=True)
    del row["extra_info"], dapo_row["extra_info"]  # the index becomes the problem_id
    assert row == dapo_row


def test_the_answer_form_can_be_rewritten_on_the_way(dapo_row: dict[str, Any]) -> None:
    problems = (with_answer_form(problem, "boxed") for problem in load_problems([dapo_row]))
    (row,) = convert(problems, "slime", plain=True)
    assert "form Answer: \\boxed{$Answer} where" in row["prompt"]
    assert "Find $x$ < 3." in row["prompt"]


def test_slime_rows_know_three_roles_only(verl_row: dict[str, Any]) -> None:
    (row,) = convert(load([verl_row]), "slime")
    assert {message["role"] for message in row["messages"]} == {"user", "assistant"}


def test_an_edited_row_is_read_by_what_it_shows(raw_row: dict[str, Any]) -> None:
    (row,) = convert(load([raw_row]), "verl")
    row["messages"][-1]["content"] = "\\boxed{43}"
    (edited,) = load_trajectories([row])
    assert edited.turns()[-1].text == "\\boxed{43}"
    assert edited.provenance.shape == "verl_sft"
    assert edited.provenance.extra == "{}"


def test_labels_are_text_and_int_golds_come_back_as_ints() -> None:
    (row,) = convert(load([{"prompt": "One?", "answer": 1}]), "slime")
    assert row["label"] == "1"
    (problem,) = load_problems([row])
    assert problem.gold_type == "int"


def test_a_call_that_the_retool_layout_cannot_hold_is_a_bad_row() -> None:
    problem = Problem(problem_id="p", statement="x")
    other = Trajectory(problem=problem, segments=(Segment.of_call("search", {"query": "x"}),))
    with pytest.raises(BadRowError, match=r"can only write code_interpreter\(code\), got search"):
        list(convert([other], "retool"))


def test_text_that_would_read_as_a_call_is_a_bad_row_and_the_rest_is_written() -> None:
    problem = Problem(problem_id="p", statement="x")
    tags = Trajectory(
        problem=problem,
        segments=(Segment.of_text("I write <code>print(1)</code> like this."),),
        dialect="messages",
    )
    fine = Trajectory(problem=problem, segments=(Segment.of_text("One."),))
    bad: list[BadRow] = []
    assert len(list(convert([tags, fine], "retool", on_bad_row=bad.append))) == 1
    assert "when the row was read back" in bad[0].reason


@pytest.mark.parametrize(
    ("code", "output"), [("print(1)\n", "1"), ("print(1)", "1\n"), ("print(m)", " 1 2\n 3 4")]
)
def test_white_space_around_programs_and_outputs_is_no_loss_in_the_retool_layout(
    code: str, output: str, verl_row: dict[str, Any], tmp_path: Path
) -> None:
    verl_row["messages"][1]["tool_calls"][0]["function"]["arguments"]["code"] = code
    verl_row["messages"][2]["content"] = output
    records = list(load([verl_row]))
    write_rows(tmp_path / "out.jsonl", convert(records, "retool"))
    assert list(load(tmp_path / "out.jsonl")) == records


@pytest.mark.parametrize("to", [name for name in TARGETS if name != "records"])
def test_words_that_must_not_be_trained_on_are_a_bad_row_in_layouts_that_cannot_say_so(
    to: str, verl_row: dict[str, Any]
) -> None:
    verl_row["messages"][1]["weight"] = 0
    with pytest.raises(BadRowError, match="the mark that turn 1 must not be trained on was lost"):
        list(convert(load([verl_row]), to))


def test_problems_cannot_be_written_in_a_layout_of_trajectories(dapo_row: dict[str, Any]) -> None:
    with pytest.raises(BadRowError, match="only a problem"):
        list(convert(load([dapo_row]), "hermes"))


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(ValueError, match="choose one of records, retool"):
        list(convert([], "alpaca"))


def test_verl_parquet_holds_arguments_as_an_object(
    verl_row: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "out.parquet"
    write_rows(file, convert(load([verl_row]), "verl"))
    messages = pq.read_table(file).to_pylist()[0]["messages"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"code": "x = 6 * 7\nprint(x)"}
