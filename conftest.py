"""In parallel (`pytest -n 2`) tests that share a costly fixture share a worker, or its result."""

from pathlib import PurePosixPath
from typing import Any

import pytest

TRAINER = PurePosixPath("tests/e2e/trainer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what begins with the quickstart's model last: by then the first file has made it."""

    def begins_with_its_model(item: pytest.Item) -> bool:
        file = _file(item.nodeid)
        return file.parent == TRAINER and file.name != "test_quickstart.py"

    items.sort(key=begins_with_its_model)


def _file(nodeid: str) -> PurePosixPath:
    return PurePosixPath(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files; those of tests/e2e together, for they share a vLLM.

    xdist's own `--dist loadgroup` changes the ids of tests, which pytest 9.2 no longer lets it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SharedFixtures(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file(nodeid)
            return str(file.parent if file.parent == TRAINER.parent else file)

    return SharedFixtures(config, log)
