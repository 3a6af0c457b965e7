"""Stored trajectories come back exactly."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_rollout import CallRecord, Status, StopReason, Trajectory, TurnRecord
from retool_trainer.observe import (
    SampleRecord,
    forget_trajectories_after,
    make_record,
    read_trajectories,
    split_segments,
    trajectories_path,
    write_trajectories,
)


def test_records_come_back_equal_and_in_order(tmp_path: Path, records: list[SampleRecord]) -> None:
    path = trajectories_path(tmp_path, "rl", 12)
    assert path == tmp_path / "trajectories" / "rl" / "step-00012.parquet"
    write_trajectories(path, records * 20)
    assert list(read_trajectories(path)) == records * 20
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


def test_an_empty_step_is_a_file_without_rows(tmp_path: Path) -> None:
    write_trajectories(tmp_path / "empty.parquet", [])
    assert list(read_trajectories(tmp_path / "empty.parquet")) == []


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1),
            st.integers(0, 1),
            st.floats(allow_nan=False),
            st.one_of(st.none(), st.integers(0, 10**9)),
            st.text(st.characters(exclude_categories=["Cs"]), min_size=0, max_size=3),
        ),
        min_size=1,
    ),
    reward=st.one_of(st.none(), st.floats(allow_nan=False)),
)
def test_every_bit_survives(
    tmp_path_factory: pytest.TempPathFactory, tokens: list, reward: float | None
) -> None:
    ids, mask, logprobs, versions, pieces = zip(*tokens, strict=True)
    record = SampleRecord(
        step=1,
        group=0,
        sample=0,
        problem_id="p",
        gold="1",
        ids=ids,
        mask=mask,
        engine_logprobs=logprobs,
        weight_versions=versions,
        pieces=pieces,
        prompt_length=0,
        num_turns=1,
        status="completed",
        stop_reason="answered",
        reward=reward,
        advantage=reward,
    )
    path = tmp_path_factory.getbasetemp() / "bits.parquet"
    write_trajectories(path, [record])
    [read] = read_trajectories(path)
    assert read == record
    assert [v.hex() for v in read.engine_logprobs] == [float(v).hex() for v in logprobs]


def test_columns_of_different_lengths_are_refused(record: SampleRecord) -> None:
    fields = {name: getattr(record, name) for name in SampleRecord.__dataclass_fields__}
    with pytest.raises(ValueError, match="per-token columns must have one length"):
        SampleRecord(**{**fields, "mask": record.mask[1:]})


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="not a trajectories file"):
        next(read_trajectories(tmp_path / "other.parquet"))


def test_files_of_later_steps_are_forgotten(tmp_path: Path, record: SampleRecord) -> None:
    for step in (1, 2, 3):
        write_trajectories(trajectories_path(tmp_path, "rl", step), [record])
    assert forget_trajectories_after(tmp_path, "rl", 1) == 2
    assert [p.name for p in (tmp_path / "trajectories/rl").iterdir()] == ["step-00001.parquet"]


def test_segments_follow_the_speaker() -> None:
    text = "ppAAttB"
    segments = split_segments(
        list(map(ord, text)), [0, 0, 1, 1, 0, 0, 1], 2, lambda ids: "".join(map(chr, ids))
    )
    assert [(s.speaker, s.start, s.end, s.text) for s in segments] == [
        ("prompt", 0, 2, "pp"),
        ("policy", 2, 4, "AA"),
        ("tool", 4, 6, "tt"),
        ("policy", 6, 7, "B"),
    ]


def test_a_rollouts_trajectory_becomes_a_record() -> None:
    call = CallRecord(
        name="code_interpreter",
        arguments={"code": "print(1)"},
        outcome="ok",
        ok=True,
        text="1",
        wall_time_s=0.1,
    )
    trajectory = Trajectory(
        problem_id="p",
        ids=tuple(map(ord, "pAtB")),
        mask=(0, 1, 0, 1),
        logprobs=(0.0, -0.5, 0.0, -0.25),
        weight_versions=(None, 3, None, 4),
        prompt_length=1,
        turns=(
            TurnRecord(text="A", start=1, end=2, observation_end=3, complete=True, calls=(call,)),
            TurnRecord(text="B", start=3, end=4, observation_end=4, complete=True),
        ),
        status=Status.COMPLETED,
        stop_reason=StopReason.ANSWERED,
        answer="B",
    )
    record = make_record(
        trajectory,
        step=5,
        group=1,
        sample=2,
        gold="B",
        decode=lambda ids: "".join(map(chr, ids)),
        correct=True,
        reward=1.05,
        reward_components={"accuracy": 1.0, "tool": 0.05},
    )
    assert record.pieces == ("p", "A", "t", "B")
    assert [s.speaker for s in record.segments] == ["prompt", "policy", "tool", "policy"]
    assert record.calls[0].arguments == '{"code": "print(1)"}'
    assert (record.status, record.stop_reason, record.num_turns) == ("completed", "answered", 2)
    assert not record.trained
    assert record.num_sampled == 2
