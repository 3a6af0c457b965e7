"""What can be wrong with a prompt and its gold."""

import re
from collections.abc import Iterator
from typing import Literal

from ._findings import Finding, finding
from ._gold import GoldKind
from ._records import Problem

AnswerForm = Literal["boxed", "answer", "any"]

CONTROL_TOKEN = re.compile(r"<\|[a-z_]+\|>|</?(?:tool_call|tool_response|think)>")
_MARKUP = re.compile(r"<\|im_start\|>\s*(?:system|user|assistant|tool)|\[/?INST\]|<start_of_turn>")
_BROKEN_HEADER = re.compile(r"<\|im_start\|>(?:system|user|assistant|tool)(?!\n)")
# \b, \f, \t and \r that a string literal made of \boxed, \frac, \text, \right and their like.
_UNESCAPED = re.compile(
    r"\x08(?:oxed|inom|eta|ar|egin|mod|ig)|\x0c(?:rac|orall|loor)|\t(?:ext|imes|heta|frac|an\b|riangle|o\b)"
    r"|\r(?:ight|angle|ho)|\x07(?:lpha|ngle|pprox)|\x0b(?:ec|ert)"
)
_ASKS_PLAIN_ANSWER = re.compile(r"(?i)of the form Answer:\s*\$?Answer")
_ASKS_BOX = re.compile(r"\\boxed|(?i:of the form Answer:\s*\\boxed)")


def lint_problem(
    problem: Problem, *, answer_form: AnswerForm = "boxed", dialect: str = "hermes"
) -> Iterator[Finding]:
    """Check one problem.

    Args:
        problem: Prompt and gold.
        answer_form: What the loop stops on and the scorer reads: `boxed`, `answer` or `any`.
        dialect: What the prompt will be rendered in.
    """

    def found(
        code: str, where: str, message: str = "", match: re.Match[str] | None = None
    ) -> Finding:
        return finding(
            code,
            problem.provenance,
            problem.problem_id,
            message,
            where=where,
            span=match.span() if match else (-1, -1),
            evidence=repr(match[0])[1:-1] if match else "",
        )

    if problem.duplicate_of is not None:
        yield found("duplicate", "statement", f"the same problem as {problem.duplicate_of}")
    for benchmark in problem.contaminated_by:
        yield found("contaminated", "statement", f"holds {benchmark}")
    if problem.gold_kind not in (GoldKind.INTEGER, GoldKind.NONE):
        yield found(
            "gold_not_integer", "gold", f"the gold is {problem.gold_kind}: {problem.gold!r:.60}"
        )
    if match := _states_answer(problem):
        yield found("answer_in_problem", "prompt", match=match)
    prompt = problem.prompt
    instructions = f"{problem.prefix}\n{problem.suffix}"
    if answer_form == "boxed" and (match := _ASKS_PLAIN_ANSWER.search(instructions)):
        message = "asks for `Answer: ...`; the loop stops on a box (convert --answer-form boxed)"
        yield found("answer_form_mismatch", "prompt", message, match)
    if answer_form == "answer" and (match := _ASKS_BOX.search(instructions)):
        message = "asks for a box; the scorer reads `Answer: ...` (convert --answer-form answer)"
        yield found("answer_form_mismatch", "prompt", message, match)
    if dialect == "hermes" and (match := re.search(r"<interpreter>|<code>", instructions)):
        yield found("prompt_names_other_dialect", "prompt", match=match)
    if dialect == "retool" and (match := re.search(r"<tool_call>", instructions)):
        yield found("prompt_names_other_dialect", "prompt", match=match)
    if not problem.prefix and _looks_cut(problem.statement):
        yield found(
            "prompt_frame_damaged", "statement", match=re.match(r".{1,40}", problem.statement)
        )
    if match := _UNESCAPED.search(prompt):
        yield found("latex_unescaped", "prompt", match=match)
    if match := _UNESCAPED.search(problem.gold or ""):
        yield found("latex_unescaped", "gold", match=match)
    if match := _MARKUP.search(prompt):
        yield found("nested_chat_markup", "prompt", match=match)
        if match := _BROKEN_HEADER.search(prompt):
            yield found("role_header_broken", "prompt", match=match)
    elif match := CONTROL_TOKEN.search(problem.statement):
        yield found("control_token_in_content", "statement", match=match)


def _states_answer(problem: Problem) -> re.Match[str] | None:
    gold = (problem.gold or "").strip()
    if not gold:
        return None
    stated = re.escape(gold)
    return re.search(
        rf"\\boxed\{{\s*{stated}\s*\}}|(?i:\banswer(?:\s+is|\s*:))\s*\$?{stated}(?!\w|\.\d)",
        problem.statement,
    )


def _looks_cut(statement: str) -> bool:
    """A statement that starts inside a word or formula, with a dollar left over."""
    text = statement.lstrip()
    starts_inside = bool(re.match(r"[a-z)}\]^_,.;:]", text))
    return starts_inside and (text.count("$") - text.count("\\$")) % 2 == 1
