"""Engines behind HTTP: connections, retries, and a clear word about each refusal."""

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote

from ._engine import EngineError, Generation, Sampling
from ._replicas import Replicas

if TYPE_CHECKING:
    import aiohttp

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
CONTROL_TIMEOUT_S = 60.0
KEEP_ALIVE_S = 2.0
"""How long an idle connection is kept: less than the 5 s after which vLLM and SGLang (uvicorn)
close it, for a request that meets the closing is lost."""
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_SESSION_CHARS = 256


class HttpEngine(ABC):
    """Sampling over HTTP. Use it as `async with`, or call `close()`.

    A generation has no side effect, so a request that failed is simply sent again, to another
    replica if there is one.
    Control requests are sent once, each on a connection of its own: after an error nobody could
    say whether the server had acted on it.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        weight_version: int | None = None,
        attempts: int = 4,
        timeout_s: float = 900.0,
        connect_timeout_s: float = 10.0,
        api_key: str | None = None,
    ) -> None:
        """Configure; nothing is connected yet.

        Args:
            urls: One or more base URLs.
            weight_version: Label of the sampled tokens while the server does not tell its own.
                Change it after a weight sync.
            attempts: How often a generation is sent in all. The pauses between double from 0.25 s
                to 8 s.
            timeout_s: For one generation, from sending to the last byte.
            connect_timeout_s: For a connection.
            api_key: Sent as a bearer token.

        Raises:
            ValueError: A URL or number is out of range.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be >= 1, got {attempts!r}")
        if timeout_s <= 0 or connect_timeout_s <= 0:
            raise ValueError(f"timeouts must be > 0, got {timeout_s!r} and {connect_timeout_s!r}")
        self.replicas = Replicas([urls] if isinstance(urls, str) else urls)
        self.weight_version = weight_version
        self.retries = 0
        """Requests that were sent again, for metrics."""
        self._attempts = attempts
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        """Continue the prompt on the session's replica, or on another if that one fails.

        Raises:
            EngineConfigError: The server can never serve this (endpoint off, model unknown, key
                refused).
            ContextOverflowError: The prompt is longer than the server's context.
            EngineError: Refused for another reason, or every attempt failed.
        """
        # Made from a problem's name, it may hold a line break or be a whole page; its end tells
        # one session from another.
        name = quote(session_id, errors="replace")[-MAX_SESSION_CHARS:]
        path, body, headers = self._request(prompt_ids, sampling, name)
        data = json.dumps(body, separators=(",", ":")).encode()
        trouble = ""
        for attempt in range(self._attempts):
            if attempt:
                self.retries += 1
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1))
                # Half of the pause is random, so that 512 trajectories do not come back at once.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            with self.replicas.use(session_id) as replica:
                url, asked_of = replica.url, self.weight_version
                try:
                    status, text = await self._send(url + path, data, headers, self._timeout_s)
                    if status == 200:
                        # Across an update nobody here can say which weights sampled what.
                        known = asked_of == self.weight_version
                        generation = self._understood(text, asked_of if known else None)
                        self.replicas.worked(replica)
                        return generation
                    trouble = f"{url} answered {status}: {text[:500]}"
                    if status not in RETRIED_STATUSES:
                        raise self._refusal(url, status, text)
                except _Garbled as error:
                    trouble = f"{url} sent a broken answer: {error}"
                except _network_errors() as error:
                    trouble = f"{url}: {type(error).__name__}: {error}"
                except TimeoutError:
                    trouble = f"{url} did not answer within {self._timeout_s} s"
                self.replicas.failed(replica, session_id)
        raise EngineError(f"{self._attempts} attempts failed, the last: {trouble}")

    async def release(self, session_id: str) -> None:
        """Forget which replica the session was on."""
        self.replicas.forget(session_id)

    async def healthy(self) -> dict[str, bool]:
        """Ask each replica how it is."""
        answers = await asyncio.gather(*(self._is_healthy(url) for url in self.replicas.urls))
        return dict(zip(self.replicas.urls, answers, strict=True))

    async def wait_until_healthy(self, timeout_s: float, *, poll_s: float = 0.5) -> None:
        """Wait for every replica.

        Raises:
            EngineError: One of them did not become healthy in time.
        """
        state: dict[str, bool] = {}
        try:
            async with asyncio.timeout(timeout_s):
                state = await self.healthy()
                while not all(state.values()):
                    await asyncio.sleep(poll_s)
                    state = await self.healthy()
        except TimeoutError:
            missing = [url for url in self.replicas.urls if not state.get(url)]
            raise EngineError(f"not healthy after {timeout_s} s: {', '.join(missing)}") from None

    @asynccontextmanager
    async def paused(self, **options: Any) -> AsyncGenerator[None]:
        """Pause, then resume whatever happens: a forgotten resume hangs every later rollout."""
        try:
            # Inside: if one replica cannot be reached, the others are paused all the same.
            await self.pause(**options)
            yield
        finally:
            await self.resume()

    @abstractmethod
    async def pause(self) -> None:
        """Stop sampling on every replica."""

    @abstractmethod
    async def resume(self) -> None:
        """Sample again on every replica."""

    @abstractmethod
    def _request(
        self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str
    ) -> tuple[str, Mapping[str, Any], Mapping[str, str]]:
        """Path, body and headers of a generation."""

    @abstractmethod
    def _read(self, answer: Mapping[str, Any], weight_version: int | None) -> Generation:
        """Read the answer; what it raises for a broken one counts as a failed attempt."""

    @abstractmethod
    def _refusal(self, url: str, status: int, text: str) -> EngineError:
        """Say what a refusal means."""

    async def control(
        self,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        method: str = "POST",
        url: str | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a control request to each replica (or to one), once; it may take `timeout_s`.

        Returns:
            The JSON answer of each URL; an empty answer is `{}`.

        Raises:
            EngineError: A replica refused or could not be reached.
        """

        async def one(base: str) -> Any:
            data = None if body is None else json.dumps(body).encode()
            try:
                async with _new_client() as client:
                    status, text = await self._send(
                        base + path, data, {}, timeout_s, method=method, client=client
                    )
            except (*_network_errors(), TimeoutError) as error:
                raise EngineError(
                    f"{method} {base}{path}: {type(error).__name__}: {error}"
                ) from error
            if status != 200:
                raise EngineError(f"{method} {base}{path} answered {status}: {text[:500]}")
            try:
                return json.loads(text) if text.strip() else {}
            except ValueError:
                raise EngineError(
                    f"{method} {base}{path} answered no JSON: {text[:200]!r}"
                ) from None

        urls = self.replicas.urls if url is None else (url,)
        # Every replica is told before one failure is raised: half a fleet paused is worse
        # than none.
        answers = await asyncio.gather(*(one(base) for base in urls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(urls, answers, strict=True))

    def _understood(self, text: str, weight_version: int | None) -> Generation:
        try:
            return self._read(cast("dict[str, Any]", json.loads(text)), weight_version)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise _Garbled(f"{type(error).__name__}: {error} in {text[:200]!r}") from error

    async def _is_healthy(self, url: str) -> bool:
        try:
            status, _ = await self._send(f"{url}/health", None, {}, 5.0, method="GET")
        except (*_network_errors(), TimeoutError):
            return False
        return status == 200

    async def _send(
        self,
        url: str,
        data: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        method: str = "POST",
        client: "aiohttp.ClientSession | None" = None,
    ) -> tuple[int, str]:
        import aiohttp

        if client is None:
            if self._client is None:
                self._client = _new_client()
            client = self._client
        every = {"Content-Type": "application/json", **self._headers, **headers}
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_timeout_s)
        async with client.request(method, url, data=data, headers=every, timeout=timeout) as answer:
            return answer.status, await answer.text(errors="replace")


def _new_client() -> "aiohttp.ClientSession":
    import aiohttp  # here and not above: it takes half of the package's import time

    # No limit of its own: how much is in flight is decided by whoever runs the rollouts.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    )


def _network_errors() -> tuple[type[Exception], ...]:
    import aiohttp

    return (aiohttp.ClientError, ConnectionError)


class _Garbled(Exception):  # noqa: N818 - never leaves this file
    """The body of a 200 is not what the endpoint promises."""
