"""The same sandbox for code without an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from ._errors import SandboxError
from ._policy import Policy
from ._sandbox import Sandbox, Session
from ._types import Level, Limits, RunResult

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for callers that have none."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        if threading.current_thread() is self._thread:
            work.close()
            raise SandboxError("a synchronous call from its own event loop would wait for itself")
        result = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return result.result()
        except BaseException:
            result.cancel()  # of a caller that was interrupted nobody waits for the program
            raise

    def stop(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)


class SyncSandbox:
    """A context manager around Sandbox with the same arguments; threads may share it."""

    def __init__(self, **arguments: Any) -> None:
        self._sandbox = Sandbox(**arguments)
        self._thread: LoopThread | None = None

    @property
    def level(self) -> Level:
        """The isolation that programs run at."""
        return self._sandbox.level

    def __enter__(self) -> Self:
        self._thread = LoopThread("retool-sandbox")
        try:
            self._thread.run(self._sandbox.__aenter__())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self._sandbox.__aexit__())
            finally:
                thread.stop()

    def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        policy: Policy | None = None,
    ) -> RunResult:
        """Run one program; see Sandbox.run."""
        return self._call(
            self._sandbox.run(
                code, stdin=stdin, files=files, limits=limits, seed=seed, policy=policy
            )
        )

    @contextmanager
    def session(self, *, limits: Limits | None = None) -> Generator["SyncSession", None, None]:
        """Open an interpreter whose variables persist; see Sandbox.session."""
        opened = self._sandbox.session(limits=limits)
        session = self._call(opened.__aenter__())
        try:
            yield SyncSession(session, self._call)
        finally:
            self._call(opened.__aexit__(None, None, None))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise SandboxError("the sandbox is not open; use `with SyncSandbox() as sandbox`")
        return self._thread.run(work)


class SyncSession:
    """One interpreter of its own, without an event loop."""

    def __init__(
        self,
        session: Session,
        call: Callable[[Coroutine[Any, Any, RunResult]], RunResult],
    ) -> None:
        self._session = session
        self._call = call

    def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> RunResult:
        """Run one turn; see Session.run."""
        return self._call(
            self._session.run(code, stdin=stdin, files=files, limits=limits, policy=policy)
        )
