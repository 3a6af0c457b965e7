"""One zygote process as its caller sees it: start, requests, answers, end."""

import asyncio
import logging
import os
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ._errors import IsolationUnavailable, RunLost, SandboxError
from ._frames import FrameError, FrameReader, pack, unpack

logger = logging.getLogger(__name__)

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 5.0

# Registers the package without running its __init__: the zygote needs none of the public API.
_BOOT = (
    "import sys,types;p=types.ModuleType('retool_sandbox');p.__path__=[sys.argv[1]];"
    "sys.modules['retool_sandbox']=p;"
    "from retool_sandbox._guest._boot import boot\n"
    "from retool_sandbox._guest._program import main\n"
    "r=boot(int(sys.argv[2]));del p,boot\n"
    "if r is not None: main(*r)\n"
)
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",  # the same program prints its sets in the same order every time
    "PYTHONUTF8": "1",
    "MPLBACKEND": "Agg",
    "MALLOC_ARENA_MAX": "2",  # an arena per thread would eat the address space of a run
    **{
        f"{name}_NUM_THREADS": "1"
        for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR", "GOTO")
    },
}

ENVIRONMENT_NAMES = frozenset({*_ENVIRONMENT, "TMPDIR", "LC_CTYPE"})

Answer = tuple[dict[str, Any], list[bytes]]


class Worker(asyncio.Protocol):
    """Talks to one zygote over a socket pair. Bound to the event loop that started it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._reader = FrameReader()
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._next_id = 0
        # What our own processes complain about; programs never hold it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        self.facts: dict[str, Any] = {}
        self.level = ""
        self.alive = False

    @property
    def num_pending(self) -> int:
        """Runs that wait for an answer."""
        return len(self._answers)

    @property
    def pid(self) -> int | None:
        """Pid of the process we started (the keeper)."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Exec the zygote and wait until it serves.

        Raises:
            IsolationUnavailable: It refused the isolation that was asked for.
            SandboxError: It did not start.
        """
        if platform.system() != "Linux":
            raise IsolationUnavailable(
                f"retool-sandbox needs Linux, this is {platform.system()}; run "
                "`retool-sandbox serve` in a Linux container and use RemoteSandbox"
            )
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            self._process = subprocess.Popen(  # noqa: ASYNC220  (vfork: back in a millisecond)
                [sys.executable, "-s", "-S", "-P", "-c", _BOOT,
                 str(Path(__file__).parent), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
                env=_ENVIRONMENT, cwd="/", pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise SandboxError(f"{sys.executable} did not start: {error}") from error
        finally:
            theirs.close()
        self._ready = loop.create_future()
        self._transport, _ = await loop.create_connection(lambda: self, sock=ours)
        self._transport.write(pack(self._config))
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                ready = await self._ready
        except TimeoutError:
            await self.stop()
            raise SandboxError(f"the zygote was not ready after {START_DEADLINE_S:g} s") from None
        except BaseException:
            await self.stop()
            raise
        self.level, self.facts = ready["level"], ready["facts"]
        self.alive = True

    async def ask(self, head: dict[str, Any], blobs: list[bytes], deadline_s: float) -> Answer:
        """Send one request and wait for its answer.

        Raises:
            RunLost: The zygote died first, or was stuck and had to be replaced.
            ValueError: The request is bigger than a frame.
        """
        if self._transport is None or not self.alive:
            raise RunLost("the zygote is gone; this run did not start")
        self._next_id += 1
        job_id = self._next_id
        try:
            frame = pack({**head, "id": job_id}, blobs)
        except FrameError as error:
            raise ValueError(f"code, stdin and files are too big: {error}") from None
        answer = asyncio.get_running_loop().create_future()
        self._answers[job_id] = answer
        self._transport.write(frame)
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            self.kill()
            raise RunLost(
                f"the zygote gave no answer for {deadline_s:g} s and was killed"
            ) from None
        except asyncio.CancelledError:
            self.send({"op": "cancel", "id": job_id})
            raise
        finally:
            self._answers.pop(job_id, None)

    def send(self, head: dict[str, Any]) -> None:
        """Send a request that has no answer."""
        if self._transport is not None and self.alive:
            self._transport.write(pack(head))

    def kill(self) -> None:
        """End it at once; runs in flight raise RunLost."""
        self.alive = False
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def stop(self) -> None:
        """Close the control socket and wait until the processes are gone."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()
        self._errors.close()
        process = self._process
        if process is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_DEADLINE_S
        wait_s = 0.001
        while process.poll() is None:
            if loop.time() > deadline:
                process.kill()
                deadline = loop.time() + STOP_DEADLINE_S
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, 0.05)

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take answers off the socket."""
        for body in self._reader.feed(data):
            head, blobs = unpack(body)
            op = head["op"]
            if op in ("ready", "broken", "refused"):
                self._on_start(head)
            else:
                answer = self._answers.get(head["id"])
                if answer is not None and not answer.done():
                    answer.set_result((head, blobs))

    def _on_start(self, head: dict[str, Any]) -> None:
        if self._ready is None or self._ready.done():
            logger.error("zygote %s: %s", self.pid, head.get("reason"))
        elif head["op"] == "ready":
            self._ready.set_result(head)
        elif head["op"] == "refused":
            self._ready.set_exception(IsolationUnavailable(head["reason"]))
        else:
            self._ready.set_exception(SandboxError(f"the zygote broke: {head['reason']}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The zygote is gone: nobody may wait for it any longer."""
        self.alive = False
        lost = RunLost("the zygote died; this run is lost, the next one starts a new zygote")
        if self._ready is not None and not self._ready.done():
            self._errors.seek(0)
            said = self._errors.read()[-2000:].decode("utf-8", "replace").strip()
            self._ready.set_exception(SandboxError(f"the zygote died while it started: {said}"))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(lost)


def library_path() -> list[str]:
    """The directories of this interpreter that hold installed packages."""
    found: list[str] = []
    for entry in sys.path:
        path = Path(entry)
        if path.name in ("site-packages", "dist-packages") and path.is_dir():
            found.append(os.fspath(path.resolve()))
    return found
