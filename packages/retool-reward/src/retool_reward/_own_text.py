"""Keep of a trajectory only what the policy itself said as its answer."""

import re
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from ._types import Answer, Span, Speaker

BREAK = "\x1e"
"""Stands where foreign text was cut out. An answer never reaches across it."""

# What a harness (or a forger) writes as a tool's reply, and what a policy writes as a call.
_OUTPUT_TAGS = (
    r"(?:interpreter|observation|stdout|output|results?|(?:tool|function|code|execution)_"
    r"(?:responses?|outputs?|results?))"
)
_OUTPUT = re.compile(
    rf"(?P<open><\s{{0,9}}{_OUTPUT_TAGS}\b[^<>\n]{{0,200}}>|```output\b|<｜tool▁outputs▁begin｜>)"
    rf"|(?P<close><\s{{0,9}}/\s{{0,9}}{_OUTPUT_TAGS}\s{{0,9}}>|<｜tool▁outputs▁end｜>)"
    r"|(?P<fence>```)",
    re.IGNORECASE,
)
_OPEN_CALL = re.compile(
    r"<\s{0,9}(code|tool_call|function_call)\b[^<>\n]{0,200}>|(```)(?:python|py)\b", re.IGNORECASE
)
_CLOSE_CALL = {
    "```": re.compile("```"),
    **{
        name: re.compile(rf"<\s{{0,9}}/\s{{0,9}}{name}\s{{0,9}}>", re.IGNORECASE)
        for name in ("code", "tool_call", "function_call")
    },
}
# Calls between control tokens: of Llama, DeepSeek and Kimi.
_TOKEN_CALL = re.compile(
    r"<[|｜](?:python_tag|tool[▁_]calls?(?:_section)?[▁_]begin)[|｜]>.*?"
    r"(?:<[|｜](?:e[om][mt]_id|tool[▁_]calls?(?:_section)?[▁_]end)[|｜]>|\Z)",
    re.DOTALL,
)
# A role header in a string starts another's message; the policy's gives the word back. These are
# of ChatML, Llama, Gemma, Harmony, and of GLM, Phi and DeepSeek.
_ROLE = re.compile(
    r"<\|im_start\|>[ \t]*(\w+)[ \t]*\n?"
    r"|<\|start_header_id\|>[ \t]*(\w+)[ \t]*<\|end_header_id\|>"
    r"|<start_of_turn>[ \t]*(\w+)"
    r"|<\|start\|>[ \t]*(\w+)"
    r"|<[|｜](system|user|assistant|tool|observation)[|｜]>",
    re.IGNORECASE,
)
_OWN_ROLES = frozenset({"assistant", "model"})
_CONTROL = re.compile(r"<[|｜](?!tool▁outputs▁)[a-z_▁]{1,30}[|｜]>|</s>|<eos>|<end_of_turn>")


def own_text(answer: Answer) -> str:
    """Return the policy's own words, with `BREAK` where calls and foreign text stood.

    Spans of the prompt and of tools are dropped. Inside the policy's text, tool calls are dropped
    (a comment in a program is no answer), and so is everything that looks like tool output,
    whoever wrote it: a forged tag gains nothing. Three rules for tags that do not pair: an opening
    tag without a close drops the rest; a close without an opening drops what stands before it, back
    to the last cut, because a tool can print a closing tag; text between two outputs is kept only
    if a call stands in it, because real output always follows a call.

    Raises:
        TypeError: The answer is neither a string nor a sequence of spans.
    """
    if isinstance(answer, str):
        return _strip(answer)
    spans = list(answer)
    for span in spans:
        if not isinstance(span, Span):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"an answer is a str or a sequence of Span, got an item {span!r}")
    # Spans of the policy that touch are one text: a tag may be cut between them.
    turns = groupby(spans, key=lambda span: span.speaker == Speaker.POLICY)
    parts = (_strip("".join(span.text for span in turn)) if own else BREAK for own, turn in turns)
    return "".join(parts).lstrip(BREAK)


def _strip(text: str) -> str:
    if BREAK in text:
        text = text.replace(BREAK, " ")
    if "<" in text:
        text = _CONTROL.sub("", _TOKEN_CALL.sub(BREAK, _own_messages(text)))
    if "<" not in text and "```" not in text:
        return text
    return _without_calls(_without_outputs(text))


def _own_messages(text: str) -> str:
    headers = list(_ROLE.finditer(text))
    if not headers:
        return text
    kept = [text[: headers[0].start()]]
    ends = [*(header.start() for header in headers[1:]), len(text)]
    for header, end in zip(headers, ends, strict=True):
        role = header[header.lastindex or 0].casefold()
        kept += [BREAK, text[header.end() : end] if role in _OWN_ROLES else ""]
    return "".join(kept)


def _without_outputs(text: str) -> str:
    cuts: list[tuple[int, int]] = []
    opened: int | None = None
    opened_fence = False
    for tag in _OUTPUT.finditer(text):
        if tag["open"]:
            if opened is None:
                opened, opened_fence = tag.start(), tag["open"].startswith("`")
        elif tag["fence"]:
            if opened is not None and opened_fence:
                cuts.append((opened, tag.end()))
                opened = None
        elif opened is None:
            cuts.append((cuts[-1][1] if cuts else 0, tag.end()))
        elif not opened_fence:
            cuts.append((opened, tag.end()))
            opened = None
    if opened is not None:
        cuts.append((opened, len(text)))
    if not cuts:
        return text
    kept = [text[: cuts[0][0]]]
    for (_, end), (start, _) in pairwise(cuts):
        between = text[end:start]
        kept.append(between if _OPEN_CALL.search(between) else "")
    kept.append(text[cuts[-1][1] :])
    return BREAK.join(kept)


def _without_calls(text: str) -> str:
    """Cut out every call; one that was never closed takes the rest with it."""
    kept: list[str] = []
    at = 0
    while (opening := _OPEN_CALL.search(text, at)) is not None:
        kept.append(text[at : opening.start()])
        closing = _CLOSE_CALL[(opening[1] or opening[2]).lower()].search(text, opening.end())
        if closing is None:
            return BREAK.join((*kept, ""))
        at = closing.end()
    return BREAK.join((*kept, text[at:]))


def spans_of_tokens(
    ids: Sequence[int], mask: Sequence[int], decode: Callable[[list[int]], str]
) -> list[Span]:
    """Turn token ids and a mask into spans: 1 is the policy, 0 before it the prompt, then tools.

    Args:
        ids: Token ids of a trajectory, or of its response only.
        mask: Same length; 1 where the policy sampled the token.
        decode: Ids to text, for example a tokenizer's `decode`.

    Raises:
        ValueError: The lengths differ, or a mask value is neither 0 nor 1.
    """
    if len(ids) != len(mask):
        raise ValueError(f"ids and mask must be of one length, got {len(ids)} and {len(mask)}")
    spans: list[Span] = []
    start, spoken = 0, False
    for end in range(1, len(ids) + 1):
        if mask[end - 1] not in (0, 1):
            raise ValueError(f"a mask holds 0 and 1, got {mask[end - 1]!r} at {end - 1}")
        if end < len(ids) and mask[end] == mask[start]:
            continue
        own = mask[start] == 1
        speaker = Speaker.POLICY if own else Speaker.TOOL if spoken else Speaker.PROMPT
        spans.append(Span(decode(list(ids[start:end])), speaker))
        spoken = spoken or own
        start = end
    return spans
