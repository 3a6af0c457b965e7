"""Carry a whole record beside the columns of another framework, so that nothing is lost there."""

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json, to_json

from ._records import Problem, Trajectory

COLUMN = "retool_record"
"""Column that holds the record as JSON. Frameworks read the columns they know and skip it."""


def embed(row: dict[str, Any], record: Problem | Trajectory) -> dict[str, Any]:
    """Add the record, and a digest of the columns it goes with, to a framework's row."""
    text = record.model_dump_json(exclude_defaults=True)
    return {**row, COLUMN: f'{{"columns":"{_digest(row)}","record":{text}}}'}


def read_own(row: Mapping[str, Any]) -> Problem | Trajectory | None:
    """Read our own rows: a record as it is, or one embedded in a framework's row.

    An embedded record counts only while the other columns are those it was written with: a row that
    somebody edited is read by its visible columns.

    Raises:
        ValueError: The row has our columns, but they form no record.
    """
    text: object = row.get(COLUMN)
    if isinstance(text, str):
        held: dict[str, Any] = from_json(text)
        if held["columns"] != _digest({k: v for k, v in row.items() if k != COLUMN}):
            return None
        return _validated(held["record"])
    if ("segments" in row and "problem" in row) or ("statement" in row and "problem_id" in row):
        return _validated(row)
    return None


def _validated(fields: Mapping[str, Any]) -> Problem | Trajectory:
    if "segments" in fields:
        return Trajectory.model_validate(fields)
    return Problem.model_validate(fields)


def _digest(row: Mapping[str, Any]) -> str:
    # Without nulls: Parquet pads the keys that a row does not have.
    return hashlib.sha256(to_json(without_nulls(row))).hexdigest()[:16]


def without_nulls(value: Any) -> Any:
    """Drop the keys that hold null, at every depth."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: without_nulls(item) for key, item in items if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in cast("list[Any]", value)]
    return value
