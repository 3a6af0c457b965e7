"""Grade one answer: own text, extract, normalise, compare, and ask sympy only if undecided."""

import time

from ._equal import compare_texts
from ._extract import extract
from ._own_text import own_text
from ._types import Answer, Gold, Grade, GradeConfig, Reason

_DEFAULT = GradeConfig()


def grade(answer: Answer, gold: Gold, config: GradeConfig = _DEFAULT) -> Grade:
    """Say whether the policy's answer equals the gold."""
    started = time.perf_counter()

    def verdict(correct: bool | None, pred: str | None, reason: Reason, path: str) -> Grade:
        ms = (time.perf_counter() - started) * 1e3
        return Grade(correct=correct, pred=pred, reason=reason, path=path, ms=ms)

    pred = extract(own_text(answer), config)
    if pred is None:
        return verdict(False, None, Reason.NO_ANSWER, "extract")
    found = compare_texts(pred, str(gold), decimal_places=config.decimal_places)
    if found.gold_unparsable:
        return verdict(None, pred, Reason.GOLD_UNPARSABLE, "gold")
    same = bool(found.same)
    return verdict(same, pred, Reason.MATCH if same else Reason.MISMATCH, found.layer)
