"""The HTTP service and its client, as a real process on loopback."""

# ruff: noqa: SIM117

import asyncio
import base64
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from retool_sandbox import (
    Limits,
    Outcome,
    Policy,
    QueueFull,
    RemoteSandbox,
    RunLost,
    SandboxError,
    code_interpreter,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN = "open-sesame"


class Running:
    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url


@asynccontextmanager
async def service(*extra: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from retool_sandbox._cli import main; sys.exit(main())",
        "serve", "--tier", "stdlib", "--port", "0", "--concurrency", "2", *extra,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "RETOOL_SANDBOX_TOKEN": TOKEN},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 200)
        assert b"http://" in line
        yield Running(process, line.decode().split()[-1])
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 200)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with service("--max-queue", "300") as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def remote(running: Running) -> AsyncIterator[RemoteSandbox]:
    async with RemoteSandbox(running.url, token=TOKEN) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def http(running: Running) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(running.url, headers=headers) as client:
        yield client


async def post(http: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def test_remote_sandbox_has_the_interface_of_a_local_one(remote: RemoteSandbox) -> None:
    result = await remote.run("print(input())\n6 * 7", stdin="hello", files={"a": "b"}, seed=1)
    assert (result.stdout, result.value) == ("hello\n42\n", "42")
    late = await remote.run("while True: pass", limits=Limits(wall_time_s=0.3))
    assert late.outcome is Outcome.TIMED_OUT
    refused = await remote.run("import os", policy=Policy.strict())
    assert refused.outcome is Outcome.REFUSED
    assert (await remote.level()).value == result.isolation
    async with remote.session() as session:
        await session.run("x = 20")
        assert (await session.run("x + 1")).value == "21"
    tools = code_interpreter(remote)
    assert (await tools.execute("code_interpreter", {"code": "2 + 2"})).text == "4"


async def test_fusion_clients_are_served(http: aiohttp.ClientSession) -> None:
    files = {"data.txt": base64.b64encode(b"hi").decode()}
    status, reply = await post(
        http, "/run_code", code="print(open('data.txt').read(), input())", language="python",
        compile_timeout=10, run_timeout=10.0, memory_limit_MB=1024, stdin="there", files=files,
        fetch_files=[],
    )  # fmt: skip
    assert status == 200
    assert reply["status"] == "Success"
    run = reply["run_result"]
    assert (run["status"], run["return_code"], run["stdout"]) == ("Finished", 0, "hi there\n")
    _, late = await post(http, "/run_code", code="while True: pass", run_timeout=0.3)
    assert late["status"] == "Failed"
    assert late["run_result"]["status"] == "TimeLimitExceeded"
    _, broken = await post(http, "/run_code", code="1 / 0")
    assert broken["status"] == "Failed"
    assert broken["run_result"]["return_code"] == 1
    assert "ZeroDivisionError" in broken["run_result"]["stderr"]
    _, other = await post(http, "/run_code", code="int main(){}", language="cpp")
    assert other["status"] == "SandboxError"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "'code' must be a text"),
        ({"code": 1}, "'code' must be a text"),
        ({"code": "1", "limits": {"wall": 1}}, "unknown limits"),
        ({"code": "1", "limits": {"wall_time_s": -1}}, "wall_time_s"),
        ({"code": "1", "limits": {"wall_time_s": 1e6}}, "more than this service allows"),
        ({"code": "1", "files": {"../x": "y"}}, "relative path"),
        ({"code": "1", "files": ["x"]}, "files must be"),
        ({"code": "1", "policy": "lax"}, "policy must be"),
        ({"code": "1", "seed": "x"}, "seed must be"),
    ],
)
async def test_bad_requests_are_told_why(
    http: aiohttp.ClientSession, body: dict[str, Any], words: str
) -> None:
    status, reply = await post(http, "/v1/run", **body)
    assert status == 400
    assert words in reply["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"[" * 100_000, b"\xff\xfe", b"null"])
async def test_any_body_gets_an_answer(http: aiohttp.ClientSession, body: bytes) -> None:
    async with http.post("/v1/run", data=body) as response:
        assert response.status == 400


async def test_token_is_needed_but_for_health(running: Running) -> None:
    async with aiohttp.ClientSession(running.url) as client:
        for path in ("/v1/run", "/run_code", "/v1/sessions"):
            async with client.post(path, json={"code": "1"}) as response:
                assert response.status == 401
        async with client.get("/healthz") as response:
            assert (await response.json())["status"] == "ok"
    async with RemoteSandbox(running.url, token="wrong") as wrong:
        with pytest.raises(SandboxError, match="401"):
            await wrong.run("1")


async def test_metrics_count_outcomes(http: aiohttp.ClientSession) -> None:
    await post(http, "/v1/run", code="1 / 0")
    async with http.get("/metrics") as response:
        text = await response.text()
    assert 'retool_sandbox_runs_total{outcome="failed"}' in text
    assert "retool_sandbox_run_seconds_bucket" in text


async def test_odd_numbers_and_headers_get_an_answer(
    running: Running, http: aiohttp.ClientSession
) -> None:
    body = b'{"code": "1", "memory_limit_MB": Infinity}'
    async with http.post("/run_code", data=body) as response:
        assert response.status == 400
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()


async def test_host_that_takes_no_connection_is_tried_again() -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # more than its backlog: the next one waits for ever
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with RemoteSandbox(url, retry_s=0.1) as remote:
            assert remote._client is not None
            remote._client._timeout = aiohttp.ClientTimeout(total=None, connect=0.3)
            with pytest.raises(QueueFull):
                await remote.run("1")


async def test_unknown_session_is_told(http: aiohttp.ClientSession) -> None:
    status, reply = await post(http, "/v1/sessions/nobody/run", code="1")
    assert status == 404
    assert "no such session" in reply["error"]


async def test_two_hundred_clients_with_a_slow_and_a_malicious_one(
    running: Running, remote: RemoteSandbox
) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    slow = socket.create_connection((host, int(port)))
    head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    slow.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())  # and never the rest
    malicious = socket.create_connection((host, int(port)))
    malicious.sendall(b"\x00\xffGET " + b"A" * 70_000)
    huge = socket.create_connection((host, int(port)))
    huge.sendall(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
    try:
        hostile = ["while True: pass", "import os\nos.kill(-1, 9)", "x = 'a' * 10**12"]
        limits = Limits(wall_time_s=20.0)
        short = Limits(wall_time_s=0.2)

        async def client(number: int) -> str:
            if number % 20 == 7:
                await remote.run(hostile[number % 3], limits=short)
                return f"{number}\n"
            return (await remote.run(f"print({number})", limits=limits)).stdout

        results = await asyncio.wait_for(asyncio.gather(*map(client, range(200))), 250)
        assert results == [f"{number}\n" for number in range(200)]
    finally:
        for sock in (slow, malicious, huge):
            sock.close()
    assert (await remote.run("1 + 1")).value == "2"


async def test_full_queue_is_answered_429_and_tried_again() -> None:
    async with service("--max-queue", "0") as small:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(small.url, headers=headers) as client:
            sleeper = "import time\ntime.sleep(1.5)"
            tasks = [asyncio.create_task(post(client, "/v1/run", code=sleeper)) for _ in range(2)]
            await asyncio.sleep(0.5)
            status, reply = await post(client, "/v1/run", code="1")
            assert status == 429
            assert "nothing was started" in reply["error"]
            async with RemoteSandbox(small.url, token=TOKEN, retry_s=0.2) as hasty:
                with pytest.raises(QueueFull):
                    await hasty.run("1")
            async with RemoteSandbox(small.url, token=TOKEN) as patient:
                assert (await patient.run("1")).value == "1"
            assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]


async def test_killed_service_loses_the_run_and_another_host_takes_the_next() -> None:
    async with service() as first, service() as second:
        async with RemoteSandbox([first.url, second.url], token=TOKEN) as remote:
            sleeper = "import time\ntime.sleep(30)"
            runs = [asyncio.create_task(remote.run(sleeper)) for _ in range(2)]
            await asyncio.sleep(1.0)
            first.process.kill()
            done, rest = await asyncio.wait(runs, timeout=20, return_when="FIRST_COMPLETED")
            assert [type(task.exception()) for task in done] == [RunLost]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for _ in range(4):
                assert (await remote.run("print('alive')")).stdout == "alive\n"


async def test_stop_is_graceful() -> None:
    async with service() as running:
        async with RemoteSandbox(running.url, token=TOKEN, retry_s=0.1) as remote:
            run = asyncio.create_task(remote.run("import time\ntime.sleep(1)\nprint('done')"))
            await asyncio.sleep(0.4)
            started = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            with pytest.raises((QueueFull, RunLost)):
                await remote.run("1")
            assert (await run).stdout == "done\n"
            assert await asyncio.wait_for(running.process.wait(), 30) == 0
            assert time.monotonic() - started < 30


async def test_open_door_is_for_loopback_only() -> None:
    environment = {**os.environ}
    environment.pop("RETOOL_SANDBOX_TOKEN", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from retool_sandbox._cli import main; sys.exit(main())",
        "serve", "--host", "0.0.0.0", "--port", "0",
        stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    _, text = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == 2
    assert b"set RETOOL_SANDBOX_TOKEN" in text
