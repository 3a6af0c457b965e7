"""Paths that the launch tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def configs_folder() -> Path:
    """The shipped configurations."""
    return ROOT / "configs"


@pytest.fixture
def root_folder() -> Path:
    """The repository."""
    return ROOT
