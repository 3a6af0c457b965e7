"""Where the shared cases are, and a clean end for the workers that a test started."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from retool_reward._grade import close_shared_pools


def _shared() -> Path:
    root = Path(__file__).resolve().parents[4]
    return Path(os.environ.get("RETOOL_SHARED", root / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = _shared()
    if not (folder / "cases").is_dir():
        pytest.skip(f"no shared cases at {folder}; set RETOOL_SHARED to their folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _workers_end() -> Iterator[None]:
    yield
    close_shared_pools()
