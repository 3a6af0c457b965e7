"""Find the answer that the policy stated: its last box, or its last `Answer:`."""

import re
from dataclasses import dataclass

from ._own_text import BREAK
from ._types import GradeConfig, Multiple

_SPACE = rf"[^\S{BREAK}]"  # a break is white space to Python
_BOX = re.compile(
    r"\\(?:(?:begin)?boxed|fbox|framebox)"
    rf"{_SPACE}*(?:\{{|(?=[-+]?(?:[\d.]|\\[dt]?frac)))"
)
_BRACE = re.compile(r"\\[\\{}]|[{}" + BREAK + "]")
_BARE = re.compile(r"[-+]?(?:[\d.,/]*\d|\\[dt]?frac(?:\d|\{[^{}]*\}){2})")
# Boxes that only these stand between are one answer in several boxes.
_JOINT = re.compile(
    rf"(?:{_SPACE}"
    r"|\$|[,;]|and\b|or\b|\\(?:quad|qquad|[,;:! ()\[\]])"
    r"|\\text\s*\{\s*(?:and|or)?\s*,?\s*\}|[A-Za-z](?:_\{?\w\}?)?\s*=)*"
)
_TAGGED = re.compile(r"<answer>((?:(?!</?answer>)[^" + BREAK + r"])*)</answer>", re.IGNORECASE)
_LEAD = (
    r"(?:(?:(?:so|thus|hence|therefore|then)\b,?|(?:wait|actually|no),)[ \t]+)?"
    r"(?:(?:the|my|our)[ \t]+)?"
)
_LABEL = re.compile(
    r"(?:^|(?<=[.!?:\n]))[ \t#>*_]*" + _LEAD + r"(?:(?:final|correct)[ \t]+)*"
    r"(?:answer|(?<=correct )(?:option|choice))[ \t*_]*"
    r"(?:(?::|=|is\b:?)[ \t*_]*|(?=\n|\$|\\[(\[]))",
    re.IGNORECASE | re.MULTILINE,
)
# What a label may be followed by: displayed mathematics, or the rest of the line.
_DISPLAYED = re.compile(r"(?:\\\[|\$\$)[^" + BREAK + r"]*?(?:\\\]|\$\$)")
_DELIMITED = re.compile(r"(?:\\[(\[]|\$\$?)((?:(?!\\[()\[\]])[^$])*)(?:\\[)\]]|\$\$?)")
_TAKEN_BACK = (
    "(?:Or|But|No|Not|Also|Wait|Maybe|Perhaps|However|Alternatively|Otherwise|Actually|Either)"
)
# Where a line's answer ends and a remark starts, if that takes nothing of the answer back.
_REMARK = re.compile(
    r"(?<=[\d})\]$*\"])(?:\. (?!" + _TAKEN_BACK + r"\b)(?:[A-Z][a-z]|I\b)"
    r"|,? (?:because|since|as)\b|, (?:which|i\.e\.))"
)
# `Answer: The largest n is 34` says 34, if nothing in it takes that back.
_SENTENCE = re.compile(
    r"(?:The|Its?|Their|This)\b(?:(?! (?:or|not|no|if|is|are|equals)\b)[^.?!\n])*"
    r" (?:is|are|equals) (\$[^$]+\$|\S*\d\S*)"
)
# What only an answer has, and no remark.
_TERSE = re.compile(r"[\d=^+\\(]")
_MAX_TERSE_CHARS = 3
_HASHES = re.compile(r"^####[ \t]*([^\n" + BREAK + r"]+)", re.MULTILINE)
_MAX_JOINT_CHARS = 64
# How far a label's line may run before it is prose and not an answer.
_MAX_LINE_CHARS = 2_000
# Deeper than this nobody boxes a box; the recursion of an attacker ends here.
_MAX_BOX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class _Box:
    start: int
    end: int
    content: str | None  # None: never closed


def extract(text: str, config: GradeConfig) -> str | None:
    """Return the stated answer, or None if there is none.

    A box wins over a label, and the last box is the answer. A box that is empty or never closed
    takes back the boxes before it. Boxes listed side by side (`ADJACENT`) are one answer.
    An `Answer:` line or `<answer>` tag after the last box takes its place.
    """
    boxes = _boxes(text)
    tail_at = boxes[-1].end if boxes else 0
    if not config.require_box:
        labelled = _labelled(text[tail_at:], after_box=bool(boxes))
        if labelled is not None:
            return _capped(labelled, config)
    if not boxes:
        return None
    return _capped(_from_boxes(text, boxes, config.multiple), config)


