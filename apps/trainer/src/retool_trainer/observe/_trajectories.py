"""Keep the trajectories of every step as Parquet, so exactly that a replay rebuilds the batch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ._records import Call, SampleRecord, Segment

_FORMAT_VERSION = b"1"
# Python objects of so many rows exist at once, whatever the size of the step.
_ROWS_PER_GROUP = 32

_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("group", pa.int64()),
        ("sample", pa.int64()),
        ("problem_id", pa.string()),
        ("gold", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.int8())),
        # float64: what the engine's JSON said, to the bit; float32 values cost no more after
        # byte-stream-split, since their low bytes are all zero.
        ("engine_logprobs", pa.list_(pa.float64())),
        ("policy_logprobs", pa.list_(pa.float64())),
        ("reference_logprobs", pa.list_(pa.float64())),
        ("weight_versions", pa.list_(pa.int64())),
        ("prompt_length", pa.int64()),
        (
            "segments",
            pa.list_(
                pa.struct(
                    [
                        ("speaker", pa.string()),
                        ("start", pa.int64()),
                        ("end", pa.int64()),
                        ("text", pa.string()),
                    ]
                )
            ),
        ),
        ("pieces", pa.list_(pa.string())),
        (
            "calls",
            pa.list_(
                pa.struct(
                    [
                        ("turn", pa.int64()),
                        ("name", pa.string()),
                        ("arguments", pa.string()),
                        ("outcome", pa.string()),
                        ("ok", pa.bool_()),
                        ("text", pa.string()),
                        ("wall_time_s", pa.float64()),
                    ]
                )
            ),
        ),
        ("num_turns", pa.int64()),
        ("status", pa.string()),
        ("stop_reason", pa.string()),
        ("answer", pa.string()),
        ("correct", pa.bool_()),
        ("reward", pa.float64()),
        ("reward_components", pa.map_(pa.string(), pa.float64())),
        ("advantage", pa.float64()),
        ("wall_time_s", pa.float64()),
        ("error", pa.string()),
    ],
    metadata={b"retool_trajectories": _FORMAT_VERSION},
)
_FLOAT_COLUMNS = ["engine_logprobs", "policy_logprobs", "reference_logprobs"]


def trajectories_path(run_dir: Path, stage: str, step: int) -> Path:
    """Return where the trajectories of a step lie: `RUN/trajectories/rl/step-00012.parquet`."""
    return run_dir / "trajectories" / stage / f"step-{step:05d}.parquet"


def write_trajectories(path: Path, records: Sequence[SampleRecord]) -> None:
    """Write the trajectories of one step, in order; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    leaves = [f"{name}.list.element" for name in _FLOAT_COLUMNS]
    dictionary = ["problem_id", "gold", "status", "stop_reason", "answer", "pieces.list.element"]
    try:
        with pq.ParquetWriter(
            temporary,
            _SCHEMA,
            compression="zstd",
            use_dictionary=dictionary,  # pyright: ignore[reportArgumentType]: stubs know bool only
            use_byte_stream_split=leaves,  # pyright: ignore[reportArgumentType]
        ) as writer:
            for start in range(0, len(records), _ROWS_PER_GROUP):
                rows = [_row(record) for record in records[start : start + _ROWS_PER_GROUP]]
                writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_trajectories(path: Path) -> Iterator[SampleRecord]:
    """Yield the trajectories of one step in the order they were written.

    Raises:
        ValueError: The file is Parquet, but was not written by `write_trajectories`.
    """
    with pq.ParquetFile(path) as file:
        found = (file.schema_arrow.metadata or {}).get(b"retool_trajectories")
        if found != _FORMAT_VERSION:
            raise ValueError(
                f"{path}: not a trajectories file of format {_FORMAT_VERSION.decode()} "
                f"(its mark is {found!r})"
            )
        for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP):
            for row in batch.to_pylist():
                yield _record(row)


def read_verdicts(path: Path) -> dict[str, list[bool | None]]:
    """Return the grades of each problem's trajectories, by problem; reads nothing else."""
    table = pq.read_table(path, columns=["problem_id", "correct"])
    verdicts: dict[str, list[bool | None]] = {}
    for name, correct in zip(*table.to_pydict().values(), strict=True):
        verdicts.setdefault(name, []).append(correct)
    return verdicts


def forget_trajectories_after(run_dir: Path, stage: str, step: int) -> int:
    """Delete the files of later steps, so that a resumed run writes them anew.

    Returns:
        How many files were deleted.
    """
    later = [
        path
        for path in (run_dir / "trajectories" / stage).glob("step-*.parquet")
        if int(path.stem.removeprefix("step-")) > step
    ]
    for path in later:
        path.unlink()
    return len(later)


def _row(record: SampleRecord) -> dict[str, Any]:
    row = {name.name: getattr(record, name.name) for name in dataclasses.fields(record)}
    row["segments"] = [dataclasses.asdict(segment) for segment in record.segments]
    row["calls"] = [dataclasses.asdict(call) for call in record.calls]
    row["reward_components"] = list(record.reward_components.items())
    return row


def _record(row: dict[str, Any]) -> SampleRecord:
    for name in ("ids", "mask", "weight_versions", "pieces", *_FLOAT_COLUMNS):
        row[name] = None if row[name] is None else tuple(row[name])
    row["segments"] = tuple(Segment(**segment) for segment in row["segments"])
    row["calls"] = tuple(Call(**call) for call in row["calls"])
    row["reward_components"] = dict(row["reward_components"])
    return SampleRecord(**row)
