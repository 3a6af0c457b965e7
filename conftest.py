"""In parallel (`pytest -n 2`) tests that share a costly fixture share a worker."""

from pathlib import PurePosixPath
from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole files; a folder below tests/e2e whole, for it shares a quickstart or a vLLM.

    xdist's own `--dist loadgroup` changes the ids of tests, which pytest 9.2 no longer lets it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SharedFixtures(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = PurePosixPath(nodeid.partition("::")[0])
            return str(file.parent if file.is_relative_to("tests/e2e") else file)

    return SharedFixtures(config, log)
