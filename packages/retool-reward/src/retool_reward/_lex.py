"""Cut a normalised answer into tokens."""

import re
from dataclasses import dataclass
from itertools import pairwise

from ._units import is_known_unit
from ._vocabulary import FUNCTIONS


class ParseError(ValueError):
    """The text is not mathematics that this package reads."""


class TooDeep(Exception):  # noqa: N818 - a limit, not a fault
    """Brackets are nested deeper than the host's stack should bear."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is num, sym, word, text, cmd, op or end."""

    kind: str
    text: str
    spaced: bool = False


_TOKEN = re.compile(
    r"(?P<space>(?:\s|~|\\[,;:!> ]|&nbsp;)+)"
    r"|(?P<num>(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:[eE][-+]?\d+(?![A-Za-z\d.]))?)"
    r"|(?P<text>\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|operatorname|mathsf|hbox)"
    r"\*?\s*\{(?P<words>[^{}]*)\})"
    r"|(?P<cmd>\\(?:[A-Za-z]+\*?|[{}|\\%#&]))"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<op>\*\*|<=|>=|!=|==|\.\.\.+|!|[-+*/^_=<>(),;:|%'\[\]{}&])"
)
_STYLES = (
    r"\left \right \middle \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr"
    r" \Biggl \Biggr"
    r" \displaystyle \textstyle \scriptstyle \mathstrut \rm \bf \it \tt \cal \quad \qquad \hfill"
    r" \mathbf \boldsymbol \bm \mathit \mathcal \mathfrak \vec \overrightarrow \hat \widehat \tilde"
    r" \large \Large \LARGE \huge \Huge \small \normalsize \bold \bfseries \color \textcolor"
    r" \underline \ensuremath \mathord \mathop \nolimits \limits \thinspace \hline \hspace \phantom"
)
_SKIPPED = frozenset(_STYLES.split())
# A command that means the same as a plain token.
_SYNONYMS = {
    **dict.fromkeys((r"\cdot", r"\times", r"\ast", r"\cdotp"), "*"),
    r"\div": "/",
    **dict.fromkeys((r"\lt",), "<"),
    **dict.fromkeys((r"\gt",), ">"),
    **dict.fromkeys((r"\le", r"\leq", r"\leqslant", r"\leqq"), "<="),
    **dict.fromkeys((r"\ge", r"\geq", r"\geqslant", r"\geqq"), ">="),
    **dict.fromkeys((r"\ne", r"\neq"), "!="),
    **dict.fromkeys((r"\approx", r"\simeq", r"\sim", r"\thickapprox", r"\doteq"), "~"),
    "==": "=",
    r"\bigcup": r"\cup",
    r"\bigcap": r"\cap",
    r"\varphi": r"\phi",
    r"\varepsilon": r"\epsilon",
    r"\vartheta": r"\theta",
    **dict.fromkeys((r"\lbrack",), "["),
    **dict.fromkeys((r"\rbrack",), "]"),
    **dict.fromkeys((r"\lbrace", r"\{"), r"\{"),
    **dict.fromkeys((r"\rbrace", r"\}"), r"\}"),
    **dict.fromkeys((r"\lvert", r"\rvert", r"\vert", r"\mid"), "|"),
    r"\%": "%",
    r"\&": "&",
    r"\colon": ":",
    **dict.fromkeys((r"\ldots", r"\dots", r"\cdots", r"\dotsc", r"\dotsb", r"\dotsm"), "..."),
    **dict.fromkeys((r"\land", r"\wedge"), "and"),
    **dict.fromkeys((r"\lor", r"\vee"), "or"),
    r"\prime": "'",
}
# `\text{13}`, `\text{25 percent}` and `\text{(C)}` are read like the same without the command.
_NUMERIC_TEXT = re.compile(r"\s*[-+]?\.?\d|\s*\(?[A-Za-z]\)?\s*$")
# 6 \text{ N}: in text behind a number these letters are units.
_UNIT_LETTERS = {"N": "newton", "J": "joule", "W": "watt", "V": "volt", "K": "kelvin"}
_PARTNERS = {"(": ")", "{": "}"}
_MAX_TOKENS = 20_000


def lex(text: str) -> list[Token]:
    """Return the tokens of a normalised text, closed by an `end` token.

    Raises:
        ParseError: A character has no meaning here, or there are too many tokens.
    """
    tokens: list[Token] = []
    at, spaced = 0, False
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ParseError(f"unexpected character {text[at]!r}")
        at = match.end()
        kind = match.lastgroup or ""
        found = match.group()
        if kind == "space":
            spaced = True
            continue
        if len(tokens) >= _MAX_TOKENS:
            raise ParseError(f"longer than {_MAX_TOKENS} tokens")
        if found in _SKIPPED:
            if found in (r"\hspace", r"\phantom", r"\color", r"\textcolor"):
                at = _after_group(text, at)
            spaced = True
            continue
        if kind == "text":
            unit = _UNIT_LETTERS.get(match["words"].strip(" ~"))
            if unit is not None and tokens and tokens[-1].kind == "num":
                tokens.append(Token("text", unit, True))
            else:
                tokens.extend(_of_text(match["words"], spaced))
        elif found in _SYNONYMS:
            plain = _SYNONYMS[found]
            kind = "cmd" if plain[0] == "\\" and plain[1:].isalpha() else "op"
            tokens.append(Token(kind, plain, spaced))
        elif kind == "word" and len(found) == 1:
            tokens.append(Token("sym", found, spaced))
        elif found == "\\\\":
            tokens.append(Token("op", found, spaced))
        elif kind == "op" and found.startswith("..."):
            tokens.append(Token("op", "...", spaced))
        else:
            tokens.append(Token(kind, found, spaced))
        spaced = False
    tokens.append(Token("end", "", spaced))
    return _without_doubled_brackets(tokens)


def _without_doubled_brackets(tokens: list[Token]) -> list[Token]:
    """Read ((x)) as (x) and {{x}} as {x}: a thousand brackets around a number are no depth."""
    if not any(a.text == b.text and a.text in _PARTNERS for a, b in pairwise(tokens)):
        return tokens
    partner: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.text in _PARTNERS:
            opened.append(at)
        elif opened and token.text == _PARTNERS[tokens[opened[-1]].text]:
            partner[opened.pop()] = at
    doubled = {
        at
        for at, close in partner.items()
        if tokens[at + 1].text == tokens[at].text and partner.get(at + 1) == close - 1
    }
    dropped = doubled | {partner[at] for at in doubled}
    return [token for at, token in enumerate(tokens) if at not in dropped]


def _after_group(text: str, at: int) -> int:
    if at < len(text) and text[at] == "{":
        end = text.find("}", at)
        return len(text) if end == -1 else end + 1
    return at


def _of_text(words: str, spaced: bool) -> list[Token]:
    """Read `\\text{13}` as 13 and `\\text{ and }` as a separator; other words stay text."""
    stripped = words.strip(" ~")
    if not stripped:
        return []
    bare = stripped.strip(",;~ ").casefold()
    if bare in ("and", "or", ""):
        return [Token("op", bare or ",", True)]
    if _NUMERIC_TEXT.match(words):
        inner = lex(stripped)[:-1]
        return [Token(inner[0].kind, inner[0].text, spaced), *inner[1:]]
    if stripped in FUNCTIONS and not is_known_unit(stripped):
        return [Token("word", stripped, spaced)]
    return [Token("text", stripped, spaced or words[0].isspace())]
