"""Read samples and packs back from the files that `tokenize` and `pack` wrote."""

from collections.abc import Iterator
from pathlib import Path

from ._rows import BadRow, BadRowError, read_rows
from ._samples import Pack, TokenSample


def load_samples(path: str | Path) -> Iterator[TokenSample]:
    """Read a `.jsonl` or `.parquet` file of token samples.

    Raises:
        BadRowError: A line is not JSON.
        ValueError: A row is no sample.
    """
    for row in read_rows(path):
        if isinstance(row, BadRow):
            raise BadRowError(row)
        yield TokenSample.model_validate(row.value)


def load_packs(path: str | Path) -> Iterator[Pack]:
    """Read a `.jsonl` or `.parquet` file of packs.

    Raises:
        BadRowError: A line is not JSON.
        ValueError: A row is no pack.
    """
    for row in read_rows(path):
        if isinstance(row, BadRow):
            raise BadRowError(row)
        yield Pack.model_validate(row.value)
