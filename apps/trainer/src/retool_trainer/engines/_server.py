"""One vLLM server as a supervised process: start, wait until healthy, tell why it died, end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from retool_trainer import direct_http
from retool_trainer.errors import RunFailedError

_POLL_S = 0.5
_LOG_TAIL_LINES = 15
_END_TIMEOUT_S = 30.0


class EngineServerError(RunFailedError):
    """The server did not start or has died; the message ends with its last words."""


class VllmServer:
    """A server process. It ends with this process, however this process ends."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        url: str,
        environment: Mapping[str, str],
        log_file: Path,
    ) -> None:
        """Start the process; `wait_until_healthy` says when it serves."""
        self.url = url
        self._log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "retool_trainer.engines._guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    @property
    def process_id(self) -> int:
        """Of the guard that runs the server."""
        return self._process.pid

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Poll `/health`.

        Raises:
            EngineServerError: The process ended, or the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.healthy():
            if self._process.poll() is not None:
                raise EngineServerError(
                    f"the vLLM server ended with code {self._process.returncode} before it served"
                    f"{self._last_words()}"
                )
            if time.monotonic() > deadline_s:
                self.close()
                raise EngineServerError(
                    f"the vLLM server was not healthy after {timeout_s:g} s "
                    f"(engine.start_timeout_s){self._last_words()}"
                )
            time.sleep(_POLL_S)

    def healthy(self) -> bool:
        """The process lives and answers."""
        if self._process.poll() is not None:
            return False
        try:
            with direct_http.opener.open(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def post(self, path: str, timeout_s: float) -> None:
        """POST to the server, e.g. /sleep; its development calls answer with nothing.

        Raises:
            OSError: It refused or could not be reached.
        """
        request = urllib.request.Request(self.url + path, data=b"", method="POST")
        with direct_http.opener.open(request, timeout=timeout_s) as response:
            response.read()

    def close(self) -> None:
        """End the server and everything that it started."""
        if self._process.stdin:
            self._process.stdin.close()  # the guard takes this as our end
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_TIMEOUT_S)

    def _last_words(self) -> str:
        lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"    {line}" for line in lines[-_LOG_TAIL_LINES:])
        return f"; its log {self._log_file} ends with\n{tail}"
