import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_data import (
    Message,
    Pack,
    Problem,
    Segment,
    TokenSample,
    ToolCall,
    Trajectory,
    Turn,
    convert,
    load,
    load_packs,
    load_samples,
    pack,
    tokenize,
    write_rows,
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=4), values, max_size=3)
calls = st.builds(ToolCall, name=st.sampled_from(["a", "b"]), arguments=arguments)
turns = st.builds(
    Turn,
    text=st.text(max_size=8),
    calls=st.lists(calls, max_size=3).map(tuple),
    results=st.just(()),
)
problems = st.builds(
    Problem,
    problem_id=st.text(max_size=4),
    statement=st.text(max_size=8),
    system=st.none() | st.text(max_size=3),
    history=st.lists(
        st.builds(Message, role=st.just("user"), content=st.text(max_size=3)), max_size=2
    ).map(tuple),
    gold=st.none() | st.text(max_size=3),
    contaminated_by=st.lists(st.text(max_size=2), max_size=2).map(tuple),
)
specs = st.lists(st.dictionaries(st.text(max_size=3), values, max_size=2), max_size=2)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(problems, st.lists(turns, max_size=3), specs), min_size=1, max_size=4))
def test_mixed_arguments_missing_keys_and_empty_lists_survive_files(rows: Any) -> None:
    records = [
        Trajectory.from_turns(
            problem,
            [Turn(text=t.text, calls=t.calls, results=("",) * len(t.calls)) for t in some],
            tools=tools,
        )
        for problem, some, tools in rows
    ]
    with TemporaryDirectory() as folder:
        for name in ("rows.parquet", "rows.jsonl"):
            file = Path(folder) / name
            write_rows(file, records)
            assert list(load(file)) == records
            for record, back in zip(records, load(file), strict=True):
                assert isinstance(back, Trajectory)
                assert back.tool_specs == record.tool_specs
                for a, b in zip(record.segments, back.segments, strict=True):
                    if a.call is not None and b.call is not None:
                        assert a.call.as_dict() == b.call.as_dict()


@settings(deadline=None, max_examples=30)
@given(st.lists(problems, min_size=1, max_size=4))
def test_problems_survive_files(records: list[Problem]) -> None:
    with TemporaryDirectory() as folder:
        for name in ("rows.parquet", "rows.jsonl"):
            write_rows(Path(folder) / name, records)
            assert list(load(Path(folder) / name)) == records


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_samples_and_packs_survive_files(suffix: str, renderer: Any, tmp_path: Path) -> None:
    problem = Problem(problem_id="p", statement="x")
    sample = tokenize(Trajectory(problem=problem, segments=(Segment.of_text("y"),)), renderer)
    write_rows(tmp_path / f"samples{suffix}", [sample])
    assert list(load_samples(tmp_path / f"samples{suffix}")) == [sample]
    packs = pack([sample, sample], 100)
    write_rows(tmp_path / f"packs{suffix}", packs)
    assert list(load_packs(tmp_path / f"packs{suffix}")) == packs
    assert isinstance(packs[0], Pack)
    assert isinstance(sample, TokenSample)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"out{suffix}"
    first = Problem(problem_id="p", statement="old")
    write_rows(file, [first])

    def rows() -> Any:
        yield Problem(problem_id="p", statement="new")
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        write_rows(file, rows())
    assert list(load(file)) == [first]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_without_rows_is_written(suffix: str, tmp_path: Path) -> None:
    assert write_rows(tmp_path / f"out{suffix}", []) == 0
    assert list(load(tmp_path / f"out{suffix}")) == []


def test_parquet_refuses_what_arrow_would_drop(tmp_path: Path) -> None:
    call = Segment.of_call("search", {"query": "x"})
    trajectory = Trajectory(problem=Problem(problem_id="p", statement="x"), segments=(call,))
    rows = list(convert([trajectory], "verl"))
    with pytest.raises(ValueError, match=r"Parquet would drop .*\.query"):
        write_rows(tmp_path / "out.parquet", rows)
    assert list(tmp_path.iterdir()) == []
    write_rows(tmp_path / "out.jsonl", rows)
    assert list(load(tmp_path / "out.jsonl")) == [trajectory]


def test_parquet_refuses_a_number_where_it_holds_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds row\.label as text, got 1"):
        write_rows(tmp_path / "out.parquet", [{"prompt": "x", "label": 1}])


def test_parquet_refuses_a_column_that_the_first_row_did_not_have(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(ValueError, match=r"Parquet would drop row\.tools"):
        write_rows(tmp_path / "out.parquet", [row, row | {"tools": "[]"}])


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"write to a \.jsonl or \.parquet file"):
        write_rows(tmp_path / "out.csv", [])


def test_jsonl_keeps_unicode_and_html_characters_readable(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    write_rows(file, [Problem(problem_id="p", statement="√2 < π & é")])
    assert "√2 < π & é" in file.read_text()
    assert json.loads(file.read_text())["statement"] == "√2 < π & é"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    records = [Problem(problem_id=str(n), statement="Q", gold="1") for n in range(3)]
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(pipe.read_text)
        assert write_rows(pipe, records) == len(records)
        assert len(read.result(30).splitlines()) == len(records)
    assert pipe.is_fifo()


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    link, file = tmp_path / "rows.jsonl", tmp_path / "elsewhere" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text("old\n")
    link.symlink_to(file)
    write_rows(link, [{"n": 1}])
    assert link.is_symlink()
    assert file.read_text() == '{"n":1}\n'
    assert list(file.parent.iterdir()) == [file]
