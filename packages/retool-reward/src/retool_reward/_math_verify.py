"""Ask Math-Verify last, in a worker, and believe it only where it read the whole answer."""

import importlib
import logging
from typing import Any

from ._lex import ParseError
from ._normalise import normalise
from ._numeric import symbols
from ._parse import parse

_OPAQUE = "opaque "


def math_verify_agrees(pred: str, gold: str) -> bool | None:
    """Whether Math-Verify finds two texts equal; None where it may have dropped a part.

    Math-Verify reads what it can and forgets the rest: a radical, a quantifier, a base. So its word
    counts only if both sides became one expression each, with the variables that are in the text.
    """
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of every missing time-out
    mv: Any = importlib.import_module("math_verify")
    sp: Any = importlib.import_module("sympy")
    sides: list[Any] = []
    for text in (gold, pred):
        plain = normalise(text)
        # Its time-outs are signals, which a thread cannot have; the worker's clock stands in.
        parsed = mv.parse(
            f"${plain}$", [mv.LatexExtractionConfig()], parsing_timeout=None, raise_on_error=True
        )
        if not parsed or not isinstance(parsed[0], sp.Expr):
            return None
        if {str(symbol) for symbol in parsed[0].free_symbols} != _variables(plain):
            return None
        sides.append(parsed[0])
    return bool(mv.verify(sides[0], sides[1], timeout_seconds=None, raise_on_error=True))


def _variables(text: str) -> set[str] | None:
    try:
        found = symbols(parse(text, max_depth=1_000))
    except ParseError:
        return None
    return {name for name in found if not name.startswith(_OPAQUE)}
