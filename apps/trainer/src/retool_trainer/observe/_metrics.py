"""Append one JSON object per step to `metrics.jsonl`, safe against being killed at any moment."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ._keys import metric_pattern

# Waiting for a busy disk at every step can take as long as a small model's step.
_SYNC_PERIOD_S = 5.0

# An evaluation belongs to the stage whose weights it measures.
_STAGE_ORDER = {"baseline": 0, "sft": 1, "rl": 2}


class Metrics:
    """The open `metrics.jsonl` of a run.

    `append` hands a line to the system in one write, so a SIGKILL loses at most the line that was
    being written; opening the file again removes such a torn line. Of a machine that loses its
    power, a few seconds may be missing.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; create it, or repair its last line."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:
                _replace(path, whole)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._synced_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def append(
        self, stage: str, step: int, values: Mapping[str, float | None], *, of: str | None = None
    ) -> None:
        """Write one line.

        Args:
            stage: `sft`, `rl` or `evaluate`.
            step: From 1. An evaluation has the number of the step that it follows, 0 before any.
            values: Metrics by key; anything that float() takes. Not finite or None becomes null.
            of: `evaluate` only: `baseline`, `sft` or `rl`.

        Raises:
            ValueError: A key that the table does not have, or an unknown stage.
        """
        if (of if stage == "evaluate" else stage) not in _STAGE_ORDER or (
            (of is None) == (stage == "evaluate")
        ):
            raise ValueError(
                f"a line's stage is sft or rl, or evaluate with of=baseline, sft or rl; "
                f"got {stage!r} with of={of!r}"
            )
        line: dict[str, Any] = {"stage": stage, "step": int(step)}
        if of is not None:
            line["of"] = of
        for key, value in values.items():
            if metric_pattern(key) is None:
                raise ValueError(
                    f"metric {key!r} is not in the table of metrics; use a key of "
                    "retool_trainer.observe.METRIC_KEYS or add one there"
                )
            line[key] = _number(value)
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(f"{self._path}: wrote {written} of {len(data)} bytes; is the disk full?")
        if time.monotonic() - self._synced_at > _SYNC_PERIOD_S:
            os.fsync(self._fd)
            self._synced_at = time.monotonic()

    def forget_after(self, stage: str, step: int) -> int:
        """Remove what was logged after a checkpoint, so that a resumed run logs it once.

        Args:
            stage: The stage of the checkpoint: `baseline` (nothing trained yet), `sft` or `rl`.
            step: Its last finished step. Lines of later steps and stages go; so do evaluations of
                later steps and stages.

        Returns:
            How many lines were removed.
        """
        lines = self._path.read_bytes().splitlines(keepends=True)
        limit = (_STAGE_ORDER[stage], step)
        kept = [line for line in lines if _position(json.loads(line)) <= limit]
        if len(kept) < len(lines):
            os.close(self._fd)
            _replace(self._path, b"".join(kept))
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        return len(lines) - len(kept)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `metrics.jsonl`, in order; a torn last line is left out.

    A step that was logged twice (an evaluation repeated after a resume) counts once: the last.
    """
    latest: dict[tuple[str, str | None, int], dict[str, Any]] = {}
    with path.open("rb") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            line = json.loads(raw)
            identity = (line["stage"], line.get("of"), line["step"])
            latest.pop(identity, None)
            latest[identity] = line
    return list(latest.values())


def _position(line: Mapping[str, Any]) -> tuple[int, int]:
    return _STAGE_ORDER[line.get("of") or line["stage"]], line["step"]


def _number(value: float | None) -> float | int | None:
    if value is None:
        return None
    if isinstance(value, int):  # bool and int keep their form
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
