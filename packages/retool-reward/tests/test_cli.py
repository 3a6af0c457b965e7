"""The command: grade a file, explain a verdict, measure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from retool_reward._cli import main

ROWS = [
    {"prediction_text": "Answer: \\boxed{\\frac{3}{6}}", "gold": "0.5", "id": "a"},
    {"prediction_text": "\\boxed{3}", "gold": 4},
    {"prediction_text": "no idea", "gold": "4"},
    {"prediction_text": "\\boxed{3}", "gold": ""},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def test_grade_prints_a_summary(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", str(rows)]) == 0
    out = capsys.readouterr().out
    assert "match" in out
    assert "33.3% of 3" in out


def test_grade_json_adds_three_fields(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grade", str(rows), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["correct"] for row in found] == [True, False, False, None]
    assert [row["reason"] for row in found] == ["match", "mismatch", "no_answer", "gold_unparsable"]
    assert found[0]["id"] == "a"
    assert found[0]["pred"] == "\\frac{3}{6}"


def test_bad_rows_are_named_and_the_rest_is_graded(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rows.open("a") as file:
        file.write("\n{broken\n[1]\n" + json.dumps({"prediction_text": 3, "gold": "1"}) + "\n")
        file.write(json.dumps({"prediction_text": "x"}) + "\n")
    assert main(["grade", str(rows), "--json"]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == len(ROWS)
    for line in (6, 7, 8, 9):
        assert f"{rows}:{line}:" in captured.err


def test_rows_that_python_cannot_read_are_bad_rows(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with rows.open("a") as file:
        file.write("[" * 100_000 + "\n")
        file.write('{"prediction_text": "x", "gold": ' + "9" * 5_000 + "}\n")
    assert main(["grade", str(rows), "--json"]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == len(ROWS)
    assert f"{rows}:5:" in captured.err
    assert f"{rows}:6:" in captured.err


def test_half_a_surrogate_pair_is_printed_as_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prediction_text": "\ud800 \\boxed{1}", "gold": "1"}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    assert main(["grade", str(file), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.encode()
    assert json.loads(out) == {**row, "correct": True, "pred": "1", "reason": "match"}


@pytest.mark.parametrize("workers", ["0", "257", "two"])
def test_a_bad_count_of_workers_is_a_usage_error(workers: str, rows: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["grade", str(rows), "--workers", workers])
    assert stop.value.code == 2


def test_a_file_that_is_not_there_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grade", str(tmp_path / "none.jsonl")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_policy_for_several_boxes_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prediction_text": "\\boxed{1} \\boxed{2}", "gold": "2"}))
    for policy, correct in (("adjacent", False), ("last", True), ("reject_multi", False)):
        assert main(["grade", str(file), "--json", "--multiple", policy]) == 0
        assert json.loads(capsys.readouterr().out)["correct"] is correct


def test_explain_names_every_layer(capsys: pytest.CaptureFixture[str]) -> None:
    answer = "<interpreter>\\boxed{9}</interpreter> so \\boxed{1,234}"
    assert main(["explain", answer, "1234", "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)
    assert layers["extract"] == "1,234"
    assert "9" not in layers["own text"]
    assert layers["correct"] == "True"
    assert main(["explain", "1/2", "0.5"]) == 0
    assert "put into a box" in capsys.readouterr().out


def test_bench_measures_side_by_side(shared: Path) -> None:
    math500 = shared / "data" / "math500_llmeval.jsonl"
    # A process of its own: it reports its peak memory, and pytest's holds whatever ran before.
    code = "import sys; from retool_reward._cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "bench", "--quick", "--json", "--math500", str(math500)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["symbolic right"]["value"] == 100
    assert report["hostile judged wrong"]["value"] == 0
    assert report["peak memory of a process"]["met"]
    assert report["integers ratio"]["value"] > 1
    assert report["symbolic per s, Math-Verify"]["value"] > 0


def test_bench_without_its_file_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--math500", "/nowhere.jsonl"]) == 2
    assert "--math500" in capsys.readouterr().err


def test_help_is_for_newcomers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "grade every row of a JSONL file" in capsys.readouterr().out
