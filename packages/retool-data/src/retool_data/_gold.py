"""Say what sort of answer a gold is."""

import re
from enum import StrEnum


class GoldKind(StrEnum):
    """What sort of answer a gold is."""

    NONE = "none"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FRACTION = "fraction"
    EXPRESSION = "expression"  # LaTeX or anything else with mathematical structure
    TEXT = "text"


_PATTERNS = (
    (GoldKind.INTEGER, re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)")),
    (GoldKind.DECIMAL, re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d{1,3}(,\d{3})+\.\d*)")),
    (GoldKind.FRACTION, re.compile(r"[+-]?(\d+\s*/\s*\d+|\\[dt]?frac\{?-?\d+\}?\{?\d+\}?)")),
    (GoldKind.TEXT, re.compile(r"(\\text\{)?[^\W\d_][^\W\d_]+([ '-][^\W\d_]+)*\}?")),
)


def gold_kind(gold: str | None) -> GoldKind:
    """Say what sort of answer a gold is; an empty or missing gold is `NONE`."""
    text = (gold or "").strip().strip("$").strip()
    if not text:
        return GoldKind.NONE
    return next((kind for kind, p in _PATTERNS if p.fullmatch(text)), GoldKind.EXPRESSION)
