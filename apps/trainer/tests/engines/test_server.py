"""A server process ends with whoever started it, however that ends, and tells why it failed."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from retool_trainer.engines import EngineServerError, VllmServer
from retool_trainer.weights import HttpReceiver

# Stands for a server with a worker of its own: both sleep, and the parent ignores nothing.
SERVER_CODE = (
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "time.sleep(600)"
)
SERVER = [sys.executable, "-c", SERVER_CODE]


def start_and_wait_for_tree(folder: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A process that starts a server; returns it and everything below it."""
    code = f"""
        import time
        from pathlib import Path
        from retool_trainer.engines import VllmServer
        server = VllmServer({SERVER!r}, url="http://127.0.0.1:9", environment={{}},
                            log_file=Path({str(folder / "log")!r}))
        time.sleep(600)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    deadline_s = time.monotonic() + 120
    tree: list[psutil.Process] = []
    while len(tree) < 3:  # guard, server, its worker
        tree = psutil.Process(owner.pid).children(recursive=True)
        assert time.monotonic() < deadline_s
        assert owner.poll() is None
        time.sleep(0.2)
    return owner, tree


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_when_the_owner_is_killed(tmp_path: Path, number: int) -> None:
    owner, tree = start_and_wait_for_tree(tmp_path)
    os.kill(owner.pid, number)
    owner.wait(30)
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert alive == []


def test_the_server_itself_ends_when_its_guard_is_killed(tmp_path: Path) -> None:
    owner, tree = start_and_wait_for_tree(tmp_path)
    os.kill(tree[0].pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(tree[1:2], timeout=30)
    for process in (*tree, psutil.Process(owner.pid)):
        if process.is_running():
            process.kill()
    owner.wait(30)
    assert alive == []


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = VllmServer(
        [sys.executable, "-c", "print('no such model: x'); raise SystemExit(3)"],
        url="http://127.0.0.1:9",
        environment={},
        log_file=tmp_path / "log",
    )
    with pytest.raises(EngineServerError, match=r"ended with code 3(.|\n)*no such model: x"):
        server.wait_until_healthy(60)
    server.close()


def test_a_server_that_never_serves_is_ended_at_its_deadline(tmp_path: Path) -> None:
    server = VllmServer(SERVER, url="http://127.0.0.1:9", environment={}, log_file=tmp_path / "log")
    with pytest.raises(EngineServerError, match="not healthy after 1 s"):
        server.wait_until_healthy(1)
    assert not psutil.pid_exists(server.process_id)


def test_servers_are_called_past_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.delenv("no_proxy", raising=False)
    web = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{web.server_port}"
    server = VllmServer(SERVER, url=url, environment={}, log_file=tmp_path / "log")
    try:
        assert server.healthy()
        server.post("/sleep", timeout_s=5)
        HttpReceiver(url=url).start_weight_update()
    finally:
        server.close()
        web.shutdown()
        web.server_close()
