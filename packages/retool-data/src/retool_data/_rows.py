"""Read rows of a file, a folder or the Hugging Face hub, one at a time, with their numbers."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic_core import from_json

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_FILE = re.compile(r"\.(?:jsonl?|ndjson|parquet|csv|txt|gz|zst)$", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"  # Windows programs begin a file with it


class Row(NamedTuple):
    """One row as it stands in the source."""

    number: int
    """Line of a JSONL file or row of a table, from 1."""
    value: dict[str, Any]
    digest: bytes = b""
    """Of the line, where `read_rows` was given `is_copy`."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read, with its reason."""

    source: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}:{self.number}: {self.reason}"


class BadRowError(ValueError):
    """A row could not be read, and nobody asked to go on without it."""

    def __init__(self, row: BadRow) -> None:
        super().__init__(str(row))
        self.row = row


def source_name(source: str | Path) -> str:
    """Name that provenance carries: the hub id, or the file's name without its folders."""
    text = str(source)
    return Path(text).name if Path(text).exists() else text


def digest(data: bytes) -> bytes:
    """Hash what must be told apart from millions of others, in 16 bytes."""
    return hashlib.sha256(data).digest()[:16]


def read_rows(
    source: str | Path,
    *,
    split: str = "train",
    config: str | None = None,
    is_copy: Callable[[bytes], bool] | None = None,
) -> Iterator[Row | BadRow]:
    """Yield the rows of a source, in order, without holding them.

    Args:
        source: A `.jsonl`, `.json` or `.parquet` file; a folder that `datasets` can load; or a hub
            id such as `JoeYing/ReTool-SFT` or `owner/name@revision`.
        split: Split of a folder or hub data set.
        config: Configuration of a hub data set.
        is_copy: Asked with the digest of each line of a JSONL file; a copy is left out unparsed.

    Raises:
        FileNotFoundError: There is no such file, and it does not look like a hub id.
        ValueError: The file's kind is not known.
    """
    path = Path(source)
    if path.is_file():
        suffix = path.suffix.lower()
        if suffix in (".jsonl", ".ndjson"):
            yield from _read_jsonl(path, is_copy)
        elif suffix == ".json":
            yield from _read_json(path)
        elif suffix == ".parquet":
            yield from _read_parquet(path)
        else:
            raise ValueError(f"{path.name}: expected .jsonl, .json or .parquet, got {suffix!r}")
    elif path.is_dir() or (HUB_ID.fullmatch(str(source)) and not _FILE.search(str(source))):
        yield from _read_dataset(str(source), split, config)
    else:
        raise FileNotFoundError(
            f"no file {str(source)!r}, and it is not a Hugging Face id such as owner/name@revision"
        )


def number_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Number rows that are already in memory or come from a `datasets` object."""
    for number, row in enumerate(rows, 1):
        yield Row(number, dict(row))


def _read_jsonl(path: Path, is_copy: Callable[[bytes], bool] | None) -> Iterator[Row | BadRow]:
    # Only \n ends a line: a JSON string may hold U+2028, at which str.splitlines would cut.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            key = b""
            if is_copy is not None and is_copy(key := digest(line)):
                continue
            if line.isspace():
                continue
            try:
                text = line.removeprefix(_BOM) if number == 1 else line
                value = from_json(text, cache_strings="keys")  # values repeat too seldom
            except ValueError as error:
                yield BadRow(path.name, number, f"not JSON: {error}")
                continue
            yield _checked(path.name, number, value, key)


_LINES = "a file with a row on each line is named .jsonl"


def _read_json(path: Path) -> Iterator[Row | BadRow]:
    try:
        value: object = from_json(path.read_bytes().removeprefix(_BOM))
    except ValueError as error:
        raise ValueError(f"{path.name}: not one JSON list of rows: {error}; {_LINES}") from None
    if not isinstance(value, list):
        raise ValueError(f"{path.name}: a .json file must hold a list of rows; {_LINES}")
    for number, row in enumerate(cast("list[object]", value), 1):
        yield _checked(path.name, number, row)


def _checked(name: str, number: int, value: object, key: bytes = b"") -> Row | BadRow:
    if isinstance(value, dict):
        return Row(number, cast("dict[str, Any]", value), key)
    return BadRow(name, number, f"a row must be a JSON object, got {type(value).__name__}")


def _read_parquet(path: Path) -> Iterator[Row]:
    parquet = import_module("pyarrow.parquet")
    number = 0
    # Without pre_buffer, which reads the whole file ahead; in small batches, because one row of a
    # trajectory may hold 100 kB of text.
    with parquet.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=512):
            for row in batch.to_pylist():
                number += 1
                yield Row(number, row)


def _read_dataset(source: str, split: str, config: str | None) -> Iterator[Row]:
    load_dataset = import_module("datasets").load_dataset
    name, revision = source, None
    if not Path(source).is_dir() and "@" in source:
        name, revision = source.split("@", 1)
    data = load_dataset(name, config, split=split, revision=revision, streaming=True)
    yield from number_rows(data)
