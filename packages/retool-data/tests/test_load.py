import json
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_data import (
    SHAPES,
    BadRow,
    BadRowError,
    GoldKind,
    LoadCounts,
    Problem,
    Trajectory,
    UnknownShapeError,
    gold_kind,
    load,
    load_problems,
    load_trajectories,
    recognise,
)

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "Solve $x + 1 = 3$ for $x$.\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
CALL = {"function": {"name": "code_interpreter", "arguments": {"code": "print(1)"}}}
USER = {"role": "user", "content": "One?"}

ROWS: dict[str, dict[str, Any]] = {
    "verl_sft": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "1"},
            {"role": "assistant", "content": "1"},
        ]
    },
    "retool_raw": {
        "messages": [USER, {"role": "assistant", "content": "<code>print(1)</code>"}],
    },
    "hermes": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": '<tool_call>{"name": "t", "arguments": {}}</tool_call>',
            },
        ]
    },
    "tora_messages": {
        "messages": [
            USER,
            {"role": "assistant", "content": "```python\nprint(1)\n```\n```output\n1\n```\nOne."},
        ],
        "gt": "1",
    },
    "messages": {"messages": [USER, {"role": "assistant", "content": "1"}]},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "1"}]
    },
    "trl_completion": {
        "prompt": [USER],
        "completion": [{"role": "assistant", "content": "1"}],
    },
    "tora_output": {
        "question": "One?",
        "gt": "1",
        "code": ["```python\nprint(1)\n```\n```output\n1\n```\nOne."],
    },
    "verl_rl": {
        "data_source": "math_dapo",
        "prompt": [{"content": DAPO, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "a"},
    },
    "slime_rl": {"prompt": [{"content": DAPO, "role": "user"}], "label": "2"},
    "dapo_reference": {"prompt": DAPO, "reference": "2", "group_id": 0},
    "nemo": {"id": "x", "problem": "One?", "expected_answer": "1"},
    "math": {"problem": "One?", "solution": "It is $\\boxed{\\frac{1}{1}}$.", "level": "Level 1"},
    "aime": {"problem": "One?", "answer": "001"},
    "aime_capital": {"ID": "2024-I-1", "Problem": "One?", "Answer": 1},
    "gsm8k": {"question": "One?", "answer": "It is 1.\n#### 1"},
    "question_answer": {"question": "One?", "answer": "1"},
    "prompt_answer": {"prompt": "One?", "answer": 1},
    "input_output": {"input": "One?", "output": "1"},
}


def test_there_is_a_row_of_every_shape() -> None:
    assert set(ROWS) == {shape.name for shape in SHAPES}


@pytest.mark.parametrize("name", ROWS)
def test_every_shape_is_recognised_and_read(name: str) -> None:
    shape = recognise(ROWS[name])
    assert shape.name == name
    (record,) = load([ROWS[name]])
    expected = Trajectory if shape.kind == "trajectory" else Problem
    assert type(record) is expected
    problem = record if isinstance(record, Problem) else record.problem
    assert problem.provenance.shape == name
    assert problem.statement in ("One?", "Solve $x + 1 = 3$ for $x$.")


def test_golds_are_text_whatever_type_the_row_had() -> None:
    golds = {name: record.gold for name, row in ROWS.items() for record in load_problems([row])}
    assert golds["aime_capital"] == "1"
    assert golds["prompt_answer"] == "1"
    assert golds["aime"] == "001"
    assert golds["gsm8k"] == "1"
    assert golds["math"] == "\\frac{1}{1}"
    assert golds["verl_rl"] == golds["slime_rl"] == "2"
    assert golds["tora_messages"] == "1"


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("12", GoldKind.INTEGER),
        ("-1,234", GoldKind.INTEGER),
        ("0.5", GoldKind.DECIMAL),
        ("\\frac{1}{2}", GoldKind.FRACTION),
        ("3/4", GoldKind.FRACTION),
        ("\\text{Evelyn}", GoldKind.TEXT),
        ("2\\sqrt{3}", GoldKind.EXPRESSION),
        ("", GoldKind.NONE),
        (None, GoldKind.NONE),
    ],
)
def test_the_kind_of_a_gold(gold: str | None, kind: GoldKind) -> None:
    assert gold_kind(gold) is kind


def test_columns_that_no_field_holds_are_kept() -> None:
    (problem,) = load_problems([ROWS["verl_rl"]])
    extra = json.loads(problem.provenance.extra)
    assert extra["ability"] == "MATH"
    assert extra["reward_model"]["style"] == "rule-lighteval/MATH_v2"


def test_an_unknown_shape_names_its_columns_and_how_to_map_them() -> None:
    with pytest.raises(UnknownShapeError, match=r"frage \(str\), loesung \(str\)") as caught:
        list(load([{"frage": "One?", "loesung": "1"}]))
    assert "--map prompt=COLUMN" in str(caught.value)


