"""What a fork that fails leaves behind."""

# ruff: noqa: PTH208

import os
import select
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from retool_sandbox._guest._cgroups import NoSlots
from retool_sandbox._guest._nursery import Nursery


def test_failed_fork_ends_the_init_that_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    init = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    forgotten: list[int] = []
    jail: Any = SimpleNamespace(
        profile=lambda limits: limits,
        prepare_child=lambda serial: None,
        new_pid_namespace=lambda stacks: (init.pid, None),
        abandon_pid_namespace=lambda: None,
        forget=forgotten.append,
    )

    def no_fork() -> int:
        raise BlockingIOError("no process can be had")

    with select.epoll() as epoll:
        nursery = Nursery(jail, NoSlots(), epoll, 0, {})
        open_files = set(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(os, "fork", no_fork)
        with pytest.raises(BlockingIOError):
            nursery.take({}, session=True)
        assert set(os.listdir("/proc/self/fd")) == open_files
    assert init.wait(20) == -9
    assert forgotten == [1]
