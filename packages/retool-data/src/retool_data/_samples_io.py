"""Read samples and packs back from the files that `tokenize` and `pack` wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ._records import Record
from ._rows import BadRow, BadRowError, read_rows
from ._samples import Pack, TokenSample

R = TypeVar("R", bound=Record)


def load_samples(path: str | Path) -> Iterator[TokenSample]:
    """Read a `.jsonl` or `.parquet` file of token samples.

    Raises:
        BadRowError: A line is not JSON, or no sample.
    """
    return _load(path, TokenSample, "token sample; `tokenize` writes them")


def load_packs(path: str | Path) -> Iterator[Pack]:
    """Read a `.jsonl` or `.parquet` file of packs.

    Raises:
        BadRowError: A line is not JSON, or no pack.
    """
    return _load(path, Pack, "pack; `pack` writes them")


def _load(path: str | Path, kind: type[R], what: str) -> Iterator[R]:
    for row in read_rows(path):
        if isinstance(row, BadRow):
            raise BadRowError(row)
        try:
            yield kind.model_validate(row.value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            reason = f"no {what} ({where}: {first['msg']})"
            raise BadRowError(BadRow(Path(path).name, row.number, reason)) from None
