"""Write rows to a JSONL or Parquet file that appears whole or not at all."""

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_core import to_json

from ._records import Record
from ._schemas import LAYOUTS, layout_of, refuse_lost_keys, schema

_ROWS_PER_GROUP = 2000  # about 20 MB of ReTool rows in memory at once


def write_rows(path: str | Path, rows: Iterable[Record | dict[str, Any]]) -> int:
    """Write rows as they come, and rename the file into place at the end.

    Args:
        path: Ends in `.jsonl` or `.parquet`. A file that is there is replaced.
        rows: Records, or rows that `convert` made.

    Returns:
        How many rows were written.

    Raises:
        ValueError: The ending is not known, or a row does not fit a Parquet layout without loss.
    """
    target = Path(path)
    check_target(target)
    with replacing(target) as temporary:
        return _WRITERS[target.suffix](temporary, rows)


def check_target(target: Path) -> None:
    """Refuse a file that `write_rows` cannot write.

    Raises:
        ValueError: The ending is not known.
    """
    if target.suffix not in _WRITERS:
        raise ValueError(f"{target.name}: write to a .jsonl or .parquet file")


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """Give a temporary name beside `target`; rename it at the end, remove it on an error.

    A device or a pipe is written to as it is: a rename would put a file in its place. A link stays
    a link, and the file that it names is replaced.
    """
    target = target.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    temporary = target.with_name(f".{target.name}.{uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_jsonl(path: Path, rows: Iterable[Record | dict[str, Any]]) -> int:
    count = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(to_json(row) + b"\n")
            count += 1
        file.flush()
        if path.is_file():  # a pipe cannot be synced
            os.fsync(file.fileno())
    return count


def _write_parquet(path: Path, rows: Iterable[Record | dict[str, Any]]) -> int:
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    count = 0
    group: list[dict[str, Any]] = []
    writer: Any = None
    layout: dict[str, Any] = {}
    arrow = None
    try:
        for item in rows:
            row = item.model_dump(mode="json") if isinstance(item, Record) else item
            if arrow is None:
                name = layout_of(row)
                layout = {key: kind for key, kind in LAYOUTS[name].items() if key in row}
                full = schema(name)
                arrow = pa.schema([full.field(key) for key in layout])
                writer = parquet.ParquetWriter(path, arrow, compression="zstd")
            refuse_lost_keys(row, layout, "row")
            group.append(row)
            count += 1
            if len(group) == _ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_pylist(group, schema=arrow))
                group.clear()
        if writer is None:
            writer = parquet.ParquetWriter(path, schema("problem"))
        if group:
            writer.write_table(pa.Table.from_pylist(group, schema=arrow))
    finally:
        if writer is not None:
            writer.close()
    return count


_WRITERS = {".jsonl": _write_jsonl, ".parquet": _write_parquet}
