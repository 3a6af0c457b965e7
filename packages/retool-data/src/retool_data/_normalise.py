"""Reduce a problem's text to what it says, so that two spellings of it compare equal.

Copies of one AIME problem differ in math delimiters (`$`, `\\(`), spacing commands, `\\tfrac` for
`\\frac`, the figure's Asymptote source, and white space; almost none are equal as strings.
"""

import re
import unicodedata

_FIGURE = re.compile(
    r"\[asy\].*?\[/asy\]|\\begin\{(asy|tikzpicture|center)\}.*?\\end\{\1\}|!\[[^\]]*\]\([^)]*\)",
    re.DOTALL,
)
_COMMAND = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|[bB]ig+[lr]?|math(?:rm|bf|it|cal|bb|sf)|text(?:bf|it|rm)?"
    r"|operatorname|q?quad|limits|overline|rm|bf|it|emph|underline|hspace|vspace)(?![a-zA-Z])"
)
_SPELLINGS = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("\\neq", "\\ne"),
    ("\\cdots", "\\ldots"),
    ("\\dots", "\\ldots"),
    ("\\lvert", "|"),
    ("\\rvert", "|"),
)
_NOT_WORD = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+")
# A hyphen inside a word is a matter of spelling, a minus is not.
_SIGN = re.compile(r"\d+|[+*/^<>=]|(?<=\w)!|(?<![a-zA-Z]{2})-|-(?![a-zA-Z]{2})")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,(?:\\!)?)(?=\d{3})")
_WHOLE = re.compile(r"\d+|\d{1,3}(?:,\d{3})+", re.ASCII)

GRAM = 6
"""Characters per gram: enough to tell phrases apart, few enough to survive a changed word."""


def normalise(text: str) -> str:
    """Keep letters and digits of a problem, lower case, without LaTeX's typesetting."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    if "[asy]" in text or "\\begin{" in text or "![" in text:
        text = _FIGURE.sub(" ", text)
    if "\\" in text:
        for spelled, plain in _SPELLINGS:
            if spelled in text:
                text = text.replace(spelled, plain)
        text = _COMMAND.sub(" ", text)
    return _NOT_WORD.sub("", text.lower())


def signs(text: str) -> str:
    """What `normalise` leaves out and a problem turns on: operators, and where numbers end.

    `12 + 5` and `12 - 5`, or `1.5` and `15`, normalise alike.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    return " ".join(_SIGN.findall(_THOUSANDS.sub("", _FIGURE.sub(" ", text))))


def grams(normalised: str) -> set[str]:
    """All stretches of `GRAM` characters; a shorter text is one gram."""
    last = len(normalised) - GRAM
    if last <= 0:
        return {normalised} if normalised else set()
    return {normalised[i : i + GRAM] for i in range(last + 1)}


def numbers(text: str) -> set[str]:
    """The numbers in a text, figures left out."""
    return set(_NUMBER.findall(_FIGURE.sub(" ", text)))


def same_gold(a: str | None, b: str | None) -> bool | None:
    """Compare golds as written, leading zeros aside (`025` is `25`); None where one is missing."""
    if a is None or b is None:
        return None
    return _plain_gold(a) == _plain_gold(b)


def _plain_gold(gold: str) -> str:
    text = "".join(gold.strip().strip("$").split())
    if _WHOLE.fullmatch(text):
        return str(int(text.replace(",", "")))
    return text


def overlap(a: set[str], b: set[str]) -> float:
    """Shared part of two sets: 0 for nothing, or where both are empty; 1 for equal."""
    return len(a & b) / len(a | b) if a or b else 0.0
