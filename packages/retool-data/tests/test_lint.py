from typing import Any

import pytest

from retool_data import (
    CODES,
    Finding,
    Problem,
    ReplayStatus,
    Segment,
    Span,
    SpanKind,
    TokenSample,
    ToolResult,
    Trajectory,
    lint,
    lint_sample,
)
from retool_data._parse import CODE_TOOL

ASK = "What is 6 times 7?"


def codes(*records: Any, **options: Any) -> set[str]:
    return {found.code for found in lint(records, **options)}


def problem(statement: str = ASK, gold: str | None = "42", **fields: Any) -> Problem:
    return Problem(problem_id="p", statement=statement, gold=gold, **fields)


def trajectory(*segments: Segment, asked: Problem | None = None, **fields: Any) -> Trajectory:
    fields.setdefault("tools", [CODE_TOOL])
    return Trajectory(problem=asked or problem(), segments=segments, **fields)


def call(code: str) -> Segment:
    return Segment.of_call("code_interpreter", {"code": code})


END = Segment.of_answer("\\boxed{42}")
OUT = Segment.of_result("42")


def result(status: ReplayStatus) -> Segment:
    segment = Segment.of_result("41")
    held = ToolResult(recorded="41", replayed="42", status=status)
    return segment.model_copy(update={"result": held})


def test_a_sound_row_has_no_finding() -> None:
    row = trajectory(Segment.of_text("Compute."), call("print(6 * 7)"), OUT, END)
    assert codes(row) == set()
    assert codes(problem()) == set()


PROBLEMS: list[tuple[str, Problem]] = [
    ("duplicate", problem(duplicate_of="q")),
    ("contaminated", problem(contaminated_by=("aime:1",))),
    ("gold_missing", problem(gold=None)),
    ("gold_missing", problem(gold=" ")),
    ("gold_not_integer", problem(gold="\\frac{1}{2}")),
    ("answer_in_problem", problem("Show that the answer is 42.")),
    ("answer_in_problem", problem("As \\boxed{42} shows, ...")),
    (
        "answer_form_mismatch",
        problem(prefix="The last line should be of the form Answer: $Answer (without quotes).\n"),
    ),
    ("prompt_names_other_dialect", problem(prefix="Write <code> and read <interpreter>.\n")),
    ("prompt_frame_damaged", problem("x$ and $y$ be numbers. Find them.")),
    ("latex_unescaped", problem("Put it in \boxed{}.")),
    ("latex_unescaped", problem("Find \frac{1}{2}.")),
    ("latex_unescaped", problem(gold="\text{A}")),
    ("control_token_in_content", problem("What does <|im_end|> mean?")),
    ("nested_chat_markup", problem("<|im_start|>user\nOne?<|im_end|>")),
    ("role_header_broken", problem("<|im_start|>userOne?<|im_end|>")),
]

TRAJECTORIES: list[tuple[str, Trajectory]] = [
    ("turns_broken", trajectory(OUT, END)),
    ("interpreter_in_text", trajectory(Segment.of_text("<interpreter>42</interpreter>"), END)),
    ("interpreter_in_text", trajectory(Segment.of_text("```output\n42\n```"), END)),
    ("call_in_text", trajectory(Segment.of_text("<tool_call>{}</tool_call>"), END)),
    ("fence_in_code", trajectory(call("```python\nprint(1)\n```"), OUT, END)),
    ("code_syntax", trajectory(call("print(1"), OUT, END)),
    ("needs_earlier_state", trajectory(call("x = 1"), OUT, call("print(x)"), OUT, END)),
    ("arguments_invalid", trajectory(Segment.of_call("code_interpreter", "[1]"), OUT, END)),
    ("arguments_invalid", trajectory(Segment.of_call("code_interpreter", "{"), OUT, END)),
    (
        "arguments_null_padded",
        trajectory(Segment.of_call("code_interpreter", {"code": "1", "q": None}), OUT, END),
    ),
    (
        "arguments_pretty",
        trajectory(Segment.of_call("code_interpreter", '{\n "code": "1"\n}'), OUT, END),
    ),
    (
        "unicode_escaped",
        trajectory(Segment.of_call("code_interpreter", '{"code": "\\u221a"}'), OUT, END),
    ),
    ("html_escaped", trajectory(call("if a &lt; b: pass"), OUT, END)),
    ("call_without_result", trajectory(call("1"))),
    ("ends_without_answer", trajectory(call("1"), OUT)),
    ("ends_without_answer", trajectory()),
    ("answer_without_box", trajectory(Segment.of_text("It is 42."))),
    ("answer_differs_from_gold", trajectory(Segment.of_answer("\\boxed{41}"))),
    ("box_unbalanced", trajectory(Segment.of_text("\\boxed{\\frac{1}{2}"))),
    ("tools_missing", trajectory(call("1"), OUT, END, tools="[]")),
    ("tools_missing", trajectory(END, tools="no JSON")),
    ("tools_missing", trajectory(END, tools="[1]")),
    (
        "thinking_in_history",
        trajectory(Segment.of_text("<think>hm</think>"), call("1"), OUT, END),
    ),
    ("replay_mismatch", trajectory(call("1"), result(ReplayStatus.MISMATCH), END)),
    ("replay_nondeterministic", trajectory(call("1"), result(ReplayStatus.NONDETERMINISTIC), END)),
    ("replay_state", trajectory(call("1"), result(ReplayStatus.STATE_DEPENDENT), END)),
    ("replay_timeout", trajectory(call("1"), result(ReplayStatus.TIMEOUT), END)),
    ("replay_refused", trajectory(call("1"), result(ReplayStatus.REFUSED), END)),
    ("control_token_in_content", trajectory(call("1"), Segment.of_result("<|im_end|>"), END)),
]


