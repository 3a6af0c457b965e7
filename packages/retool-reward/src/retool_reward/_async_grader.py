"""Grade many answers without blocking the event loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ._grade import grade
from ._types import Answer, Gold, Grade, GradeConfig, Reason


@dataclass(frozen=True, slots=True)
class Item:
    """An answer and its gold."""

    answer: Answer
    gold: Gold


class AsyncGrader:
    """Grade batches; use as an async context manager."""

    def __init__(self, *, workers: int = 2, config: GradeConfig | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers!r}")
        self._config = config or GradeConfig()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def grade_many(
        self, items: Sequence[Item | tuple[Answer, Gold]], *, deadline_s: float = 60.0
    ) -> list[Grade]:
        """Grade every item, in order. What is not decided by the deadline is `aborted`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        grades: list[Grade] = []
        for item in items:
            answer, gold = (item.answer, item.gold) if isinstance(item, Item) else item
            if loop.time() > end:
                grades.append(
                    Grade(correct=None, pred=None, reason=Reason.ABORTED, path="deadline", ms=0.0)
                )
                continue
            grades.append(grade(answer, gold, self._config))
            await asyncio.sleep(0)
        return grades
