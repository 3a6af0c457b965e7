"""Spell an answer in one way: unicode to LaTeX, dashes, spaces, delimiters, thousands."""

import re
import unicodedata
from functools import lru_cache

_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙᵢ", "0123456789+-ni", strict=True))
_GREEK_LETTERS = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_GREEK = {
    letter: f"\\{name} " for letter, name in zip(_GREEK_LETTERS, _GREEK_NAMES.split(), strict=True)
}
_SIGNS = {
    **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
    **dict.fromkeys("×✕✖⨯", "\\times "),
    **dict.fromkeys("·⋅∙•∗", "\\cdot "),
    **dict.fromkeys("⁄∕÷", "/"),
    **dict.fromkeys("º°˚", "^\\circ "),
    **dict.fromkeys("′ʹ‘’‚‛", "'"),
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)), ""),  # variation selectors
    "\u20e3": "",  # keycap
    **dict.fromkeys("∅⌀", "\\emptyset "),
    "∞": "\\infty ",
    "≤": "\\le ",
    "⩽": "\\le ",
    "≥": "\\ge ",
    "⩾": "\\ge ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "≅": "\\approx ",
    "≡": "\\equiv ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∖": "\\setminus ",
    "∎": "\\blacksquare ",
    "∈": "\\in ",
    "±": "\\pm ",
    "∓": "\\mp ",
    "…": "\\ldots ",
    "⋯": "\\ldots ",
    "∑": "\\sum ",
    "∏": "\\prod ",
    "∫": "\\int ",
    "⌊": "\\lfloor ",
    "⌋": "\\rfloor ",
    "⌈": "\\lceil ",
    "⌉": "\\rceil ",
    "⟨": "\\langle ",
    "⟩": "\\rangle ",
    "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}",
    "ℕ": "\\mathbb{N}",
    "ℂ": "\\mathbb{C}",
    "ℚ": "\\mathbb{Q}",
    "∠": "\\angle ",
    "→": "\\to ",
    "€": "\\$",
    "£": "\\$",
    "¥": "\\$",
    "％": "%",
    "、": ",",
    "。": ".",
}
_TABLE = str.maketrans({**_GREEK, **_SIGNS})
_SUPERS = re.compile(f"[{''.join(_SUPER)}]+")
_SUBS = re.compile(f"[{''.join(_SUB)}]+")
_VULGAR = re.compile(r"(\d?)\s*([¼½¾⅐-⅞])")
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z]|)")
_ROOTS = {"√": "\\sqrt", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]"}

