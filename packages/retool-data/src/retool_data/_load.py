"""Read any known file, folder or hub data set into records, one at a time."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from ._embed import read_own
from ._records import Problem, Trajectory
from ._rows import BadRow, BadRowError, Row, digest, number_rows, read_rows, source_name
from ._shapes import UnknownShapeError, Where, recognise, shape_named


@dataclass(slots=True, kw_only=True)
class LoadCounts:
    """What `load` saw; filled while iterating."""

    rows: int = 0
    """Rows read, bad ones included."""
    records: int = 0
    bad: int = 0
    repeated: int = 0
    """Rows left out by `unique=True`."""
    shapes: Counter[str] = field(default_factory=Counter[str])


def load(
    source: str | Path | Iterable[Mapping[str, Any]],
    *,
    columns: Mapping[str, str] | None = None,
    shape: str | None = None,
    split: str = "train",
    config: str | None = None,
    unique: bool = False,
    on_bad_row: Callable[[BadRow], None] | None = None,
    counts: LoadCounts | None = None,
) -> Iterator[Problem | Trajectory]:
    """Read a source into records, one at a time.

    Args:
        source: A file, folder or hub id (see `read_rows`), or rows, for example of a `datasets`
            object.
        columns: Wanted name to the source's name, `{"prompt": "question"}`; renamed before the
            shape is recognised.
        shape: Name of a shape, to skip recognition.
        split: Split of a folder or hub data set.
        config: Configuration of a hub data set.
        unique: Leave out rows whose prompt, or whose messages, occurred before, byte for byte,
            before they are read; DAPO-Math-17k holds every row a hundred times. Two digests are
            kept per distinct row: that of its line lets a JSONL file's copies go by unparsed.
        on_bad_row: Called for a row that cannot be read; without it the first one raises.
        counts: Filled while iterating.

    Raises:
        BadRowError: A row cannot be read and there is no `on_bad_row`.
        UnknownShapeError: The first row fits no shape.
    """
    seen = counts if counts is not None else LoadCounts()
    lines, contents = set[bytes](), set[bytes]()

    def is_copy(line: bytes) -> bool:
        if line not in lines:
            return False
        seen.rows += 1
        seen.repeated += 1
        return True

    if isinstance(source, str | Path):
        name = source_name(source)
        rows = read_rows(source, split=split, config=config, is_copy=is_copy if unique else None)
    else:
        name, rows = "memory", number_rows(source)
    given = shape_named(shape) if shape is not None else None
    for row in rows:
        seen.rows += 1
        current, content = given, b""
        try:
            if isinstance(row, BadRow):
                raise BadRowError(row)
            record = read_own(row.value)
            if record is None:
                value = _renamed(row.value, columns) if columns else row.value
                current = given or recognise(value)
                if unique:
                    content = _digest([value[column] for column in current.columns])
                    if content in contents:
                        seen.repeated += 1
                        continue
                record = current.read(value, Where(name, row.number))
        except UnknownShapeError:
            if seen.records == 0:
                raise
            _bad(row, name, "the columns changed and fit no shape", seen, on_bad_row)
            continue
        except (BadRowError, KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, BadRowError):
                reason = error.row.reason
            else:
                said = f"no column {error}" if isinstance(error, KeyError) else str(error)
                reason = f"does not read as {current.name if current else 'a record'}: {said}"
            _bad(row, name, reason, seen, on_bad_row)
            continue
        if content:  # a row that does not read keeps no later one out
            lines.add(row.digest)
            contents.add(content)
        seen.records += 1
        problem = record if isinstance(record, Problem) else record.problem
        seen.shapes[problem.provenance.shape or "record"] += 1
        yield record


def load_problems(
    source: str | Path | Iterable[Mapping[str, Any]], **options: Any
) -> Iterator[Problem]:
    """`load`, keeping the problem of every record; options as for `load`."""
    for record in load(source, **options):
        yield record if isinstance(record, Problem) else record.problem


def load_trajectories(
    source: str | Path | Iterable[Mapping[str, Any]], **options: Any
) -> Iterator[Trajectory]:
    """`load`, for a source of trajectories; options as for `load`.

    Raises:
        ValueError: A row is a problem without a trajectory.
    """
    for record in load(source, **options):
        if isinstance(record, Problem):
            raise ValueError(
                f"{record.provenance.source}:{record.provenance.row} is a problem without a "
                f"trajectory (shape {record.provenance.shape}); this step needs SFT rows"
            )
        yield record


def _bad(
    row: Row | BadRow,
    name: str,
    reason: str,
    seen: LoadCounts,
    on_bad_row: Callable[[BadRow], None] | None,
) -> None:
    seen.bad += 1
    bad = BadRow(name, row.number, " ".join(reason.split()))
    if on_bad_row is None:
        raise BadRowError(bad)
    on_bad_row(bad)


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    missing = sorted(source for source in columns.values() if source not in row)
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; the row has {', '.join(row)}")
    taken = set(columns.values())
    kept = {key: value for key, value in row.items() if key not in taken and key not in columns}
    return {**{wanted: row[source] for wanted, source in columns.items()}, **kept}


def _digest(content: list[Any]) -> bytes:
    try:
        return digest(to_json(content))
    except ValueError:  # a lone surrogate
        return digest(json.dumps(content).encode())
