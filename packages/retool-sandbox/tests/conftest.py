"""A host worth attacking, and sandboxes at each level."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from retool_sandbox import Limits, Sandbox

ROOT = Path(__file__).resolve().parents[3]
SHARED = Path(os.environ.get("RETOOL_SHARED", ROOT.parent / "shared"))
SECRET = "planted-secret-5f2c"


@dataclass
class Host:
    """What is planted on the host, and the proof that nobody touched it."""

    secret_file: Path
    writable_file: Path
    port: int
    listener: socket.socket
    abstract_name: str
    abstract: socket.socket
    sibling: subprocess.Popen[bytes]

    def check_untouched(self, *texts: str) -> None:
        for text in texts:
            assert SECRET not in text
        assert self.secret_file.read_text() == SECRET
        assert self.writable_file.read_text() == "as it was"
        for listener in (self.listener, self.abstract):
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert self.sibling.poll() is None


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    secret_file = folder / "secret.txt"
    secret_file.write_text(SECRET)
    writable_file = folder / "writable.txt"
    writable_file.write_text("as it was")
    writable_file.chmod(0o666)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    name = f"\0retool-{os.getpid()}"
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(name)
    abstract.listen()
    abstract.setblocking(False)
    sibling = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    os.environ["RETOOL_TEST_SECRET"] = SECRET
    yield Host(
        secret_file,
        writable_file,
        listener.getsockname()[1],
        listener,
        name,
        abstract,
        sibling,
    )
    del os.environ["RETOOL_TEST_SECRET"]
    sibling.kill()
    sibling.wait()
    listener.close()
    abstract.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["full", "landlock"])
async def jailed(host: Host, request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """The science tier at the full and at the unprivileged level; planted secrets come first."""
    limits = Limits(wall_time_s=2.0, memory_mib=256)
    async with Sandbox(
        tier="science", isolation=request.param, limits=limits, concurrency=2, spares=1
    ) as sandbox:
        yield sandbox


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.fixture
def family() -> "type[Family]":
    return Family


class Family:
    """The processes of a sandbox, as the host sees them."""

    def __init__(self, sandbox: Sandbox) -> None:
        worker = sandbox._worker
        assert worker is not None
        assert worker.pid is not None
        self.keeper = worker.pid
        (self.zygote,) = children_of(self.keeper)

    def children(self) -> list[int]:
        return children_of(self.zygote)


def read_cases(name: str) -> list[dict[str, object]]:
    path = SHARED / "cases" / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in ("hostile_case", "realistic_case"):
        if argument in metafunc.fixturenames:
            cases = read_cases(f"{argument}s.jsonl")
            reason = "shared/cases is absent; set RETOOL_SHARED"
            parameters = [pytest.param(case, id=str(case["id"])) for case in cases] or [
                pytest.param(None, marks=pytest.mark.skip(reason=reason))
            ]
            metafunc.parametrize(argument, parameters)
