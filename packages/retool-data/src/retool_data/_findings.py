"""What a check found: a code, how bad it is, where, and the evidence."""

from enum import StrEnum

from ._records import Provenance, Record


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # training on this row teaches something false, or it cannot be used
    WARNING = "warning"  # probably wrong; look at it
    NOTE = "note"  # worth knowing


class Finding(Record):
    """One fault in one row."""

    code: str
    """Stable name; `retool-data lint --codes` explains each."""
    severity: Severity
    source: str
    row: int
    """Line or row number in the source."""
    problem_id: str
    message: str
    where: str = ""
    """Which part: `statement`, `gold`, `turn 2`, `call 3`, ..."""
    start: int = -1
    """First character of the evidence in that part; -1 where the whole part is meant."""
    end: int = -1
    evidence: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.row}" + (f" {self.where}" if self.where else "")
        quote = f" [{self.evidence}]" if self.evidence else ""
        return f"{self.severity} {self.code} {place}: {self.message}{quote}"


E = Severity.ERROR
W = Severity.WARNING
N = Severity.NOTE

CODES: dict[str, tuple[Severity, str]] = {
    "unreadable": (E, "the row could not be read"),
    # replay
    "replay_mismatch": (E, "running the call again prints something else than the row records"),
    "replay_nondeterministic": (W, "two runs of the call print different things"),
    "replay_state": (W, "the output is right only with the other choice of state between calls"),
    "replay_timeout": (E, "the call ran into the time limit"),
    "replay_refused": (E, "the executor refused the call"),
    "quotes_replaced_output": (W, "later words quote an output that its replay replaced"),
    # prompt and gold
    "duplicate": (W, "an earlier row holds the same problem"),
    "gold_conflict": (E, "an earlier row holds the same statement with another gold"),
    "contaminated": (E, "the row holds a benchmark problem"),
    "gold_missing": (E, "a problem without a gold cannot be rewarded"),
    "gold_not_integer": (N, "the gold is no integer: the scorer must compare expressions"),
    "gold_mixed_types": (W, "golds are numbers in some rows and text in others"),
    "answer_in_problem": (E, "the prompt states its own answer"),
    "answer_form_mismatch": (E, "the prompt asks for a form of answer that the loop ignores"),
    "prompt_names_other_dialect": (E, "the prompt tells the model to write another dialect"),
    "prompt_frame_damaged": (W, "the statement looks cut: by str.lstrip(prefix), perhaps"),
    "latex_unescaped": (E, "a control character stands where a LaTeX backslash was"),
    "control_token_in_content": (W, "content spells a control token; it must stay text"),
    "nested_chat_markup": (E, "the prompt holds chat markup; a template would nest it"),
    "role_header_broken": (E, "a role header lost its newline"),
    # trajectories
    "turns_broken": (E, "the segments form no turns that a rollout could produce"),
    "interpreter_in_text": (E, "tool output stands in the policy's words: it would be trained on"),
    "call_in_text": (E, "a call stands in the policy's words as text, and nobody ran it"),
    "dialect_mixed": (W, "rows of one file write their calls in different dialects"),
    "fence_in_code": (E, "a code fence stands inside the code"),
    "code_syntax": (W, "the code does not parse as Python"),
    "needs_earlier_state": (N, "the code uses names that only earlier calls define"),
    "arguments_invalid": (E, "the arguments of a call are not a JSON object"),
    "arguments_null_padded": (W, "arguments hold nulls, as Arrow pads missing keys"),
    "arguments_pretty": (N, "arguments are pretty-printed JSON; a policy writes one line"),
    "html_escaped": (W, "text holds HTML entities, as Jinja's tojson writes them"),
    "unicode_escaped": (N, "arguments hold \\uXXXX escapes, as json.dumps writes them"),
    "call_without_result": (W, "the last calls have no output"),
    "ends_without_answer": (W, "the trajectory does not end in words of the policy"),
    "answer_without_box": (W, "the last turn has no boxed answer"),
    "answer_differs_from_gold": (E, "the boxed answer is not the gold"),
    "box_unbalanced": (E, "the braces of a box do not close"),
    "tools_missing": (E, "the row calls a tool that its tools do not describe"),
    "thinking_in_history": (W, "an earlier turn holds <think>, which chat templates strip"),
    # tokens
    "mask_all_ones": (E, "every token is trained: the mask is missing"),
    "mask_all_zero": (E, "no token is trained"),
    "mask_outside_turns": (E, "the mask trains prompt, template or tool output"),
    "mask_misses_turn": (E, "a turn of the policy is only partly trained"),
    "sample_truncated": (E, "the last turn does not end with the end-of-turn id: it was cut"),
    "template_difference": (N, "the model's own chat template writes other ids"),
}
"""Every code, its severity and what it means."""


def finding(
    code: str,
    provenance: Provenance,
    problem_id: str,
    message: str = "",
    *,
    where: str = "",
    span: tuple[int, int] = (-1, -1),
    evidence: str = "",
) -> Finding:
    """Make a finding of a known code; its meaning is the default message."""
    severity, meaning = CODES[code]
    return Finding(
        code=code,
        severity=severity,
        source=provenance.source,
        row=provenance.row,
        problem_id=problem_id,
        message=message or meaning,
        where=where,
        start=span[0],
        end=span[1],
        evidence=evidence,
    )