def _boxes(text: str) -> list[_Box]:
    """Return the outermost boxes, in order."""
    boxes: list[_Box] = []
    at = 0
    closed_at: dict[int, int] | None = None
    while (opening := _BOX.search(text, at)) is not None:
        if not opening.group().endswith("{"):
            bare = _BARE.match(text, opening.end())
            if bare is None:
                at = opening.end()
                continue
            boxes.append(_Box(opening.start(), bare.end(), bare.group()))
            at = bare.end()
            continue
        if closed_at is None:
            closed_at = _closing_braces(text, opening.start())
        end = closed_at.get(opening.end())
        if end is None and "\\{" not in text[opening.end() :]:
            # `\boxed{185\}`: a stray backslash, not an escaped brace, if none was opened
            stray = text.find("\\}", opening.end())
            end = stray + 2 if stray >= 0 and BREAK not in text[opening.end() : stray] else None
        if end is None:
            # Nothing after an open box can be trusted to stand outside of it.
            boxes.append(_Box(opening.start(), len(text), None))
            break
        boxes.append(_Box(opening.start(), end, text[opening.end() : end - 1]))
        at = end
    return boxes


def _closing_braces(text: str, at: int) -> dict[int, int]:
    """Return the end of every group from `at` on by its start; a group holds no break."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text, at):
        mark = brace.group()
        if mark == "{":
            opened.append(brace.end())
        elif mark == "}" and opened:
            ends[opened.pop()] = brace.end()
        elif mark == BREAK:
            opened.clear()
    return ends


def _from_boxes(text: str, boxes: list[_Box], multiple: Multiple) -> str | None:
    last = boxes[-1]
    if last.content is None or not last.content.strip():
        return None
    if multiple is Multiple.LAST:
        return _unwrapped(last.content)
    if multiple is Multiple.REJECT_MULTI:
        contents = {"".join((box.content or "").split()) for box in boxes}
        return _unwrapped(last.content) if len(contents) == 1 else None
    group = [last]
    for box in reversed(boxes[:-1]):
        gap = group[-1].start - box.end
        if (
            box.content is None
            or gap > _MAX_JOINT_CHARS
            or not _JOINT.fullmatch(text, box.end, group[-1].start)
        ):
            break
        group.append(box)
    contents = list(dict.fromkeys(_unwrapped(box.content or "").strip() for box in reversed(group)))
    return ", ".join(contents)


def _unwrapped(content: str) -> str:
    for _ in range(_MAX_BOX_DEPTH):
        inner = _boxes(content)
        if not inner:
            break
        if len(inner) > 1 or inner[0].content is None:
            return content
        box = inner[0]
        content = content[: box.start] + (box.content or "") + content[box.end :]
    return content


def _labelled(text: str, *, after_box: bool) -> str | None:
    folded = text.casefold()
    if "answer" not in folded and (after_box or "correct" not in folded):
        return None if after_box else _content(_last(_HASHES, text))
    tagged = _last(_TAGGED, text)
    if tagged is not None:
        return _content(tagged)
    label = _last(_LABEL, text)
    if label is not None:
        value = _after_label(text, label.end())
        return value if value is None or not after_box or _is_terse(value) else None
    return None if after_box else _content(_last(_HASHES, text))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last: re.Match[str] | None = None
    for match in pattern.finditer(text):
        last = match
    return last


def _content(match: re.Match[str] | None) -> str | None:
    return None if match is None else match[1].strip() or None


def _is_terse(value: str) -> bool:
    """Whether a label's line is an answer, and not a remark such as `Answer: see above`."""
    return _TERSE.search(value) is not None or len(value) <= _MAX_TERSE_CHARS


def _after_label(text: str, at: int) -> str | None:
    """Return what follows a label, on its line or on the next one that is not empty."""
    rest = text[at : at + _MAX_LINE_CHARS].lstrip(" \t\r\n*_")
    value, tail = "", rest
    displayed = _DISPLAYED.match(rest)
    if displayed is not None:
        value, tail = displayed[0], rest[displayed.end() :]
    tail = tail.partition("\n")[0].partition(BREAK)[0]
    if value and (not tail.strip(" .*_") or _REMARK.match(tail)):
        tail = ""
    remark = _REMARK.search(tail)
    value += tail if remark is None else tail[: remark.start()]
    value = value.strip("*_ \t\r")
    if value.endswith(".") and not value[:-1].endswith("."):
        value = value[:-1]
    value = value.strip("*_ \t\r")
    sentence = _SENTENCE.fullmatch(value)
    value = value if sentence is None else sentence[1]
    delimited = _DELIMITED.fullmatch(value)
    return (value if delimited is None else delimited[1].strip()) or None


def _capped(answer: str | None, config: GradeConfig) -> str | None:
    if answer is None or not answer.strip() or len(answer) > config.max_answer_chars:
        return None
    return answer.strip()
