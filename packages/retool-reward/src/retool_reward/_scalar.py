"""Say whether two numbers or formulas are equal: exactly, by residues, or to 110 digits."""

from fractions import Fraction
from typing import Any

from ._exact import NotExact, rational, same_rational_function
from ._node import Kind, Node, minus
from ._numeric import Evaluator, TooBig, Undefined, symbols

_DIGITS, _MORE_DIGITS = 50, 110
# (scale, sign): near one, far from it, below zero and of both signs: roots and logs get a turn.
_POINTS = ((1, 1), (5, 1), (37, 1), (2, -1), (7, 0))
_ENOUGH_POINTS = 2
# A line through 0 and 1 is one here too; |x| and the floor of x are not.
_LINE_TESTS = (0.5, 2, 57, -3.25)
_FLOAT_DIGITS = 15
_MIN_ROUNDED_DIGITS = 3


def same_scalar(pred: Node, gold: Node, *, decimal_places: int) -> bool | None:
    """Whether two scalar trees are equal; None if that cannot be told.

    A decimal may stand for an exact number that it rounds; see `_rounds`.
    """
    if pred == gold:
        return True
    mine, theirs = _rational(pred), _rational(gold)
    if mine is not None and theirs is not None:
        return mine == theirs or _rounds(pred, gold, mine, theirs, decimal_places)
    try:
        verdict = same_rational_function(pred, gold)
    except NotExact:
        verdict = _same_numerically(pred, gold)
    if verdict is False and not symbols(pred) and not symbols(gold):
        return _rounds_numerically(pred, gold, decimal_places)
    return verdict


def _rational(node: Node) -> Fraction | None:
    try:
        return rational(node)
    except NotExact:
        return None


# --- rounding ---


def _rounds(pred: Node, gold: Node, mine: Any, theirs: Any, decimal_places: int) -> bool:
    """Whether one side is a decimal and the other, exact, rounds to it.

    An answer's decimal needs `decimal_places` places and three significant digits: 0.3333 is 1/3.
    Or it is a float's print, 15 digits or more: then the last of them may be noise. A gold's
    decimal needs three significant digits, and the answer must not be a whole number: 100/3 is
    33.3. Two decimals are equal or they are not.
    """
    if bool(pred.name and pred.kind is Kind.NUMBER) == bool(gold.name and gold.kind is Kind.NUMBER):
        return False
    difference = abs(mine - theirs)
    if pred.kind is Kind.NUMBER and pred.name:
        places, digits = _places(pred.name)
        if places >= _FLOAT_DIGITS - 5 and digits >= _FLOAT_DIGITS:
            return bool(difference * 10 ** (_FLOAT_DIGITS - 1) <= abs(theirs))
        if places < decimal_places or digits < _MIN_ROUNDED_DIGITS:
            return False
    else:
        places, digits = _places(gold.name)
        if digits < _MIN_ROUNDED_DIGITS or mine == int(mine):
            return False
    return bool(difference * 10**places * 2 <= 1)


def _places(literal: str) -> tuple[int, int]:
    """Return a decimal's places after the point, and its significant digits."""
    whole, _, places = literal.partition(".")
    return len(places), len((whole + places).lstrip("0"))


def _rounds_numerically(pred: Node, gold: Node, decimal_places: int) -> bool:
    if not any(node.kind is Kind.NUMBER and node.name for node in (pred, gold)):
        return False
    evaluator = Evaluator(digits=_DIGITS)
    try:
        mine, theirs = evaluator.value(pred), evaluator.value(gold)
    except (Undefined, TooBig, NotExact):
        return False
    if mine.imag or theirs.imag or abs(mine) > 1e40 or abs(theirs) > 1e40:
        return False
    return _rounds(pred, gold, mine.real, theirs.real, decimal_places)


# --- numeric ---


