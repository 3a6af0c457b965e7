"""Grade one answer: own text, extract, normalise, compare, and ask a worker only if undecided."""

import atexit
import logging
import os
import threading
import time
from numbers import Number

from ._budget import OverBudget, budget
from ._equal import Verdict, compare_texts
from ._extract import extract
from ._integer import boxed_integer, integer
from ._lex import TooDeep
from ._own_text import own_text
from ._pool import Asked, GraderError, Pool
from ._types import Answer, Gold, Grade, GradeConfig, Multiple, Reason

logger = logging.getLogger(__name__)

DEFAULT_CONFIG = GradeConfig()
# What most answers need is a thousandth of this; the rest goes to a worker that can be killed.
_BUDGET_S = 0.12


def grade(answer: Answer, gold: Gold, config: GradeConfig = DEFAULT_CONFIG) -> Grade:
    """Say whether the policy's answer equals the gold.

    May be called from any thread. What this process cannot decide within 120 ms, such as an
    integral or an expression made to hang a grader, is asked of a worker process that all callers
    share; it starts when it is first needed.

    Args:
        answer: The response, or spans with their speaker (see `spans_of_tokens`).
        gold: The reference answer, without a box.
        config: How answers are read and compared.

    Returns:
        The verdict. `correct` is None if the gold cannot be read or the grader itself failed; an
        answer that nothing can evaluate in time or memory is wrong.
    """
    started = time.perf_counter()
    if type(answer) is str and config.multiple is not Multiple.REJECT_MULTI:
        boxed = boxed_integer(answer)
        wanted = integer(gold) if boxed is not None else None
        if boxed is not None and wanted is not None:
            same = int(boxed) == wanted
            reason = Reason.MATCH if same else Reason.MISMATCH
            return _verdict(started, same, boxed, reason, "integer")
    pred = extract(own_text(answer), config)
    if pred is None:
        return _verdict(started, False, None, Reason.NO_ANSWER, "extract")
    return grade_extracted(pred, gold_text(gold), config, started)


def gold_text(gold: object) -> str:
    """Return a gold as text; empty, which no verdict can be given on, for what is no gold.

    A data set may hold a null, a list or NaN, whose names must not be compared with an answer.
    """
    is_gold = not isinstance(gold, bool) and isinstance(gold, str | Number) and gold == gold
    return str(gold) if is_gold else ""


def grade_extracted(pred: str, gold: str, config: GradeConfig, started: float) -> Grade:
    """Grade an answer that was already extracted; `started` is a perf_counter reading."""
    if pred == gold:
        return _verdict(started, True, pred, Reason.MATCH, "spelling")
    found = decide_here(pred, gold, config)
    if found is None:
        if not config.symbolic:
            return _verdict(started, False, pred, Reason.MISMATCH, "value")
        try:
            asked = shared_pool(config.symbolic_memory_mib).ask(
                pred,
                gold,
                decimal_places=config.decimal_places,
                time_s=config.symbolic_time_s,
            )
        except GraderError as error:
            logger.warning("an answer was not graded: %s", error)
            return _verdict(started, None, pred, Reason.ABORTED, "symbolic")
        return grade_of_asked(asked, pred, started)
    return grade_of_verdict(found, pred, started)


def decide_here(
    pred: str, gold: str, config: GradeConfig, *, budget_s: float = _BUDGET_S
) -> Verdict | None:
    """Compare within this process; None if that takes too long or cannot tell."""
    try:
        with budget(budget_s):
            found = compare_texts(pred, gold, decimal_places=config.decimal_places)
    except (OverBudget, TooDeep, RecursionError):
        return None
    return None if found.same is None and not found.gold_unparsable else found


def grade_of_verdict(found: Verdict, pred: str, started: float) -> Grade:
    """Turn a comparison's verdict into a grade."""
    if found.gold_unparsable:
        return _verdict(started, None, pred, Reason.GOLD_UNPARSABLE, "gold")
    same = bool(found.same)
    return _verdict(started, same, pred, Reason.MATCH if same else Reason.MISMATCH, found.layer)


def grade_of_asked(asked: Asked, pred: str, started: float) -> Grade:
    """Turn a worker's word into a grade. An answer that breaks the worker is wrong."""
    if asked.verdict is not None:
        return grade_of_verdict(asked.verdict, pred, started)
    unknown = asked.reason in (Reason.GOLD_UNPARSABLE, Reason.ABORTED)
    correct = None if unknown else False
    return _verdict(started, correct, pred, asked.reason, "symbolic")


def _verdict(
    started: float, correct: bool | None, pred: str | None, reason: Reason, path: str
) -> Grade:
    ms = (time.perf_counter() - started) * 1e3
    return Grade(correct=correct, pred=pred, reason=reason, path=path, ms=ms)


# --- the workers that every caller of `grade` shares ---

_pools: dict[int, Pool] = {}
_pools_lock = threading.Lock()
_SHARED_WORKERS = 2


def shared_pool(memory_mib: int) -> Pool:
    """Return this process's pool for a memory limit; it starts when first asked."""
    with _pools_lock:
        pool = _pools.get(memory_mib)
        if pool is None:
            pool = _pools[memory_mib] = Pool(_SHARED_WORKERS, memory_mib)
        return pool


def close_shared_pools() -> None:
    """End the worker processes that `grade` started. The next question starts new ones."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _forget_pools() -> None:
    """After a fork the pools belong to the parent; the child starts its own."""
    global _pools_lock  # another thread may have held it when the fork happened
    _pools_lock = threading.Lock()
    _pools.clear()


atexit.register(close_shared_pools)
os.register_at_fork(after_in_child=_forget_pools)
