"""Grade many answers without blocking the event loop."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar

from ._extract import extract
from ._grade import DEFAULT_CONFIG, decide_here, gold_text, grade_of_asked, grade_of_verdict
from ._own_text import own_text
from ._pool import Asked, GraderError, Pool
from ._types import Answer, Gold, Grade, GradeConfig, Reason
from ._vocabulary import BIG

logger = logging.getLogger(__name__)

# Other tasks get the loop back this often.
_SLICE_S = 0.005
# One item may hold the loop this long; what takes longer goes to a worker.
_ITEM_BUDGET_S = 0.01
_MAX_CACHED = 65_536
# A longer answer is a worker's matter: reading it would hold the loop.
_LONG_CHARS = 1_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Item:
    """An answer and its gold."""

    answer: Answer
    gold: Gold


class AsyncGrader:
    """Grade batches in order, with workers of its own for what is hard.

    Use it as an async context manager; after it no process, thread or socket is left. It may be
    used from the event loop of any thread, also from several at once, in a Ray actor or a
    notebook.

    Args:
        workers: Processes that answer hard questions. They start when first needed.
        config: How answers are read and compared, and a worker's time and memory.
    """

    def __init__(self, *, workers: int = 2, config: GradeConfig = DEFAULT_CONFIG) -> None:
        if not 1 <= workers <= 256:
            raise ValueError(f"workers must be in 1..256, got {workers!r}")
        self._config = config
        self._pool = Pool(workers, config.symbolic_memory_mib)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="retool-reward")
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Grade] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; a question in flight is aborted."""
        self._pool.close()  # first: a thread that waits for a worker sees it hang up
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def grade_many(
        self, items: Sequence[Item | tuple[Answer, Gold]], *, deadline_s: float = 60.0
    ) -> list[Grade]:
        """Grade every item, in order.

        Args:
            items: Answers with their golds.
            deadline_s: What is not decided by then is `aborted`, with `correct` None.

        Raises:
            ValueError: The deadline is not above 0.
        """
        if not deadline_s > 0:
            raise ValueError(f"deadline_s must be > 0, got {deadline_s!r}")
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        grades: list[Grade | None] = [None] * len(items)
        asked: dict[tuple[str, str], asyncio.Future[Grade]] = {}
        waiting: list[tuple[int, tuple[str, str]]] = []
        try:
            questions: list[tuple[int, str, str]] = []
            async for index, item in _in_slices(enumerate(items), end):
                answer, gold = (item.answer, item.gold) if isinstance(item, Item) else item
                started = time.perf_counter()
                pred = extract(own_text(answer), self._config)
                if pred is None:
                    grades[index] = _no_answer(started)
                else:
                    questions.append((index, pred, gold_text(gold)))
            # The workers start on what is theirs while this process does the rest.
            questions.sort(key=lambda question: _ease(question[1], question[2]))
            async for index, pred, gold in _in_slices(questions, end):
                found = self._decide(pred, gold)
                if isinstance(found, Grade):
                    grades[index] = found
                    continue
                if found not in asked:
                    asked[found] = loop.run_in_executor(self._threads, self._ask, *found)
                waiting.append((index, found))
            if asked:
                await asyncio.wait(asked.values(), timeout=max(0.0, end - loop.time()))
        finally:
            for future in asked.values():
                future.cancel()  # those that run end within a worker's time limit
        for index, key in waiting:
            if asked[key].done() and not asked[key].cancelled():
                grades[index] = asked[key].result()
        return [grade if grade is not None else _late() for grade in grades]

    def _decide(self, pred: str, gold: str) -> Grade | tuple[str, str]:
        """Grade an answer here and now, or return the question to ask a worker."""
        started = time.perf_counter()
        key = (pred, gold)
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
        if cached is not None:
            ms = (time.perf_counter() - started) * 1e3
            return replace(cached, path="cache", ms=ms)
        if self._config.symbolic and len(pred) > _LONG_CHARS:
            return key
        found = decide_here(pred, gold, self._config, budget_s=_ITEM_BUDGET_S)
        if found is not None:
            return self._kept(key, grade_of_verdict(found, pred, started))
        if not self._config.symbolic:
            ms = (time.perf_counter() - started) * 1e3
            return Grade(correct=False, pred=pred, reason=Reason.MISMATCH, path="value", ms=ms)
        return key

    def _ask(self, pred: str, gold: str) -> Grade:
        started = time.perf_counter()
        try:
            asked = self._pool.ask(
                pred,
                gold,
                decimal_places=self._config.decimal_places,
                time_s=self._config.symbolic_time_s,
            )
        except GraderError as error:
            logger.warning("an answer was not graded: %s", error)
            asked = Asked(verdict=None, reason=Reason.ABORTED)
        grade = grade_of_asked(asked, pred, started)
        return grade if grade.reason is Reason.ABORTED else self._kept((pred, gold), grade)

    def _kept(self, key: tuple[str, str], grade: Grade) -> Grade:
        with self._lock:
            self._cache[key] = grade
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        return grade


async def _in_slices(items: Iterable[_T], end: float) -> AsyncIterator[_T]:
    """Yield the items up to a time of the loop, and let other tasks run in between."""
    loop = asyncio.get_running_loop()
    slice_end = loop.time() + _SLICE_S
    for item in items:
        if loop.time() > slice_end:
            await asyncio.sleep(0)
            if loop.time() > end:
                return
            slice_end = loop.time() + _SLICE_S
        yield item


def _ease(pred: str, gold: str) -> int:
    """Return 0 for what may take a worker's whole time (sums, limits), 1 for its other work."""
    if any(name in pred or name in gold for name in BIG):
        return 0
    return 1 if len(pred) > _LONG_CHARS else 2


def _no_answer(started: float) -> Grade:
    ms = (time.perf_counter() - started) * 1e3
    return Grade(correct=False, pred=None, reason=Reason.NO_ANSWER, path="extract", ms=ms)


def _late() -> Grade:
    return Grade(correct=None, pred=None, reason=Reason.ABORTED, path="deadline", ms=0.0)