def _same_numerically(pred: Node, gold: Node) -> bool | None:
    free = symbols(pred) | symbols(gold)
    agreed, real_agreed, complex_differ = 0, 0, False
    for index, (scale, sign) in enumerate(_POINTS if free else _POINTS[:1]):
        try:
            verdict, is_real = _at_point(pred, gold, f"point {index}", scale, sign)
        except NotExact:
            return None
        if verdict is None:
            continue
        if verdict:
            agreed += 1
            real_agreed += is_real
        elif is_real or not free:
            return False
        else:
            complex_differ = True  # two branches of a root, perhaps
    if complex_differ and real_agreed < _ENOUGH_POINTS:
        return False
    if agreed >= (_ENOUGH_POINTS if free else 1):
        return True
    return None


def _at_point(pred: Node, gold: Node, seed: str, scale: int, sign: int) -> tuple[bool | None, bool]:
    """Return whether the sides agree at a point, None if undefined, and whether both are real."""

    def both(digits: int) -> tuple[Any, Any]:
        evaluator = Evaluator(digits=digits, seed=seed, sign=sign, scale=scale)
        return _value_or_none(evaluator, pred), _value_or_none(evaluator, gold)

    mine, theirs = both(_DIGITS)
    if mine is None or theirs is None:
        if (mine is None) == (theirs is None) or symbols(pred) or symbols(gold):
            return None, False
        return False, True
    if mine is _TOWER or theirs is _TOWER:
        # A tower differs from all that is no tower; two towers are compared as trees, before.
        return (None if mine is theirs else False), True
    is_real = not mine.imag and not theirs.imag
    size = max(abs(mine), abs(theirs))
    gap = abs(mine - theirs)
    if not size or not gap:
        return True, is_real
    close = gap <= size * 1e-30
    if not close and mine and theirs and size > 1e-30:
        return False, is_real
    mine, theirs = both(_MORE_DIGITS)
    if mine is None or theirs is None or mine is _TOWER or theirs is _TOWER:
        return None, False
    if close:
        return bool(abs(mine - theirs) <= size * 1e-80), is_real
    # The gap is all there is: it is noise if it shrinks as the precision grows.
    return bool(abs(mine - theirs) <= gap * 1e-40), is_real


class _Tower:
    """A number whose logarithm we do not write down either."""


_TOWER = _Tower()


def _value_or_none(evaluator: Evaluator, node: Node) -> Any:
    try:
        return evaluator.value(node)
    except Undefined:
        return None
    except TooBig:
        return _TOWER


def proportional(a: Node, b: Node, *, positive: bool) -> bool | None:
    """Whether a = c b for a constant c that is not zero (and, if asked, above it)."""
    ratio: Any = None
    num_points = 0
    for index, (scale, sign) in enumerate(_POINTS):
        evaluator = Evaluator(digits=_DIGITS, seed=f"ratio {index}", sign=sign, scale=scale)
        try:
            top, bottom = _value_or_none(evaluator, a), _value_or_none(evaluator, b)
        except NotExact:
            return None
        if top is None or bottom is None:
            continue
        if top is _TOWER or bottom is _TOWER or not top or not bottom:
            return False
        here = top / bottom
        if ratio is not None and abs(here - ratio) > abs(ratio) * 1e-30:
            return False
        if positive and not (here.imag == 0 and here.real > 0):
            return False
        ratio = here
        num_points += 1
    return True if num_points > _ENOUGH_POINTS else None


def linear_root(left: Node, right: Node, variable: str) -> tuple[Any, int] | None:
    """Solve left - right = 0 where that is linear in its one variable.

    Returns:
        The root, an mpmath number, and the sign of the slope; None if the sides are not linear.
    """
    difference = minus(left, right)
    if symbols(difference) != frozenset({variable}):
        return None
    values: list[Any] = []
    for at in (0, 1, *_LINE_TESTS):
        try:
            values.append(Evaluator(digits=_DIGITS, at={variable: at}).value(difference))
        except (Undefined, TooBig, NotExact):
            return None
    slope = values[1] - values[0]
    size = max(abs(value) for value in values)
    if not slope or any(value.imag for value in values):
        return None
    for at, value in zip(_LINE_TESTS, values[2:], strict=True):
        if abs(values[0] + slope * at - value) > size * 1e-35:
            return None
    return -values[0] / slope, 1 if slope > 0 else -1
