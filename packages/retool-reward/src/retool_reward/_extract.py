"""Find the answer that the policy stated: its last box, or its last `Answer:`."""

import re
from dataclasses import dataclass

from ._own_text import BREAK
from ._types import GradeConfig, Multiple

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?:\{|(?=[-+]?[\d.]))")
_BRACE = re.compile(r"\\[\\{}]|[{}" + BREAK + "]")
_BARE_NUMBER = re.compile(r"[-+]?[\d.,/]*\d")
# Boxes that only these stand between are one answer in several boxes.
_JOINT = re.compile(
    r"(?:\s|\$|[,;]|and\b|or\b|\\(?:quad|qquad|[,;:! ])|\\text\s*\{\s*(?:and|or)?\s*,?\s*\})*"
)
_TAGGED = re.compile(r"<answer>((?:(?!</?answer>)[^" + BREAK + r"])*)</answer>", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:^|(?<=[.!?\n]))[ \t#>*_]*(?:the[ \t]+)?(?:final[ \t]+)?answer[ \t*_]*"
    r"(?::|=|is\b:?)[ \t*_]*"
    r"([^\n" + BREAK + r"]*)",
    re.IGNORECASE | re.MULTILINE,
)
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
    while (opening := _BOX.search(text, at)) is not None:
        if not opening.group().endswith("{"):
            number = _BARE_NUMBER.match(text, opening.end())
            if number is None:
                at = opening.end()
                continue
            boxes.append(_Box(opening.start(), number.end(), number.group()))
            at = number.end()
            continue
        end = _closing_brace(text, opening.end())
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


def _closing_brace(text: str, at: int) -> int | None:
    depth = 1
    for brace in _BRACE.finditer(text, at):
        mark = brace.group()
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                return brace.end()
        elif mark == BREAK:
            return None
    return None


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
    if "answer" not in text.casefold():
        hashes = None if after_box else _last(_HASHES, text)
        return None if hashes is None else hashes.strip() or None
    tagged = _last(_TAGGED, text)
    if tagged is not None:
        return tagged.strip() or None
    line = _last(_LABEL, text)
    if line is not None:
        value = _line_value(line)
        return value if value is None or not after_box or _is_terse(value) else None
    hashes = None if after_box else _last(_HASHES, text)
    return None if hashes is None else hashes.strip() or None


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    last: re.Match[str] | None = None
    for match in pattern.finditer(text):
        last = match
    return None if last is None else last[1]


def _is_terse(value: str) -> bool:
    """Whether a label's line is an answer, and not a remark such as `Answer: see above`."""
    return any(character.isdigit() for character in value) or value.count(" ") == 0


def _line_value(line: str) -> str | None:
    value = line.strip()[:_MAX_LINE_CHARS].strip("*_ \t")
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        if value.startswith(opening):
            end = value.find(closing, len(opening))
            if end != -1:
                rest = value[end + len(closing) :].strip(" .*_")
                if not rest or opening != "$":
                    value = value[len(opening) : end]
                    break
    value = value.strip("*_ \t")
    if value.endswith(".") and not value[:-1].endswith("."):
        value = value[:-1]
    return value.strip() or None


def _capped(answer: str | None, config: GradeConfig) -> str | None:
    if answer is None or not answer.strip() or len(answer) > config.max_answer_chars:
        return None
    return answer.strip()