def test_columns_can_be_mapped() -> None:
    row = {"frage": "One?", "loesung": "1", "note": "x"}
    (problem,) = load_problems([row], columns={"prompt": "frage", "label": "loesung"})
    assert (problem.statement, problem.gold) == ("One?", "1")
    assert json.loads(problem.provenance.extra) == {"note": "x"}


def test_a_missing_mapped_column_is_named() -> None:
    with pytest.raises(BadRowError, match="no column frage; the row has prompt, label"):
        list(load([{"prompt": "a", "label": "b"}], columns={"prompt": "frage"}))


@pytest.mark.parametrize(
    ("label", "reason"),
    [(["1", "2"], "gold must be text or a number"), (True, "gold must be text or a number")],
)
def test_a_gold_that_is_no_answer_is_a_bad_row(label: object, reason: str) -> None:
    with pytest.raises(BadRowError, match=reason):
        list(load([{"prompt": "One?", "label": label}]))


@pytest.mark.parametrize("prompt", [None, "", "  ", []])
def test_an_empty_prompt_is_a_bad_row_and_never_none(prompt: object) -> None:
    with pytest.raises(BadRowError, match="prompt is empty"):
        list(load([{"prompt": prompt, "label": "1"}]))


def test_bad_rows_are_reported_by_line_and_the_rest_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    good = json.dumps({"prompt": "One\u2028?", "label": "1"}, ensure_ascii=False)
    file.write_text(f'{good}\n{{"prompt": \n\n[1]\n{{"prompt": "", "label": "1"}}\n{good}\n')
    bad: list[BadRow] = []
    counts = LoadCounts()
    rows = list(load_problems(file, on_bad_row=bad.append, counts=counts))
    assert [row.provenance.row for row in rows] == [1, 6]
    assert [row.number for row in bad] == [2, 4, 5]
    assert "not JSON" in bad[0].reason
    assert "must be a JSON object, got list" in bad[1].reason
    assert (counts.rows, counts.records, counts.bad) == (5, 2, 3)


