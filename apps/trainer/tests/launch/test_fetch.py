"""`fetch` against a stand-in of the hub: resumes, pins, verifies, and helps where there is none."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[4]
# The client writes chunks of 10 MiB; less than one is not worth a resume to it.
WEIGHTS = os.urandom(12 * 2**20)


class Hub(ThreadingHTTPServer):
    """Two repositories; `main` can move, and a download can break off once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = {"config.json": b'{"a": 1}\n', "model.safetensors": WEIGHTS}
        self.data = {"data/train.jsonl": b'{"q": 1}\n', "README.md": b"# data\n"}
        self.commit = "a" * 40
        self.break_at: int | None = None
        self.damage = False
        self.gone = False
        self.ranges: list[str] = []
        self.downloads: list[str] = []
        self.asked = threading.Event()
        self.stuck = threading.Event()  # while it is clear, nothing is answered
        self.stuck.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.server
        path = urlsplit(self.path).path.strip("/")
        hub.asked.set()
        hub.stuck.wait(100)
        if hub.gone:
            self._error(503, "")
        elif path.startswith("api/"):
            parts = path.split("/")[1:6]
            if len(parts) < 5:  # the client's own questions, none of a repository
                self._error(404, "")
                return
            kind, owner, name, call, revision = parts
            if (owner, name) not in {("me", "model"), ("me", "data")}:
                self._error(404, "RepoNotFound")
            elif revision not in {"main", hub.commit, "b" * 40, "a" * 40}:
                self._error(404, "RevisionNotFound")
            else:
                commit = hub.commit if revision == "main" else revision
                files = hub.data if kind == "datasets" else hub.model
                if call == "tree":
                    self._tree(files)
                else:
                    self._info(f"{owner}/{name}", commit, files)
        else:
            self._file(path, body=body)

    def _info(self, repo: str, commit: str, files: dict[str, bytes]) -> None:
        siblings = []
        for name, content in files.items():
            entry: dict[str, object] = {
                "rfilename": name,
                "size": len(content),
                "blobId": _git_blob(content),
            }
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        self._send(json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode())

    def _tree(self, files: dict[str, bytes]) -> None:
        entries = []
        for name, content in files.items():
            entry: dict[str, object] = {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": _git_blob(content),
            }
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        self._send(json.dumps(entries).encode())

    def _file(self, path: str, *, body: bool) -> None:
        hub = self.server
        repo, _, rest = path.partition("/resolve/")
        commit, _, name = rest.partition("/")
        content = (hub.data if repo.startswith("datasets/") else hub.model)[name]
        etag = (
            hashlib.sha256(content).hexdigest()
            if name.endswith(".safetensors")
            else _git_blob(content)
        )
        if hub.damage and name.endswith(".safetensors"):
            content = b"x" + content[1:]
        start = 0
        wanted = self.headers.get("Range")
        if wanted and body:
            hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        if body:
            hub.downloads.append(name)
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return
        stop = len(content)
        if hub.break_at is not None and name.endswith(".safetensors"):
            stop, hub.break_at = hub.break_at, None
            self.close_connection = True
        self.wfile.write(content[start:stop])

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _error(self, code: int, word: str) -> None:
        self.send_response(code)
        if word:
            self.send_header("X-Error-Code", word)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def _config(folder: Path, **changes: str) -> Path:
    model = {"repo": "me/model", "folder": "models/m"} | changes
    data = {"repo": "me/data", "kind": "dataset", "folder": "data/d", "include": ["data/*"]}
    data["include"] = [model.pop("include", "data/*")]
    tree = {"model": {"path": "models/m"}, "rl": {"problems": "p"}, "stages": ["rl"]}
    file = folder / "run.yaml"
    file.write_text(json.dumps(tree | {"fetch": [model, data]}))
    return file


def _fetch(folder: Path, endpoint: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "apps" / "trainer"),
            "fetch",
            "--config",
            str(_config(folder, **changes)),
        ],
        cwd=folder,
        env={
            **os.environ,
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DOWNLOAD_TIMEOUT": "5",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_broken_download_resumes_is_verified_and_pinned(hub: Hub, tmp_path: Path) -> None:
    hub.break_at = 11 * 2**20
    first = _fetch(tmp_path, hub.url)
    assert first.returncode == 0, first.stdout + first.stderr
    assert (tmp_path / "models/m/model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges, "the second half was not asked for by range"
    assert not (tmp_path / "data/d/README.md").exists()  # not in `include`
    assert f"me/model at {'a' * 12}: 2 files in models/m, verified" in first.stdout

    # The branch moves; what was fetched stays at its commit, and is not fetched again.
    hub.commit = "b" * 40
    hub.downloads.clear()
    second = _fetch(tmp_path, hub.url)
    assert second.returncode == 0
    assert f"me/model at {'a' * 12}" in second.stdout
    assert hub.downloads == []

    # A damaged file is found and fetched again, at the pinned commit.
    weights = tmp_path / "models/m/model.safetensors"
    weights.write_bytes(b"y" + WEIGHTS[1:])
    third = _fetch(tmp_path, hub.url)
    assert third.returncode == 0, third.stdout + third.stderr
    assert "model.safetensors missing or damaged" in third.stdout
    assert weights.read_bytes() == WEIGHTS

    # Everything is there: no hub is needed.
    hub.gone = True
    assert _fetch(tmp_path, hub.url).returncode == 0


def test_files_that_are_wanted_besides_are_fetched(hub: Hub, tmp_path: Path) -> None:
    assert _fetch(tmp_path, hub.url).returncode == 0
    assert not (tmp_path / "data/d/README.md").exists()
    assert _fetch(tmp_path, hub.url, include="*").returncode == 0
    assert (tmp_path / "data/d/README.md").exists()


def test_a_name_that_no_repository_can_have_is_one_line(hub: Hub, tmp_path: Path) -> None:
    result = _fetch(tmp_path, hub.url, repo="no repository!")
    assert result.returncode == 1
    assert "FAIL  fetch.repo 'no repository!'" in result.stdout
    assert "Traceback" not in result.stderr


def test_ctrl_c_says_how_to_go_on(hub: Hub, tmp_path: Path) -> None:
    hub.stuck.clear()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "apps/trainer"), "fetch", "--config", str(_config(tmp_path))],
        cwd=tmp_path,
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As in a terminal, also where the tests themselves run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert hub.asked.wait(60)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        hub.stuck.set()
        process.kill()
    assert process.returncode == 130, err
    assert "the same command goes on" in out
    assert "Traceback" not in err


def test_content_that_is_not_the_hubs_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.damage = True
    result = _fetch(tmp_path, hub.url)
    assert result.returncode == 1
    assert "model.safetensors differ from the hub's hashes" in result.stdout
    assert not (tmp_path / "models/m/.retool-fetch.json").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"repo": "me/absent"}, "there is no model me/absent"),
        ({"revision": "v9"}, "has no revision 'v9'"),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    hub: Hub, tmp_path: Path, changes: dict[str, str], expected: str
) -> None:
    result = _fetch(tmp_path, hub.url, **changes)
    assert result.returncode == 1
    assert expected in result.stdout
    assert "data/d, verified" in result.stdout  # the other one was fetched


def test_without_a_network_the_exact_commands_are_printed(tmp_path: Path) -> None:
    result = _fetch(tmp_path, "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "hf download me/model --revision main --local-dir models/m" in result.stdout
    assert (
        "hf download me/data --repo-type dataset --revision main --local-dir data/d "
        "--include 'data/*'"
    ) in result.stdout
    assert str(tmp_path) in result.stdout
