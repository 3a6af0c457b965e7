"""In parallel (`pytest -n 2 --dist loadgroup`) tests of one costly fixture share a worker."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    """A file is a group; a folder below tests/e2e is one: it shares a quickstart or a vLLM."""
    place = item.path.relative_to(ROOT)
    group = place.parent if place.is_relative_to("tests/e2e") else place
    item.add_marker(pytest.mark.xdist_group(str(group)))
