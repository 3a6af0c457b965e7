"""The commonest case, fast: one box that holds a whole number, and a whole gold."""

_BOX = "\\boxed{"
_MAX_DIGITS = 40


def boxed_integer(answer: str) -> str | None:
    """Return the whole number in a response's only box, where nothing else can be the answer.

    None means: look closely. That is so for a second box, tags, fences, or an `Answer` after the
    box; this must never differ from what `own_text` and `extract` would find.
    """
    at = answer.rfind(_BOX)
    if at < 0:
        return None
    start = at + len(_BOX)
    end = answer.find("}", start, start + _MAX_DIGITS)
    digits = answer[start:end]
    if end < 0 or not _is_integer(digits):
        return None
    if answer.count("box") != 1 or "<" in answer or "```" in answer or "\x1e" in answer:
        return None
    tail = answer[end + 1 :]
    if len(tail) > 1 and "answer" in tail.casefold():
        return None
    return digits


def integer(gold: object) -> int | None:
    """Return a gold that is, or spells, a whole number."""
    if type(gold) is int:
        return gold
    if type(gold) is str and len(gold) <= _MAX_DIGITS and _is_integer(gold):
        return int(gold)
    return None


def _is_integer(text: str) -> bool:
    if text.isdecimal():
        return text.isascii()
    return text[:1] == "-" and text[1:].isdecimal() and text.isascii()