# One reading of a group of digits: 1,234,567 with comma, \, \! {,} space or ~ between.
_GAP = r"(?:\s?\{ ?, ?\}|,\s*\\!|,?\s*\\[,;:! ]|,?~|\\thinspace\s*)"
_LATEX_GROUPS = re.compile(rf"(?<![\d.])(\d{{1,3}})((?:{_GAP}\s*\d{{3}})+)(?!\d)")
_SPACE_GROUPS = re.compile(
    r"(?<![\d.,^_/)}])(\d{1,3})((?: \d{3})+)(?![\d/]| \d+(?!\d*/)|\s*\\[dt]?frac)"
)
_LETTER_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_ORDINAL = re.compile(r"(?<=\d)(?:\^?\{?(?:\\text\s*\{)?(?:st|nd|rd|th)\}?\}?)$")
_OTHER_GROUPS = re.compile(
    r"(?<![\w.])\d{1,3}(?:(?:\.\d{3}){2,}|(?:_\d{3})+|(?:'\d{3})+)(?![\w.'])"
)
_COMMA_GROUPS = re.compile(r"(?<![\d.])([1-9]\d{0,2})((?:,\d{3})+)(?![\d]|,\d)")
_INDIAN_GROUPS = re.compile(r"[-+]?[1-9]\d?(?:,\d{2})+,\d{3}")
_POINT_GROUPS = re.compile(r"([-+]?\d{1,3}(?:\.\d{3})+),(\d{1,2})")
_DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+)")
_OPENED = re.compile(r"[(\[]|\\\{")
_NOT_DIGIT = re.compile(r"\D")
_STYLE = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|operatorname)\b")
_LAYOUT = re.compile(r"\\(?:left|right|quad|qquad)\b|\\[,;:! ]|[{}~]")
_LOOSE_SPACE = re.compile(r"(?<![\w.])\s+|\s+(?!\w)")
_PUNCTUATION = " ,:;!\"'`*"
_ARTICLE = re.compile(r"(?:an?|the) (?=[a-z]{3})")
_SPACES = re.compile(r"\s+")
_TEXT_STYLES = re.compile(r"\\(?:emph|textsf|texttt|textsc|textup|textmd)\b")
_QUOTED = re.compile(r"(?:``|[\"'`])([^\"'`]+)(?:''|[\"'`])")
# What may stand around an answer: 1) first = 5, 2) #5, 3) 5 with the mark of a proof's end.
_AROUND = re.compile(r"^(?:\\?#|=|\\therefore\b)+\s*|\s*\\(?:blacksquare|qed)$")
# \\frac of escaped strings (a row break is never followed by these), and \quadx.
_DOUBLED = re.compile(
    r"(?<!\\)\\(?=\\(?:[dt]?frac|sqrt|left|right|text|pi|infty|cup|[lg]eq?|pm|times|cdot)(?![A-Za-z]))"
)
_GLUED_QUAD = re.compile(r"(\\q?quad)(?=[A-Za-z])")
_BRACED_SIGN = re.compile(r"\{\s*(\\times|\\cdot|\\div|\\pm|[-+=<>])\s*\}")
# \text{ m/s^2}: the power of a unit belongs behind the text.
_UNIT_POWER = re.compile(r"(\\(?:text|mathrm|mbox)\s*\{[^{}^]*[A-Za-z]) ?\^ ?(\d) ?\}")
_COMPARED = re.compile(r"[<>]|\\[lg]e(?:q|qslant)?(?![A-Za-z])")
_LETTER_UNION = re.compile(r"(?<=[\])}])\s*[uU]\s*(?=\\left|\\\{|[\[(])")
# {}_5C_2 and ^5C_2 of calculators and British books, and 5C2.
_CHOSEN = re.compile(
    r"(?<![\w)}\]])(?:\{\})?[_^]\{?(\w+)\}?\s*([CP])_\{?(\w+)\}?"
    r"|(?<![\w.\\])(\d+) ?([CP]) ?(\d+)(?!\w)"
)
_DOTS = r"\s*(?:\.{3,}|\\[lc]?dots\b)"
# 0.333... and 0.(3): at least three digits that repeat, or brackets around those that do.
_REPEATING = re.compile(
    rf"(?<![\d.])(\d*\.\d{{0,8}}?)"
    rf"(?:(?=\d{{3}})(\d{{1,12}}?)\2{{1,40}}{_DOTS}|\((\d{{1,12}})\)(?![\d^!]))"
)
# ]0,1[ of European books: a bracket turned outwards is an open end.
_OUTWARD = re.compile(r"([\[\]])([^\[\],;]*[^\[\],; ] ?[,;] ?[^\[\],; ][^\[\],;]*)([\[\]])")


def normalise(text: str) -> str:
    """Return `text` in plain ASCII LaTeX as far as there is one, without decoration."""
    if not text.isascii():
        text = _ascii(text)
    text = text.replace("\\$", " ").replace("$", " ").replace("\\pounds", " ")
    for mark in ("\\(", "\\)", "\\[", "\\]", "\\displaystyle", "\\textstyle", "\\limits"):
        if mark in text:
            text = text.replace(mark, " ")
    text = _without_tail(_SPACES.sub(" ", text).strip())
    text = _without_tail(_AROUND.sub("", text))
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        text = _without_tail(quoted[1])
    text = _rewritten(text)
    text = _ORDINAL.sub("", _LETTER_TIMES.sub(r" \\times ", text))
    text = _OTHER_GROUPS.sub(lambda groups: _NOT_DIGIT.sub("", groups[0]), text)
    text = _LATEX_GROUPS.sub(_joined, text)
    return _SPACE_GROUPS.sub(_joined, text).strip()