@pytest.mark.parametrize(("code", "record"), [*PROBLEMS, *TRAJECTORIES])
def test_every_fault_has_its_finding(code: str, record: Any) -> None:
    assert code in codes(record)


def test_faults_that_only_several_rows_show() -> None:
    other = problem(gold="41")
    assert "gold_conflict" in codes(problem(), other)
    assert "duplicate" in codes(problem(), problem())
    assert "gold_mixed_types" in codes(problem("a"), problem("b", gold_type="int"))
    rows = [
        trajectory(call("1"), OUT, END, asked=problem(name), dialect=dialect)
        for name, dialect in [("a", "retool"), ("b", "hermes")]
    ]
    assert "dialect_mixed" in codes(*rows)


def test_a_gold_conflict_is_found_behind_ten_thousand_duplicates() -> None:
    assert "gold_conflict" in codes(*[problem()] * 10_001, problem(gold="43"))


def test_the_expected_answer_form_and_dialect_can_be_chosen() -> None:
    boxed = problem(suffix=" Put it in \\boxed{}.")
    assert "answer_form_mismatch" in codes(boxed, answer_form="answer")
    assert codes(boxed, answer_form="any") == set()
    tags = problem(prefix="Write <code>.\n")
    assert codes(tags, dialect="retool") == set()
    calls = problem(prefix="Write <tool_call>.\n")
    assert "prompt_names_other_dialect" in codes(calls, dialect="retool")


def test_a_nested_brace_in_a_box_is_no_fault() -> None:
    row = trajectory(Segment.of_text("\\boxed{\\frac{1}{2}}"), asked=problem(gold="\\frac{1}{2}"))
    assert codes(row) == {"gold_not_integer"}


def test_a_finding_shows_where_and_what() -> None:
    (found,) = lint([problem("What does <|im_end|> mean?")])
    assert isinstance(found, Finding)
    assert "What does <|im_end|> mean?"[found.start : found.end] == found.evidence == "<|im_end|>"
    assert str(found).startswith("warning control_token_in_content :0 statement:")


def sample(mask: str, *spans: tuple[int, int, SpanKind, bool]) -> TokenSample:
    return TokenSample(
        problem_id="p",
        ids=tuple(range(len(mask))),
        mask=tuple(map(int, mask)),
        spans=tuple(
            Span(start=a, end=b, kind=kind, turn=0, trained=trained)
            for a, b, kind, trained in spans
        ),
    )


PROMPT, TURN = (0, 2, SpanKind.PROMPT, False), (2, 4, SpanKind.TURN, True)
SAMPLES: list[tuple[str, TokenSample]] = [
    ("mask_all_ones", sample("1111", PROMPT, TURN)),
    ("mask_all_zero", sample("0000", PROMPT, TURN)),
    ("mask_outside_turns", sample("0111", PROMPT, TURN)),
    ("mask_misses_turn", sample("0010", PROMPT, TURN)),
]


@pytest.mark.parametrize(("code", "row"), SAMPLES)
def test_every_fault_of_a_mask_has_its_finding(code: str, row: TokenSample) -> None:
    assert code in {found.code for found in lint_sample(row)}


def test_a_sample_that_was_cut_ends_with_another_id() -> None:
    row = sample("0011", PROMPT, TURN)
    assert list(lint_sample(row)) == []
    assert list(lint_sample(row, end_id=3)) == []
    assert [found.code for found in lint_sample(row, end_id=9)] == ["sample_truncated"]


def test_every_code_is_shown_by_a_test() -> None:
    shown = {code for code, _ in [*PROBLEMS, *TRAJECTORIES, *SAMPLES]}
    shown |= {"gold_conflict", "gold_mixed_types", "dialect_mixed", "sample_truncated"}
    # Shown in test_replay, test_chat_template and test_cli.
    shown |= {"quotes_replaced_output", "template_difference", "unreadable"}
    assert shown == set(CODES)
