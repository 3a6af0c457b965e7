"""The policy as the driver sees it, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retool_trainer.workers import PolicyGroup


def test_ranks_with_another_working_directory_get_whole_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[tuple[Any, ...]] = []
    group: Any = object.__new__(PolicyGroup)
    group._call = lambda *call: calls.append(call)
    for method in (group.export_hf, group.save, group.load):
        method(Path("runs/quickstart"))
    whole = tmp_path / "runs" / "quickstart"
    assert calls == [("export_hf", whole), ("save", whole), ("load", whole)]
