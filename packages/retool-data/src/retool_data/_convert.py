"""Convert records to a dialect or another framework's rows, and prove that each comes back."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._embed import embed
from ._records import Problem, Trajectory
from ._rows import BadRow, BadRowError
from ._schemas import LAYOUTS, layout_of, refuse_lost_keys
from ._shapes import Where, recognise
from ._write import TARGETS, difference


class RoundTripError(ValueError):
    """A row would come back different from what was written."""


def convert(
    records: Iterable[Problem | Trajectory],
    to: str,
    *,
    plain: bool = False,
    check: bool = True,
    parquet: bool = False,
    on_bad_row: Callable[[BadRow], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Write records as rows of another layout.

    Args:
        records: Read lazily.
        to: `records`, `retool`, `hermes`, `slime` (or `vime`), `verl` or `trl`.
        plain: Only the framework's own columns. Otherwise a column `retool_record` carries what
            those cannot hold (source, marks, exact white space), and reading the row gives the
            record back unchanged.
        check: Read every row back and compare; costs about as much as writing.
        parquet: The rows go to a Parquet file: one that its layout cannot hold cannot be written.
        on_bad_row: Called for a record that cannot be written; without it the first one raises.

    Raises:
        ValueError: There is no such target.
        BadRowError: A record cannot be written and there is no `on_bad_row`.
    """
    if to not in TARGETS:
        raise ValueError(f"cannot convert to {to!r}; choose one of {', '.join(TARGETS)}")
    write = TARGETS[to]
    for record in records:
        provenance = (record if isinstance(record, Problem) else record.problem).provenance
        try:
            row = write(record)
            if check and to != "records":
                check_row(record, row)
            if parquet:
                refuse_lost_keys(row, LAYOUTS[layout_of(row)], "row")
        except ValueError as error:
            bad = BadRow(provenance.source, provenance.row, " ".join(str(error).split()))
            if on_bad_row is None:
                raise BadRowError(bad) from error
            on_bad_row(bad)
            continue
        yield row if plain or to == "records" else embed(row, record)


def check_row(record: Problem | Trajectory, row: dict[str, Any]) -> None:
    """Read a written row by its visible columns and compare.

    Raises:
        RoundTripError: The row says something else than the record.
    """
    try:
        back = recognise(row).read(row, Where("round trip", 1))
        lost = difference(record, back)
    except ValueError as error:
        lost = str(error)
    if lost is not None:
        raise RoundTripError(f"{lost} when the row was read back")
