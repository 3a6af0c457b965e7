"""Trajectories as JSON: one object a line, read back exactly."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ._trajectory import CallRecord, Status, StopReason, Trajectory, TurnRecord


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A JSON object that `trajectory_from_dict` reads back."""
    return asdict(trajectory)


def trajectory_from_dict(value: Mapping[str, Any]) -> Trajectory:
    """Rebuild a trajectory, for instance to resume it in another process.

    Raises:
        KeyError: A field is missing.
        ValueError: A status is unknown, or lengths differ.
    """
    fields = {name: value[name] for name in Trajectory.__dataclass_fields__}
    for name in ("ids", "mask", "logprobs", "weight_versions"):
        fields[name] = tuple(fields[name])
    fields["status"], fields["stop_reason"] = (
        Status(fields["status"]),
        StopReason(fields["stop_reason"]),
    )
    fields["turns"] = tuple(_turn(turn) for turn in fields["turns"])
    return Trajectory(**fields)


def _turn(value: Mapping[str, Any]) -> TurnRecord:
    fields = dict(value)
    fields["calls"] = tuple(CallRecord(**call) for call in fields["calls"])
    return TurnRecord(**fields)


def read_jsonl(path: Path, *, torn_end: bool = False) -> Iterator[dict[str, Any]]:
    """Read JSON objects, one a line.

    Args:
        path: The file.
        torn_end: Ignore a last line that was cut off, as a killed writer leaves it.

    Raises:
        ValueError: A line is no JSON object; the message names it.
    """
    # Bytes, because a cut can go through the middle of a character.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip() or (torn_end and not line.endswith(b"\n")):
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if not isinstance(value, dict):
                raise ValueError(
                    f"{path}, line {number}: a JSON object is needed, got {value!r:.60}"
                )
            yield cast("dict[str, Any]", value)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step, so that nobody ever reads half of it."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
