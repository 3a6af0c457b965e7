"""Decide whether two normalised texts say the same: by spelling, by tree, never by eval."""

import re
from dataclasses import dataclass

from ._compare import Symbolic, same
from ._lex import ParseError, TooDeep
from ._node import Node
from ._normalise import as_text, normalise, readings
from ._parse import parse
from ._units import says_logic

_STYLED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
_LETTER = re.compile(r"\(\s*([A-Ja-j])\s*\)\.?|([A-J])[.):]?")
_LETTER_WITH_TEXT = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])[.):])(?:\s|\\[ ,;]|~|\\quad)*(\S.*)")
# Words whose case says nothing; shorter ones may be products of variables.
_PLAIN_WORDS = re.compile(r"yes|no|true|false|[a-z]{4,}|[a-z]{2,}(?:\W+[a-z]+)+")
# What may stand before an answer without changing it.
_PREFIX = re.compile(
    r"(?:\\(?:text|mbox|textrm|textbf)\s*\{\s*)?"
    r"(?:(?:approximately|approx\.?|about|roughly|around)\b"
    r"|(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|option|choice)\b\s*(?:is\b|:|=)?\s*:?)"
    r"\s*\}?\s*",
    re.IGNORECASE,
)
# Digits that need letters: 1F_{16}, 0x1F, and any base in words: 1F base 16, 1F (base 16).
_LETTER_DIGITS = re.compile(
    r"((?=\d*[A-Z])[\dA-Z]+|(?=\d+[a-z])[\da-z]+)_\{?(1[1-9]|2\d|3[0-6])\}?"
)
_PYTHON_DIGITS = re.compile(r"0(?:x[\da-f]+|b[01]+|o[0-7]+)", re.IGNORECASE)
_BASE_IN_WORDS = re.compile(r"(\w+)\s*\(?\s*(?:in )?base[ -]?(\w+)\s*\)?", re.IGNORECASE)
_RATIO_IN_WORDS = re.compile(r"(\d+(?:\.\d+)?) ?to ?(\d+(?:\.\d+)?)")
_CLOCK = re.compile(r"(\d{1,2}:\d\d)\s*([ap])\.? ?m\.?", re.IGNORECASE)
_PYTHON_COMPLEX = re.compile(r"\(?[-+]?[\d.]+ ?[-+] ?[\d.]+j\)?")
_SYMPY_I = re.compile(r"(?<![A-Za-z\\])I(?![A-Za-z])")
_CHOICES = re.compile(
    r"\(?[A-J]\)?(?:\s*(?:,\s*(?:and|or)\b|[,;&/]|\b(?:and|or)\b|\s)\s*\(?[A-J]\)?)+"
)
# A second letter in what a letter stands for: whoever names two has chosen none.
_SECOND_LETTER = re.compile(
    r"\(\s*[A-J]\s*\)|\b[A-J][.):](?=\s|$)|\b(?:or|and|not)\s+[A-J]\b|^\W*[B-J]\b"
)
_COMPACT_CHOICES = re.compile("[A-J]{2,6}")
# \mathbb{E}[X] = 5: what cannot be read before an equals sign, without digits, is a name.
_STRANGE_NAME = re.compile(
    r"(?!.*\\(?:n?eg?|lnot|not|neq|n?exists|forall)\b)([^\d,;<>=]{0,40}[A-Za-z)\]}'|] ?)=([^<>=]+)"
)
# Words that are mathematics.
_ALIASES = {
    "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}",
    "the empty set": r"\emptyset",
    "empty set": r"\emptyset",
    "no solution": r"\emptyset",
    "no solutions": r"\emptyset",
    "no real solution": r"\emptyset",
    "no real solutions": r"\emptyset",
    "does not exist": r"\text{DNE}",
    "dne": r"\text{DNE}",
}
_SPACES = re.compile(r"\s+")
_MAX_PHRASE_CHARS = 40
_PROSE_WORDS = 5
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD_JOINT = re.compile(r",?\s*\band\b\s*|\s*[,;&]\s*")
_WORDS = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found. `same` None: undecided, or the gold cannot be read."""

    same: bool | None
    layer: str  # spelling, choice, text, value
    gold_unparsable: bool = False


def compare_texts(
    pred: str,
    gold: str,
    *,
    decimal_places: int = 4,
    max_depth: int = 48,
    symbolic: Symbolic | None = None,
) -> Verdict:
    """Compare an extracted answer with a gold.

    Args:
        pred: The answer as it was written.
        gold: The gold as it was written.
        decimal_places: See `GradeConfig.decimal_places`.
        max_depth: Brackets within brackets that the caller's stack can bear.
        symbolic: Asked about what nothing else decides.

    Raises:
        TooDeep: A side is nested deeper than `max_depth`.
        OverBudget: The time of the surrounding `budget` is over.
    """
    mine, theirs = _plain(pred), _plain(gold)
    if mine == theirs and mine:
        return Verdict(True, "spelling")
    if not theirs:
        return Verdict(None, "value", gold_unparsable=True)
    if not mine:
        return Verdict(False, "spelling")
    if _same_words(mine, theirs) and _is_wordy(mine, theirs):
        return Verdict(True, "text")
    if _choices(theirs) or _choices(mine):
        mine_chosen, theirs_chosen = _choices(mine, compact=True), _choices(theirs, compact=True)
        if mine_chosen is not None and theirs_chosen is not None:
            return Verdict(mine_chosen == theirs_chosen, "choice")
    gold_choice, pred_choice = _choice(theirs), _choice(mine)
    if gold_choice is not None:
        if pred_choice is not None:
            return Verdict(pred_choice[0] == gold_choice[0], "choice")
        if gold_choice[1]:
            theirs = gold_choice[1]  # the gold is `(C) 42` and the answer may be 42
    elif pred_choice is not None and pred_choice[1]:
        mine = pred_choice[1]  # and the other way round
    golds = _read(theirs, max_depth, is_gold=True)
    if not golds:
        return _compare_words(mine, theirs)
    preds = _read(mine, max_depth, is_gold=False)
    if not preds:
        return Verdict(_same_words(mine, theirs), "text")
    verdict: bool | None = False
    for their in golds:
        for my in preds:
            one = same(my, their, decimal_places=decimal_places, symbolic=symbolic)
            if one:
                return Verdict(True, "value")
            verdict = None if one is None else verdict
    if verdict is False and (with_i := _with_i(mine)) != mine and _with_i(theirs) == theirs:
        return compare_texts(
            with_i,
            theirs,
            decimal_places=decimal_places,
            max_depth=max_depth,
            symbolic=symbolic,
        )
    return Verdict(verdict, "value")


def can_read(gold: str, *, max_depth: int) -> bool:
    """Whether a gold parses in one of its readings."""
    return bool(_read(_plain(gold), max_depth, is_gold=True))


def readable(text: str) -> str:
    """Say what kind of thing a normalised text was parsed to, or why it was not."""
    try:
        return f"is a {parse(text).kind.value}"
    except (ParseError, TooDeep) as error:
        return f"is not mathematics: {error}"


def _plain(text: str) -> str:
    text = normalise(text)
    prefix = _PREFIX.match(text)
    if prefix is not None:
        text = text[prefix.end() :]
    return text if len(text) > _MAX_PHRASE_CHARS else _without_phrase(text)


def _without_phrase(text: str) -> str:
    """Spell in mathematics what a short answer says in words or in digits of a program."""
    if (alias := _ALIASES.get(as_text(text))) is not None:
        return alias
    bare = _STYLED.sub(r"\1", text)
    if (clock := _CLOCK.fullmatch(bare)) is not None:
        return f"\\text{{{clock[1]} {clock[2].upper()}M}}"
    if (ratio := _RATIO_IN_WORDS.fullmatch(_SPACES.sub(" ", bare))) is not None:
        return f"{ratio[1]}:{ratio[2]}"
    if (worded := _BASE_IN_WORDS.fullmatch(bare)) is not None:
        bare = text = f"{worded[1]}_{{{worded[2]}}}"
    digits, base = _LETTER_DIGITS.fullmatch(bare), 0
    number = bare
    if digits is not None:
        number, base = digits[1], int(digits[2])
    elif _PYTHON_DIGITS.fullmatch(bare) is None:
        return text
    try:
        return str(int(number, base))
    except ValueError:
        return text


def _with_i(text: str) -> str:
    """Spell sympy's I, and the j of python's complex numbers, as i."""
    if _PYTHON_COMPLEX.fullmatch(text):
        return text.replace("j", "i")
    return _SYMPY_I.sub("i", text)


def _read(text: str, max_depth: int, *, is_gold: bool) -> list[Node]:
    """Return the trees of a text's readings; of its right side if its left is a strange name."""
    named = _STRANGE_NAME.fullmatch(text)
    for spelling in (text, named[2] if named and not says_logic(as_text(named[1])) else None):
        found = [
            _parsed(reading, max_depth) for reading in readings(spelling or "", is_gold=is_gold)
        ]
        if any(found):
            return [tree for tree in found if tree is not None]
    return []


