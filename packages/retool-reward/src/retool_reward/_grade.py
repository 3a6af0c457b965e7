"""Grade one answer: own text, extract, normalise, exact equality."""

import time
from fractions import Fraction

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
    gold_text = str(gold).strip()
    if not gold_text:
        return verdict(None, pred, Reason.GOLD_UNPARSABLE, "gold")
    mine, theirs = _number(pred), _number(gold_text)
    same = mine == theirs if mine is not None and theirs is not None else pred == gold_text
    return verdict(same, pred, Reason.MATCH if same else Reason.MISMATCH, "exact")


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.strip().strip("$").replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None
