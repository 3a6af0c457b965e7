"""The embedded engine: continuous batching over the torch decoder, in a thread of this process.

A session keeps its row of the KV cache between turns, so that a tool's answer is appended and the
prompt is never computed twice. Rows that have much to read go through one wide pass; a straggler
reads along, a token a step, while the others generate.

The thread alone owns sessions, cache and weights. Others post it functions, which it calls between
two decode steps: no caller, and so no event loop, ever waits for a lock that a step holds, and a
weight update is never starved by the steps.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from retool_rollout import ContextOverflowError, EngineError, FinishReason, Generation, Sampling

from ._decoder import Decoder
from ._sampling import sample
from ._sessions import Expected, Request, Session, common_prefix, uniforms_of

# A wide pass pays for itself when many rows wait for it or when they have much to read.
_WIDE_PASS_SHARE = 0.25
_READ_ALONG_TOKENS = 24


class EmbeddedEngine:
    """An `Engine` of retool-rollout on this process's CPU."""

    def __init__(
        self,
        folder: Path,
        *,
        max_concurrency: int = 128,
        max_model_len: int = 512,
        num_threads: int | None = None,
        step_timeout_s: float = 120.0,
    ) -> None:
        """Load the weights of a Hugging Face folder and start the thread.

        Args:
            folder: The checkpoint.
            max_concurrency: Rows of the KV cache; further sessions wait.
            max_model_len: Tokens of one row.
            num_threads: Torch threads; None leaves torch's choice.
            step_timeout_s: In lock-step, how long a step waits for a session that does not come.
        """
        self._decoder = Decoder(folder, num_rows=max_concurrency, max_tokens=max_model_len)
        self._max_tokens = max_model_len
        self._num_threads = num_threads
        self._step_timeout_s = step_timeout_s
        self._weight_version = 0
        self._sessions: dict[str, Session] = {}
        self._free_rows = list(range(max_concurrency))[::-1]
        self._waiting: dict[str, Request] = {}
        self._expected: Expected | None = None
        self._closed = False
        self._error: Exception | None = None
        self._mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._posting = threading.Lock()
        self._has_ended = False
        self.num_sampled_tokens = 0
        self._thread = threading.Thread(target=self._run, name="embedded-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    # -- the Engine protocol -------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        """Continue the prompt; see `retool_rollout.Engine`.

        Raises:
            ContextOverflowError: The prompt leaves no room for a token.
            EngineError: Stop strings (this engine has stop ids only), a second request of a session
                before its first has ended, or a broken engine.
        """
        if len(prompt_ids) >= self._max_tokens:
            raise ContextOverflowError(
                f"prompt of {len(prompt_ids)} tokens, engine.max_model_len is {self._max_tokens}"
            )
        if sampling.stop:
            raise EngineError(
                f"the embedded engine stops on token ids only, not on {sampling.stop!r}; "
                "use a tokenizer that has them as tokens, or engine.kind=vllm"
            )
        limit = min(sampling.max_tokens, self._max_tokens - len(prompt_ids))
        loop = asyncio.get_running_loop()
        request = Request(
            prompt_ids=list(prompt_ids),
            sampling=sampling,
            future=loop.create_future(),
            loop=loop,
            uniforms=uniforms_of(sampling.seed, len(prompt_ids), limit),
        )
        self._post(partial(self._submit, session_id, request))
        try:
            return await request.future
        finally:
            if not request.future.done() or request.future.cancelled():
                await self.release(session_id)

    def _submit(self, session_id: str, request: Request) -> None:
        session = self._sessions.get(session_id)
        if session_id in self._waiting or (session and session.request):
            failure = EngineError(f"session {session_id!r} already has a request under way")
            request.loop.call_soon_threadsafe(_fail, request.future, failure)
            return
        self._waiting[session_id] = request

    async def release(self, session_id: str) -> None:
        """Give a session's row back. An unknown session is fine: its request may not have begun."""
        self._post(partial(self._release, session_id), needed=False)

    def _release(self, session_id: str) -> None:
        self._waiting.pop(session_id, None)
        session = self._sessions.pop(session_id, None)
        if session:
            self._free_rows.append(session.row)
        if self._expected:
            self._expected.num_released += 1

    # -- weights -------------------------------------------------------------------------

    async def load(self, folder: Path, weight_version: int) -> None:
        """Replace the weights between two steps.

        Requests under way end with what they have (`FinishReason.ABORT`); the cache is forgotten,
        so that every later token is computed with the new weights alone.
        """
        loaded: Future[None] = Future()
        self._post(partial(self._load, folder, weight_version, loaded))
        await asyncio.wrap_future(loaded)

    def _load(self, folder: Path, weight_version: int, loaded: Future[None]) -> None:
        if not loaded.set_running_or_notify_cancel():
            return
        try:
            for session in self._sessions.values():
                session.cached_ids.clear()
                if session.request:
                    self._finish(session, FinishReason.ABORT)
            self._decoder.load(folder)
            self._weight_version = weight_version
        except Exception as error:  # noqa: BLE001 - the caller's, who decides what it means
            loaded.set_exception(error)
        else:
            loaded.set_result(None)

    @property
    def weight_version(self) -> int:
        """Of the weights that sample now."""
        return self._weight_version

    # -- lock-step -----------------------------------------------------------------------

    def lockstep(self, *, num_trajectories: int, concurrency: int) -> None:
        """Take each decode step only when every live trajectory waits for one.

        The batch is then a function of the seed alone, however long the tools take, and a run can
        be repeated to the last bit. It holds until `num_trajectories` sessions are released.

        Args:
            num_trajectories: How many sessions will come in all.
            concurrency: How many of them the caller keeps going at once, at most one for each row.
        """
        self._post(partial(self._expect, Expected(num_trajectories, concurrency)))

    def _expect(self, expected: Expected) -> None:
        self._expected = expected

    # -- the thread ----------------------------------------------------------------------

    def close(self) -> None:
        """End the thread; requests under way fail."""
        self._post(self._close, needed=False)
        self._thread.join(timeout=60)

    def _close(self) -> None:
        self._closed = True

    def _post(self, message: Callable[[], None], *, needed: bool = True) -> None:
        """Have the thread call a function between two steps.

        Raises:
            EngineError: The thread has ended and the message was needed.
        """
        with self._posting:  # held for an append only
            if not self._has_ended:
                self._mailbox.put(message)
                return
        if not needed:
            return
        if self._error:
            raise EngineError(f"the embedded engine broke: {self._error!r}") from self._error
        raise EngineError("the embedded engine is closed")

    def _run(self) -> None:
        if self._num_threads:
            torch.set_num_threads(self._num_threads)
        try:
            while self._wait_for_work():
                self._admit()
                self._step()
        except Exception as error:  # noqa: BLE001 - handed to every caller, now and later
            self._error = error
        with self._posting:
            self._has_ended = True
        self._take_mail()  # what was posted before the end is answered too
        reason = self._error or EngineError("the embedded engine was closed")
        requests = [s.request for s in self._sessions.values() if s.request]
        for request in [*requests, *self._waiting.values()]:
            failure = EngineError(f"the embedded engine stopped: {reason!r}")
            request.loop.call_soon_threadsafe(_fail, request.future, failure)

    def _take_mail(self) -> None:
        while not self._mailbox.empty():  # only this thread takes from it
            self._mailbox.get()()

    def _wait_for_work(self) -> bool:
        """Take mail until a step can be taken; False when closed."""
        while True:
            self._take_mail()
            if self._closed:
                return False
            num_active = sum(1 for session in self._sessions.values() if session.request)
            # A request that waits for a row, which only a release can give it, is not ready.
            admissible = sum(1 for name in self._waiting if name in self._sessions)
            new = len(self._waiting) - admissible
            num_ready = num_active + admissible + min(new, len(self._free_rows))
            num_missing = self._expected.num_missing(num_ready) if self._expected else 0
            if num_ready and num_missing <= 0:
                return True
            try:
                message = self._mailbox.get(timeout=self._step_timeout_s if num_ready else None)
            except queue.Empty:
                raise TimeoutError(
                    f"lock-step waited {self._step_timeout_s:g} s for {num_missing} trajectories; "
                    "a tool or a caller hangs"
                ) from None
            message()

    def _admit(self) -> None:
        """Give waiting requests their session's row, or a free one, in the order of session ids."""
        for session_id in sorted(self._waiting):
            session = self._sessions.get(session_id)
            if session is None:
                if not self._free_rows:
                    continue
                # The lowest free row keeps live rows together at the front of the cache.
                self._free_rows.sort(reverse=True)
                session = Session(session_id, self._free_rows.pop())
                self._sessions[session_id] = session
            request = self._waiting.pop(session_id)
            shared = common_prefix(session.cached_ids, request.prompt_ids)
            # At least one token is computed again: its logits are where sampling starts.
            del session.cached_ids[min(shared, len(request.prompt_ids) - 1) :]
            session.request = request

    def _step(self) -> None:
        """One forward pass, and a token for every row that has read its prompt."""
        self._close_gaps()
        active = sorted(
            (s for s in self._sessions.values() if s.request), key=lambda session: session.row
        )
        pending = {session.session_id: session.pending() for session in active}
        readers = [s for s in active if len(pending[s.session_id]) > 1]
        longest = max(len(pending[s.session_id]) for s in active)
        wide = len(readers) >= _WIDE_PASS_SHARE * len(active) or longest > _READ_ALONG_TOKENS
        if readers and wide:
            logits_BV = self._read(readers, [pending[s.session_id] for s in readers])
            batch = readers
        else:
            logits_BV = self._forward(active, [pending[s.session_id][:1] for s in active])
            batch = [s for s in active if len(pending[s.session_id]) == 1]
            keep = [index for index, s in enumerate(active) if len(pending[s.session_id]) == 1]
            logits_BV = logits_BV[keep]
        if batch:
            self._sample(batch, logits_BV)

    def _close_gaps(self) -> None:
        """Move the last sessions into the rows that ended ones left.

        Rows 0 to n-1 are read in place. Others are gathered into a copy at every layer of every
        step, which doubles its time (128 rows of 100 tokens: 10 ms become 20).
        """
        ordered = sorted(self._sessions.values(), key=lambda session: session.row)
        num_rows = len(ordered)
        gaps = sorted(row for row in self._free_rows if row < num_rows)
        for gap in gaps:
            session = ordered.pop()
            self._decoder.copy_row(session.row, gap, len(session.cached_ids))
            self._free_rows.remove(gap)
            self._free_rows.append(session.row)
            session.row = gap

    def _read(self, sessions: list[Session], tokens: list[list[int]]) -> torch.Tensor:
        """A wide pass; the prompt that the new sessions of a group share is computed once."""
        unique: list[int] = []
        sources: list[int] = []
        seen: dict[tuple[int, ...], int] = {}
        for index, (session, row) in enumerate(zip(sessions, tokens, strict=True)):
            source = None if session.cached_ids else seen.setdefault(tuple(row), len(unique))
            if source is None or source == len(unique):
                source = len(unique)
                unique.append(index)
            sources.append(source)
        logits_UV = self._forward([sessions[i] for i in unique], [tokens[i] for i in unique])
        for session, source in zip(sessions, sources, strict=True):
            original = sessions[unique[source]]
            if session is not original:
                num_tokens = len(original.cached_ids)
                self._decoder.copy_row(original.row, session.row, num_tokens)
                session.cached_ids.extend(original.cached_ids)
        return logits_UV[sources]

    def _forward(self, sessions: list[Session], tokens: list[list[int]]) -> torch.Tensor:
        width = max(len(row) for row in tokens)
        ids_BC = torch.tensor([row + [0] * (width - len(row)) for row in tokens])
        start_B = torch.tensor([len(session.cached_ids) for session in sessions])
        last_B = torch.tensor([len(row) - 1 for row in tokens])
        rows = [session.row for session in sessions]
        in_order = rows == list(range(len(rows)))
        logits_BV = self._decoder.forward(
            ids_BC, start_B, last_B, None if in_order else torch.tensor(rows)
        )
        for session, row in zip(sessions, tokens, strict=True):
            session.cached_ids.extend(row)
        return logits_BV

    def _sample(self, sessions: list[Session], logits_BV: torch.Tensor) -> None:
        requests = [session.request for session in sessions]
        chosen = sample(
            logits_BV,
            [request.sampling for request in requests if request],
            [float(request.uniforms[len(request.ids)]) for request in requests if request],
        )
        for session, (token, logprob) in zip(sessions, chosen, strict=True):
            request = session.request
            assert request is not None
            request.ids.append(token)
            request.logprobs.append(logprob)
            if token in request.sampling.stop_token_ids:
                self._finish(session, FinishReason.STOP)
            elif len(request.ids) == len(request.uniforms):
                self._finish(session, FinishReason.LENGTH)
        self.num_sampled_tokens += len(sessions)

    def _finish(self, session: Session, reason: FinishReason) -> None:
        request = session.request
        assert request is not None
        session.request = None
        generation = Generation(
            ids=tuple(request.ids),
            logprobs=tuple(request.logprobs),
            finish=reason,
            weight_version=self._weight_version,
        )
        request.loop.call_soon_threadsafe(_succeed, request.future, generation)


def _succeed(future: asyncio.Future[Generation], generation: Generation) -> None:
    if not future.done():
        future.set_result(generation)


def _fail(future: asyncio.Future[Generation], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