def _parsed(text: str, max_depth: int) -> Node | None:
    try:
        return parse(text, max_depth=max_depth)
    except ParseError:
        return None


def _choice(text: str) -> tuple[str, str] | None:
    """Split `(C) 42` into its letter and what the letter stands for, which may be empty."""
    text = _STYLED.sub(r"\1", text).strip()
    letter = _LETTER.fullmatch(text)
    if letter is not None:
        return (letter[1] or letter[2]).upper(), ""
    both = _LETTER_WITH_TEXT.fullmatch(text)
    if both is None or _SECOND_LETTER.search(both[3]):
        return None
    return (both[1] or both[2]), both[3]


def _choices(text: str, *, compact: bool = False) -> frozenset[str] | None:
    """Return the letters of a list of choices: `A, C`, `(A) and (C)`, or compact `AC`."""
    text = _STYLED.sub(r" \1 ", text).strip()
    if _CHOICES.fullmatch(text) or (compact and _COMPACT_CHOICES.fullmatch(text)):
        return frozenset(re.findall("[A-J]", text))
    return None


def _is_wordy(pred: str, gold: str) -> bool:
    """Whether two texts of the same words are words, not products of variables."""
    words = as_text(gold)
    if _PLAIN_WORDS.fullmatch(words):
        return True
    return bool(_STYLED.search(pred + gold)) and len(words) > 1 and words.isalpha()


def _same_words(pred: str, gold: str) -> bool:
    mine, theirs = as_text(pred), as_text(gold)
    if mine == theirs:
        return bool(mine)
    lists = [sorted(_WORD_JOINT.split(text)) for text in (mine, theirs)]
    return len(lists[0]) > 1 and lists[0] == lists[1] and not any(map(str.isdigit, mine))


def _compare_words(pred: str, gold: str) -> Verdict:
    """Compare with a gold that is no mathematics: a word or two, or prose.

    Prose that is not repeated word for word says nothing, except that an answer none of whose
    numbers stands in it is not what it says.
    """
    if _same_words(pred, gold):
        return Verdict(True, "text")
    if not as_text(gold) or gold.count("{") != gold.count("}"):
        return Verdict(None, "value", gold_unparsable=True)
    if len(_WORDS.findall(gold)) >= _PROSE_WORDS:
        numbers = _NUMBER.findall(pred)
        if numbers and not set(numbers) & set(_NUMBER.findall(gold)):
            return Verdict(False, "text")
        return Verdict(None, "value", gold_unparsable=True)
    return Verdict(False, "text")