def test_the_first_bad_row_raises_where_nobody_listens(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{\n")
    with pytest.raises(BadRowError, match=r"rows\.jsonl:1: not JSON"):
        list(load(file))


def test_repeated_prompts_are_skipped_before_they_are_parsed() -> None:
    rows = [ROWS["verl_rl"] | {"extra_info": {"index": str(i)}} for i in range(100)]
    counts = LoadCounts()
    kept = list(load([*rows, ROWS["verl_rl"] | {"prompt": [USER]}], unique=True, counts=counts))
    assert (len(kept), counts.repeated) == (2, 99)


@pytest.mark.parametrize(("name", "said"), [("tora_output", "code"), ("trl_completion", "prompt")])
def test_rows_of_which_a_part_is_equal_are_no_copies(name: str, said: str) -> None:
    row = ROWS[name]
    other = [{"role": "user", "content": "Two?"}] if said == "prompt" else ["Two."]
    assert len(list(load([row, row | {said: other}, row], unique=True))) == 2


LINES = st.builds(
    lambda row, separators: json.dumps(row, separators=separators),
    st.one_of(
        st.fixed_dictionaries(
            {
                "prompt": st.sampled_from(["One?", "Two?", "", None, [USER]]),
                "label": st.sampled_from(["1", 1, ["1"], ["1", "2"]]),
            },
            optional={"index": st.integers(0, 1)},
        ),
        st.fixed_dictionaries({"problem_id": st.just("p"), "statement": st.just("One?")}),
        st.fixed_dictionaries({"question": st.just("One?"), "answer": st.just("#### 1")}),
        st.just([1]),
    ),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)


@given(st.lists(st.one_of(LINES, st.sampled_from(["", "{"])), max_size=12))
def test_copies_that_go_by_unparsed_are_those_that_parsing_finds(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        lines = ['{"prompt": "Zero?", "label": "0"}', *lines]
        file.write_text("".join(f"{line}\n" for line in lines))
        every, bad_of_all = LoadCounts(), list[BadRow]()
        rows = list(load(file, on_bad_row=bad_of_all.append, counts=every))
        counts, bad = LoadCounts(), list[BadRow]()
        kept = list(load(file, unique=True, on_bad_row=bad.append, counts=counts))
    expected, prompts = list[Any](), set[str]()
    for row in rows:
        own = row.provenance.row == 0  # a record of ours is never left out
        raw = {} if own else json.loads(lines[row.provenance.row - 1])
        prompt = json.dumps(raw.get("prompt", raw.get("question")))
        if own or prompt not in prompts:
            expected.append(row)
        if not own:
            prompts.add(prompt)
    assert kept == expected
    assert counts.rows == every.rows
    assert counts.rows == len(kept) + counts.repeated + len(bad)  # unread, a bad copy is a copy


def test_a_row_that_does_not_read_keeps_no_later_one_out() -> None:
    rows = [{"prompt": "One?", "label": ["1", "2"]}, {"prompt": "One?", "label": "1"}]
    bad: list[BadRow] = []
    (kept,) = load(rows, shape="slime_rl", unique=True, on_bad_row=bad.append)
    assert (kept.provenance.row, len(bad)) == (2, 1)


def test_the_shape_of_a_row_does_not_depend_on_the_rows_before_it() -> None:
    both = {"prompt": "One?", "label": "1", "answer": "1"}
    only = {"prompt": "Two?", "answer": "2"}
    for rows in ([only, both], [both, only]):
        shapes = {row.provenance.row: row.provenance.shape for row in load(rows)}
        assert sorted(shapes.values()) == ["prompt_answer", "slime_rl"]


def test_parquet_and_json_files_are_read(tmp_path: Path) -> None:
    rows = [{"prompt": "One?", "label": "1"}, {"prompt": "Two?", "label": "2"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    for name in ("rows.parquet", "rows.json"):
        problems = list(load_problems(tmp_path / name))
        assert [p.statement for p in problems] == ["One?", "Two?"]
        assert [p.provenance.row for p in problems] == [1, 2]


def test_keys_that_arrow_padded_with_null_are_no_arguments(tmp_path: Path) -> None:
    def row(arguments: dict[str, object]) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "t", "arguments": arguments}}
        return {
            "messages": [USER, {"role": "assistant", "content": "x", "tool_calls": [call]}],
        }

    table = pa.Table.from_pylist([row({"code": "1"}), row({"query": "2"})])
    pq.write_table(table, tmp_path / "rows.parquet")
    first, second = load_trajectories(tmp_path / "rows.parquet")
    assert first.turns()[0].calls[0].as_dict() == {"code": "1"}
    assert second.turns()[0].calls[0].as_dict() == {"query": "2"}


def test_tools_that_arrow_padded_with_null_lose_the_nulls() -> None:
    properties = {"code": {"type": "string", "enum": None}, "query": None}
    tool = {"type": "function", "function": {"name": "t", "parameters": {"properties": properties}}}
    row = {"messages": [USER, {"role": "assistant", "content": "x"}], "tools": [tool]}
    (trajectory,) = load_trajectories([row])
    (spec,) = trajectory.tool_specs
    assert spec["function"]["parameters"]["properties"] == {"code": {"type": "string"}}


@pytest.mark.parametrize("tools", ["not json", '{"name": "t"}', "[1]", [1], {"name": "t"}])
def test_tools_that_are_no_list_of_specs_are_a_bad_row(tools: object) -> None:
    row = {"messages": [USER, {"role": "assistant", "content": "x"}], "tools": tools}
    with pytest.raises(BadRowError, match="does not read as messages: tools"):
        list(load([row]))


def test_a_parquet_column_of_dates_is_kept_as_text(tmp_path: Path) -> None:
    row = {"prompt": "One?", "label": "1", "at": date(2024, 2, 29)}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    (problem,) = load_problems(tmp_path / "rows.parquet")
    assert json.loads(problem.provenance.extra) == {"at": "2024-02-29"}


def test_a_gold_that_pandas_wrote_as_nan_is_missing() -> None:
    (problem,) = load_problems([{"prompt": "One?", "label": float("nan")}])
    assert problem.gold is None


def test_the_byte_order_mark_and_line_ends_of_windows_are_no_fault(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "One?", "label": "1"})
    (tmp_path / "rows.jsonl").write_bytes(f"\ufeff{row}\r\n{row}\r\n".encode())
    (tmp_path / "rows.json").write_bytes(f"\ufeff[{row}, {row}]".encode())
    for name in ("rows.jsonl", "rows.json"):
        assert [p.statement for p in load_problems(tmp_path / name)] == ["One?", "One?"]


@pytest.mark.parametrize("text", ["", '{"prompt": "a"}\n{"prompt": "b"}\n', "{}"])
def test_a_json_file_that_is_no_list_is_named_with_advice(text: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ValueError, match=r"^rows\.json: .*is named \.jsonl$"):
        list(load(tmp_path / "rows.json"))


def test_a_misspelt_path_is_no_hub_id() -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'data/trian\.jsonl'"):
        list(load("data/trian.jsonl"))


def test_a_column_that_a_given_shape_misses_is_named() -> None:
    with pytest.raises(BadRowError, match="does not read as nemo: no column 'problem'"):
        list(load([{"prompt": "One?"}], shape="nemo"))


def test_a_folder_is_read_through_datasets(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [{"prompt": "One?", "label": "1"}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000.parquet")
    (problem,) = load_problems(folder)
    assert (problem.statement, problem.provenance.source) == ("One?", "set")


def test_a_datasets_object_is_read() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{"prompt": "One?", "label": "1"}])
    (problem,) = load_problems(data)
    assert problem.gold == "1"


def test_a_path_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'nothing\.jsonl'"):
        list(load("nothing.jsonl"))


def test_an_unknown_kind_of_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n")
    with pytest.raises(ValueError, match=r"expected \.jsonl, \.json or \.parquet, got '\.csv'"):
        list(load(tmp_path / "rows.csv"))


def test_problems_are_no_trajectories() -> None:
    with pytest.raises(ValueError, match="is a problem without a trajectory"):
        list(load_trajectories([{"prompt": "One?", "label": "1"}]))
