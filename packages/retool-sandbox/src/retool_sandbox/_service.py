"""The sandbox as an HTTP service: our own interface and SandboxFusion's /run_code."""

import asyncio
import base64
import binascii
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import prometheus_client as prometheus
from aiohttp import web

from ._errors import SandboxError
from ._fusion import fusion_limits, fusion_reply
from ._sandbox import Sandbox, Session
from ._types import Limits, RunResult
from ._wire import (
    BadRequestError,
    files_field,
    limits_from_json,
    policy_from_json,
    text_field,
)

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """How a service treats its clients."""

    token: str | None = None
    """Bearer token; None leaves the door open, which is for loopback only."""
    max_queue: int = 256
    """Requests that may wait for a slot; one more is answered 429."""
    max_body_mib: int = 16
    read_timeout_s: float = 30.0
    """For the body of a request; a client slower than this is dropped."""
    session_idle_s: float = 900.0
    max_limits: Limits = field(
        default_factory=lambda: Limits(
            wall_time_s=300.0, cpu_time_s=300.0, memory_mib=8192, output_kib=4096, scratch_mib=1024,
            scratch_files=65536, processes=64, threads=512, open_files=1024,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.max_queue < 0:
            raise ValueError(f"max_queue must be >= 0, got {self.max_queue}")
        if self.session_idle_s <= 0:
            raise ValueError(f"session_idle_s must be > 0, got {self.session_idle_s}")


@dataclass(slots=True)
class _OpenSession:
    session: Session
    stack: AsyncExitStack
    used: float


class Service:
    """Serves one open Sandbox."""

    def __init__(self, sandbox: Sandbox, config: ServiceConfig, *, concurrency: int) -> None:
        self._sandbox = sandbox
        self._config = config
        self._room = concurrency + config.max_queue
        self._in_flight = 0
        self._stopping = False
        self._sessions: dict[str, _OpenSession] = {}
        self._registry = prometheus.CollectorRegistry()
        self._runs = prometheus.Counter(
            "retool_sandbox_runs", "Programs by outcome.", ["outcome"], registry=self._registry
        )
        self._refused = prometheus.Counter(
            "retool_sandbox_turned_away", "Requests answered 429 or 503.", registry=self._registry
        )
        self._seconds = prometheus.Histogram(
            "retool_sandbox_run_seconds", "Wall time of programs.", registry=self._registry
        )
        flight = prometheus.Gauge(
            "retool_sandbox_in_flight", "Requests running or waiting.", registry=self._registry
        )
        flight.set_function(lambda: self._in_flight)
        live = prometheus.Gauge(
            "retool_sandbox_sessions", "Open sessions.", registry=self._registry
        )
        live.set_function(lambda: len(self._sessions))

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(
            middlewares=[self._guard], client_max_size=self._config.max_body_mib << 20
        )
        app.router.add_post("/v1/run", self._on_run)
        app.router.add_post("/v1/sessions", self._on_open)
        app.router.add_post("/v1/sessions/{id}/run", self._on_turn)
        app.router.add_delete("/v1/sessions/{id}", self._on_close)
        app.router.add_post("/run_code", self._on_fusion)
        app.router.add_get("/healthz", self._on_health)
        app.router.add_get("/metrics", self._on_metrics)
        app.cleanup_ctx.append(self._expire_sessions)
        return app

    async def drain(self, deadline_s: float) -> None:
        """Turn new requests away and wait for those in flight."""
        self._stopping = True
        end = time.monotonic() + deadline_s
        while self._in_flight and time.monotonic() < end:  # noqa: ASYNC110  (with a deadline)
            await asyncio.sleep(0.02)

    # -- around every request ------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/healthz" and not self._may_enter(request):
            return _error(401, "send the token as 'Authorization: Bearer ...'")
        try:
            return await handler(request)
        except BadRequestError as error:
            return _error(400, str(error))
        except ValueError as error:  # a value the sandbox itself rejects, such as a file name
            return _error(400, str(error))
        except SandboxError as error:
            logger.error("%s %s: %s", request.method, request.path, error)
            return _error(500, f"the sandbox failed, the program was not judged: {error}")

    def _may_enter(self, request: web.Request) -> bool:
        if self._config.token is None:
            return True
        # Bytes that are no text arrive as lone surrogates.
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self._config.token}".encode())

    async def _read(self, request: web.Request) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._config.read_timeout_s):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body came too slowly") from None
        try:
            data: Any = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise BadRequestError("the body must be a JSON object")
        return cast(dict[str, Any], data)

    async def _limited(self, work: Callable[[], Awaitable[RunResult]]) -> RunResult:
        if self._stopping:
            self._refused.inc()
            raise web.HTTPServiceUnavailable(
                text=json.dumps({"error": "the service is stopping"}),
                content_type="application/json", headers={"Retry-After": "5"},
            )  # fmt: skip
        if self._in_flight >= self._room:
            self._refused.inc()
            text = f"{self._in_flight} requests are in flight already; nothing was started"
            raise web.HTTPTooManyRequests(
                text=json.dumps({"error": text}),
                content_type="application/json", headers={"Retry-After": "1"},
            )  # fmt: skip
        self._in_flight += 1
        try:
            result = await work()
        finally:
            self._in_flight -= 1
        self._runs.labels(result.outcome.value).inc()
        self._seconds.observe(result.wall_time_s)
        return result

    # -- our own interface ---------------------------------------------------------------------

    async def _on_run(self, request: web.Request) -> web.Response:
        data = await self._read(request)
        code, stdin = text_field(data, "code"), text_field(data, "stdin", "")
        files, limits, policy = files_field(data), self._limits(data), self._policy(data)
        seed = data.get("seed")
        if seed is not None and not isinstance(seed, int):
            raise BadRequestError("seed must be a whole number or null")
        result = await self._limited(
            lambda: self._sandbox.run(
                code, stdin=stdin, files=files, limits=limits, seed=seed, policy=policy
            )
        )
        return web.json_response(result.to_dict())

    async def _on_open(self, request: web.Request) -> web.Response:
        limits = self._limits(await self._read(request))
        stack = AsyncExitStack()
        session = await stack.enter_async_context(self._sandbox.session(limits=limits))
        # Unguessable: who knows the name may use the session.
        name = secrets.token_urlsafe(16)
        self._sessions[name] = _OpenSession(session, stack, time.monotonic())
        return web.json_response({"session_id": name})

    async def _on_turn(self, request: web.Request) -> web.Response:
        data = await self._read(request)
        opened = self._sessions.get(request.match_info["id"])
        if opened is None:
            return _error(404, "no such session; it was closed, or idle for too long")
        code, stdin = text_field(data, "code"), text_field(data, "stdin", "")
        files, policy = files_field(data), self._policy(data)
        limits = self._limits(data) if data.get("limits") is not None else None
        opened.used = float("inf")
        try:
            result = await self._limited(
                lambda: opened.session.run(
                    code, stdin=stdin, files=files, limits=limits, policy=policy
                )
            )
        finally:
            opened.used = time.monotonic()
        return web.json_response(result.to_dict())

    async def _on_close(self, request: web.Request) -> web.Response:
        opened = self._sessions.pop(request.match_info["id"], None)
        if opened is None:
            return _error(404, "no such session")
        await opened.stack.aclose()
        return web.json_response({})

    async def _expire_sessions(self, _: web.Application) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await asyncio.sleep(min(self._config.session_idle_s / 4, 30.0))
                oldest = time.monotonic() - self._config.session_idle_s
                for name in [n for n, opened in self._sessions.items() if opened.used < oldest]:
                    await self._sessions.pop(name).stack.aclose()

        task = asyncio.create_task(watch())
        yield
        task.cancel()
        for opened in self._sessions.values():
            await opened.stack.aclose()
        self._sessions.clear()

    def _limits(self, data: dict[str, Any]) -> Limits:
        return limits_from_json(data.get("limits"), self._sandbox.limits, self._config.max_limits)

    def _policy(self, data: dict[str, Any]) -> Any:
        return policy_from_json(data["policy"]) if "policy" in data else self._sandbox.policy

    # -- others --------------------------------------------------------------------------------

    async def _on_fusion(self, request: web.Request) -> web.Response:
        data = await self._read(request)
        language = data.get("language", "python")
        if language != "python":
            text = f"language {language!r} is not supported; this service runs python"
            return web.json_response(fusion_reply(None, text))
        if data.get("fetch_files"):
            raise BadRequestError("fetch_files is not supported; print what you need")
        code = text_field(data, "code")
        stdin = text_field({**data, "stdin": data.get("stdin") or ""}, "stdin")
        try:
            files = {
                name: base64.b64decode(text, validate=True)
                for name, text in files_field(data).items()
            }
        except binascii.Error:
            raise BadRequestError("files must hold base64 texts") from None
        limits = fusion_limits(data, self._sandbox.limits, self._config.max_limits)
        result = await self._limited(
            lambda: self._sandbox.run(code, stdin=stdin, files=files, limits=limits)
        )
        return web.json_response(fusion_reply(result, ""))

    async def _on_health(self, _: web.Request) -> web.Response:
        if self._stopping:
            return _error(503, "the service is stopping")
        return web.json_response(
            {"status": "ok", "level": self._sandbox.level.value, "in_flight": self._in_flight}
        )

    async def _on_metrics(self, _: web.Request) -> web.Response:
        text = prometheus.generate_latest(self._registry)
        return web.Response(body=text, headers={"Content-Type": prometheus.CONTENT_TYPE_LATEST})


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
