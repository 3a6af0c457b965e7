"""The interface of Sandbox, on one or several services."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ._errors import QueueFull, RunLost, SandboxError
from ._policy import Policy
from ._types import Level, Limits, RunResult
from ._wire import limits_to_json, result_from_json

if TYPE_CHECKING:
    import aiohttp

COOL_DOWN_S = 2.0
ANSWER_GRACE_S = 60.0  # a run may wait in the service's queue


@dataclass(slots=True, eq=False)
class _Host:
    url: str
    in_flight: int = 0
    closed_until: float = 0.0


class _NeverStartedError(Exception):
    """The service did not take the request: another try is safe."""


class RemoteSandbox:
    """Runs programs on services started with `retool-sandbox serve`.

    A request that never started (no connection, queue full, service stopping) is tried again, on
    another host where there is one. One that may have started is never repeated: it raises RunLost.

    Args:
        urls: One address, or several to balance over; the host with the fewest requests is next.
        token: The services' bearer token.
        limits: Ceilings sent with every run that brings none; None leaves them to the service.
        retry_s: How long to go on trying what never started.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        limits: Limits | None = None,
        retry_s: float = 60.0,
    ) -> None:
        names = [urls] if isinstance(urls, str) else list(urls)
        if not names:
            raise ValueError("RemoteSandbox needs at least one url")
        self._hosts = [_Host(name.rstrip("/")) for name in names]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._limits = limits
        self._retry_s = retry_s
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp  # 0.3 s, which only its users should wait for

        self._client = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, connect=10.0),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def level(self) -> Level:
        """The isolation of the first service that answers."""
        _, reply = await self.send("GET", "/healthz", None, 10.0)
        return Level(reply["level"])

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        policy: Policy | None = None,
    ) -> RunResult:
        """Run one program; see Sandbox.run.

        Raises:
            QueueFull: No service had room for retry_s seconds.
            RunLost: The connection broke after the request was sent.
        """
        limits = limits or self._limits
        body = _body(code, stdin, files, limits, policy)
        if seed is not None:
            body["seed"] = seed
        _, reply = await self.send("POST", "/v1/run", body, _deadline_s(limits))
        return result_from_json(reply)

    @asynccontextmanager
    async def session(
        self, *, limits: Limits | None = None
    ) -> AsyncGenerator["RemoteSession", None]:
        """Open an interpreter whose variables persist; it stays on one host."""
        limits = limits or self._limits
        body = {"limits": limits_to_json(limits)} if limits else {}
        host, reply = await self.send("POST", "/v1/sessions", body, 60.0)
        session = RemoteSession(self, host, reply["session_id"], limits)
        try:
            yield session
        finally:
            await session.close()

    # -- requests ------------------------------------------------------------------------------

    async def send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        deadline_s: float,
        host: _Host | None = None,
    ) -> tuple[_Host, dict[str, Any]]:
        """Send a request, again and elsewhere as long as it never started."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._retry_s
        wait_s = 0.05
        while True:
            chosen = host or self._next_host(loop.time())
            chosen.in_flight += 1
            try:
                return chosen, await self.send_once(chosen, method, path, body, deadline_s)
            except _NeverStartedError as error:
                chosen.closed_until = loop.time() + COOL_DOWN_S
                if loop.time() + wait_s > end:
                    raise QueueFull(f"no service took the request: {error}") from None
            except RunLost:
                # It may be dying, and take another request with it: the next one goes elsewhere.
                chosen.closed_until = loop.time() + COOL_DOWN_S
                raise
            finally:
                chosen.in_flight -= 1
            # With several hosts the next try goes elsewhere at once; jitter spreads the rest.
            if host is not None or all(h.closed_until > loop.time() for h in self._hosts):
                await asyncio.sleep(wait_s * (0.5 + random.random()))
                wait_s = min(wait_s * 2, 2.0)

    def _next_host(self, now: float) -> _Host:
        open_hosts = [host for host in self._hosts if host.closed_until <= now] or self._hosts
        return min(open_hosts, key=lambda host: (host.in_flight, random.random()))

    async def send_once(
        self, host: _Host, method: str, path: str, body: dict[str, Any] | None, deadline_s: float
    ) -> dict[str, Any]:
        """Send a request to one host, once."""
        import aiohttp

        if self._client is None:
            raise SandboxError("open it first: `async with RemoteSandbox(...) as sandbox`")
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._client.request(method, host.url + path, json=body) as response,
            ):
                text = await response.text()
                status = response.status
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _NeverStartedError(f"{host.url}: {error}") from None
        except TimeoutError:
            raise RunLost(f"{host.url} gave no answer for {deadline_s:g} s") from None
        except aiohttp.ClientError as error:
            raise RunLost(f"{host.url} broke off: {error}; the run may have started") from None
        if status in (429, 503):
            raise _NeverStartedError(f"{host.url} answered {status}")
        try:
            reply = json.loads(text)
        except ValueError:
            raise SandboxError(f"{host.url} answered {status} and no JSON: {text[:200]}") from None
        if status == 400:
            raise ValueError(reply.get("error"))
        if status != 200:
            raise SandboxError(f"{host.url} answered {status}: {reply.get('error')}")
        return reply


class RemoteSession:
    """One interpreter on a service."""

    def __init__(
        self, sandbox: RemoteSandbox, host: _Host, session_id: str, limits: Limits | None
    ) -> None:
        self._sandbox = sandbox
        self._host = host
        self._path = f"/v1/sessions/{session_id}"
        self._limits = limits

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> RunResult:
        """Run one turn; see Session.run."""
        body = _body(code, stdin, files, limits, policy)
        deadline_s = _deadline_s(limits or self._limits)
        _, reply = await self._sandbox.send(
            "POST", f"{self._path}/run", body, deadline_s, self._host
        )
        return result_from_json(reply)

    async def close(self) -> None:
        """End it on the service; a service that is gone has ended it already."""
        try:
            await self._sandbox.send_once(self._host, "DELETE", self._path, None, 10.0)
        except (SandboxError, _NeverStartedError):
            return


def _body(
    code: str,
    stdin: str,
    files: Mapping[str, str] | None,
    limits: Limits | None,
    policy: Policy | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {"code": code, "stdin": stdin}
    if files:
        body["files"] = dict(files)
    if limits is not None:
        body["limits"] = limits_to_json(limits)
    if policy is not None:
        body["policy"] = policy.to_config()
    return body


def _deadline_s(limits: Limits | None) -> float:
    return (limits.wall_time_s if limits else 300.0) + ANSWER_GRACE_S