def _rewritten(text: str) -> str:
    """Spell rarer notations in the common one; each is asked for by a character that it needs."""
    if "\\" in text:
        text = _GLUED_QUAD.sub(r"\1 ", _DOUBLED.sub("", text))
        text = _BRACED_SIGN.sub(r"\1", _TEXT_STYLES.sub(r"\\text", text))
        text = _UNIT_POWER.sub(r"\1}^\2", text)
        if "\\cup" in text and _COMPARED.search(text) and not _OPENED.search(text):
            text = text.replace("\\cup", " or ")  # x < 1 \cup x > 3: of conditions, not of sets
    if "u" in text or "U" in text:
        text = _LETTER_UNION.sub(r" \\cup ", text)
    if "C" in text or "P" in text:
        text = _CHOSEN.sub(_chosen, text)
    text = text.replace("+/-", "\\pm ").replace(":=", "=")
    if "." in text:
        text = _REPEATING.sub(lambda run: f"{run[1]}\\overline{{{run[2] or run[3]}}}", text)
    opening, closing = text.find("["), text.find("]")
    if (closing >= 0 and not 0 <= opening < closing) or text.rfind("[") > text.rfind("]"):
        text = _OUTWARD.sub(_inward, text)
    return text


def _chosen(match: re.Match[str]) -> str:
    n, letter, k = (match[group] or match[group + 3] for group in (1, 2, 3))
    return f"{'nCr' if letter == 'C' else 'nPr'}({n},{k})"


def _inward(interval: re.Match[str]) -> str:
    low, high = interval[1].replace("]", "("), interval[3].replace("[", ")")
    return low + interval[2] + high


def _without_tail(text: str) -> str:
    """Drop a sentence's end and LaTeX spaces after the answer, but not the dots of a sequence."""
    while text:
        if text[-1] in " \\~":
            text = text[:-1]
        elif len(text) > 1 and text[-2] == "\\" and text[-1] in ",;:!":
            text = text[:-2]
        elif text[-1] in ".,;" and not text.endswith(".."):
            text = text[:-1]
        else:
            break
    return text


def _joined(groups: re.Match[str]) -> str:
    return groups[1] + _NOT_DIGIT.sub("", groups[2])


def _ascii(text: str) -> str:
    text = _SUPERS.sub(lambda run: "^{" + "".join(_SUPER[c] for c in run[0]) + "}", text)
    text = _SUBS.sub(lambda run: "_{" + "".join(_SUB[c] for c in run[0]) + "}", text)
    text = _VULGAR.sub(_fraction, text)
    text = _ROOT.sub(lambda root: _ROOTS[root[1]] + (f"{{{root[2]}}}" if root[2] else " "), text)
    text = text.translate(_TABLE)
    text = unicodedata.normalize("NFKC", text).translate(_TABLE)
    return "".join(c for c in text if unicodedata.category(c) != "Cf")


def _fraction(match: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", match[2]).replace("⁄", "/")
    return f"{match[1]} {digits}" if match[1] else f"({digits})"


def readings(text: str, *, is_gold: bool) -> tuple[str, ...]:
    """Return the ways to read the commas of a normalised text, the likeliest first.

    `1,234` is one number, or a list of two; `1,22` is a list, or a decimal with a comma; a comma
    followed by a space always separates. Inside brackets commas separate, except where some are
    followed by a space and others are not.
    """
    if "," not in text:
        return (text,)
    found = [text]
    grouped = _COMMA_GROUPS.sub(_joined, text)
    if grouped != text and (", " in text or not _OPENED.search(text)):
        found.insert(0, grouped)
    decimal = _DECIMAL_COMMA.fullmatch(text)
    # A gold such as 0,1 is a list; one decimal place is too little to call it a number.
    if decimal is not None and grouped == text and (len(decimal[2]) >= 2 or not is_gold):
        found.append(f"{decimal[1]}.{decimal[2]}")
    if not is_gold and (points := _POINT_GROUPS.fullmatch(text)) is not None:
        found.append(f"{points[1].replace('.', '')}.{points[2]}")
    if _INDIAN_GROUPS.fullmatch(text):
        found.insert(0, text.replace(",", ""))
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=4096)
def as_text(text: str) -> str:
    """Return the words of an answer: no LaTeX, no case, no final punctuation.

    A space stays where it parts two words or numbers: `4 2` must not become 42.
    """
    text = _STYLE.sub(" ", text)
    text = _SPACES.sub(" ", _LAYOUT.sub(" ", text))
    text = _LOOSE_SPACE.sub("", text).strip(_PUNCTUATION).removesuffix(".").strip(_PUNCTUATION)
    text = text.casefold()
    article = _ARTICLE.match(text)
    return text if article is None else text[article.end() :]
