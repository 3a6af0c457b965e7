r"""Split a prompt into prefix, statement and suffix, and rewrite the answer form it asks for.

Data sets wrap the question in instructions. `str.lstrip(prefix)` strips *characters*, and eats the
first letters of the question; here a frame is only ever cut off as a whole.
"""

import re

from ._records import Problem

ANSWER_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
"""DAPO-Math-17k's own prefix."""
BOXED_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: \\boxed{$Answer} where $Answer is the answer to the problem.\n\n"
)
"""The form that a ReTool loop stops on."""
ANSWER_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'

_QUESTION_MARK = "*user question:*"
_DAPO = re.compile(
    r"Solve the following math problem step by step\. The last line of your response should be of "
    r"the form Answer: [^\n]*\n\n"
)
_SUFFIXES = (
    # (opening words, whether they open a line, what must follow them)
    (
        ("Remember",),
        False,
        re.compile(r' to put your answer on its own line after "Answer:"\.\s*\Z'),
    ),
    # ReTool ends every question with a reminder of the answer's form.
    (
        ("Remember",),
        True,
        re.compile(r" to place the final answer in the last part|: include at least one"),
    ),
    (("The answer format must be: ",), True, re.compile("")),
    (
        ("Please", "Let's"),
        False,
        re.compile(
            r" (?:reason|think) step by step,? and (?:put|output) (?:your|the) final answer "
            r"(?:within|in|after) (?:\\boxed\{\}|\"####\")\.?\s*\Z"
        ),
    ),
)


def split_frame(prompt: str) -> tuple[str, str, str]:
    """Split a prompt into (prefix, statement, suffix); joined they are the prompt again."""
    start = 0
    if prompt.startswith("Solve the following"):
        cut = prompt.find(_QUESTION_MARK)
        if cut >= 0:
            start = cut + len(_QUESTION_MARK)
            start += len(prompt[start:]) - len(prompt[start:].lstrip())
        elif match := _DAPO.match(prompt):
            start = match.end()
    end = _suffix_start(prompt, start)
    return prompt[:start], prompt[start:end], prompt[end:]


def _suffix_start(prompt: str, start: int) -> int:
    # Plain searches: a regex that begins with white space tries at every character.
    for openings, opens_line, rest in _SUFFIXES:
        for opening in openings:
            at = prompt.find(opening, start)
            while at >= 0:
                end = start + len(prompt[start:at].rstrip())
                on_its_line = not opens_line or "\n" in prompt[end:at]
                if on_its_line and rest.match(prompt, at + len(opening)):
                    return end
                at = prompt.find(opening, at + 1)
    return len(prompt)


def with_answer_form(problem: Problem, form: str) -> Problem:
    r"""Ask for the answer in another form.

    Args:
        problem: Its instructions (prefix and suffix) are replaced; the statement stays.
        form: `boxed` for `Answer: \boxed{...}`, which a ReTool loop stops on; `answer` for DAPO's
            own `Answer: ...`.

    Raises:
        ValueError: The form is not known.
    """
    prefixes = {"boxed": BOXED_PREFIX, "answer": ANSWER_PREFIX}
    if form not in prefixes:
        raise ValueError(f"answer form must be one of {sorted(prefixes)}, got {form!r}")
    if (problem.prefix, problem.suffix) == (prefixes[form], ANSWER_SUFFIX):
        return problem
    changed = problem.model_copy(update={"prefix": prefixes[form], "suffix": ANSWER_SUFFIX})
    return changed.with_step(f"answer_form:{form}")
