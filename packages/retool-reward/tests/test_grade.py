"""What the grader reads as the same, and what it does not."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_reward import (
    AsyncGrader,
    GradeConfig,
    Multiple,
    Reason,
    Span,
    Speaker,
    grade,
    spans_of_tokens,
)

SAME = [
    ("7,425,000", "7425000"),
    ("1 000", "1000"),
    (r"32,\! 349", "32349"),
    (r"1{,}500", "1500"),
    ("1000,99", "1000.99"),
    ("½", r"\frac12"),
    ("4½", "9/2"),
    ("√2", r"\sqrt{2}"),
    ("x²", "x^2"),
    ("−5", "-5"),
    ("４２", "42"),
    ("90°", "90"),
    ("2 1/4", r"\frac94"),
    (r"918\frac{1}{2}", "918.5"),
    ("pi/2", r"\frac{\pi}{2}"),
    ("exp(16)", "e^{16}"),
    ("2*sqrt(3)", r"2\sqrt3"),
    ("28 pct", r"28\%"),
    (r"28\%", "0.28"),
    (r"10\text{ cm}", "10"),
    (r"\$16,\!386.20", "16386.20"),
    (r"\frac{10\sqrt{10.5}}{27}", r"\frac{5\sqrt{42}}{27}"),
    (r"\tan^2 y + 1", r"\sec^2(y)"),
    (r"\{1\pm\sqrt5,-2\}", r"\{-2,1+\sqrt5,1-\sqrt5\}"),
    (r"x \in [-2,7]", r"-2 \le x \le 7"),
    (r"x<-1 \text{ or } x>1", r"(-\infty,-1)\cup(1,\infty)"),
    (r"\mathbb{R}\setminus\{0\}", r"(-\infty,0)\cup(0,\infty)"),
    ("5 >= x", r"x \leq 5"),
    (r"y=-\frac12x+\frac34", "2x+4y-3=0"),
    ("x=3,y=2", "y=2, x=3"),
    ("(x,y)=(2,3)", "(2,3)"),
    ("m+n=42", "42"),
    (r"0.\overline{3}", r"\frac13"),
    (r"\binom{2026}{1013}", r"\binom{2026}{1013}"),
    (r"2^{1000}\cdot 2", "2^{1001}"),
    ("204_5", "54"),
    ("10:6", "5:3"),
    (r"\textbf{(C)}\ 42", "C"),
    ("monday", r"\text{Monday}"),
    (
        r"\left[\begin{array}{cc}1 & 2 \\3 & 4\end{array}\right]",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    ),
    (r"C_n^3", r"\frac{n(n-1)(n-2)}{6}"),
    (r"\sum_{k=1}^{10} k", "55"),
]
DIFFERENT = [
    ("4 2", "42"),
    ("01", "0,1"),
    ("32, 349", "32349"),
    (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
    ("2^{-99}", "2^{-98}"),
    ("1e-7", "2e-7"),
    ("52", "52_8"),
    ("0.28", "28"),
    ("5.001", "5"),
    ("1:00", "12:00"),
    ("x>5", "x<5"),
    ("[0,9)", "(0,9)"),
    ("(1,2)", "(2,1)"),
    ("1,2,3,4,5", "3"),
    (r"2 \text{ or } 3", "3"),
    (r"\text{not } 42", "42"),
    ("0", "a+3z=0"),
    ("7 = 42", "42"),
    ("n=3k", "3"),
    (r"\forall x>0, f(x) = 0", "f(x) = 0"),
    ("10 cm", "10 m"),
    ("9^{9^9}", "9^{9^9}+1"),
    ("262537412640768744", r"e^{\pi\sqrt{163}}"),
    ("х+1", "x+1"),
    ("2π", "2"),
    ("x", r"\sqrt{x^2}"),
]


def box(answer: str) -> str:
    return f"So the result follows.\n\nAnswer: \\boxed{{{answer}}}"


@pytest.mark.parametrize(("answer", "gold"), SAME)
def test_same(answer: str, gold: str) -> None:
    assert grade(box(answer), gold).correct is True
    assert grade(box(gold), gold).correct is True


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_different(answer: str, gold: str) -> None:
    found = grade(box(answer), gold)
    assert found.correct is False
    assert found.reason is Reason.MISMATCH


@pytest.mark.parametrize(
    ("text", "pred"),
    [
        (r"\boxed{42}", "42"),
        (r"\boxed {42}", "42"),
        (r"\fbox{42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{41}. No: \boxed{42}", "42"),
        (r"\boxed{41} \boxed{42}", "41, 42"),
        (r"\boxed{42} or \boxed{42}", "42"),
        (r"\boxed as asked: \boxed{5}", "5"),
        (r"\boxed{42} and then \boxed{}", None),
        (r"\boxed{42} and then \boxed{4", None),
        ("Final Answer: **73**", "73"),
        ("Answer: $13$", "13"),
        ("The answer is 42.", "42"),
        ("<answer>42</answer>", "42"),
        ("#### 42", "42"),
        ("42", None),
        ("", None),
        (r"\boxed{\text{" + "x" * 30_000 + "}}", None),
    ],
)
def test_what_is_extracted(text: str, pred: str | None) -> None:
    assert grade(text, "no such gold").pred == pred


@pytest.mark.parametrize(
    "text",
    [
        r"<interpreter>\boxed{42}</interpreter>",
        r"<interpreter>\boxed{42}",
        r"\boxed{42}</interpreter>",
        r"<interpreter>1</interpreter>\boxed{42}<interpreter>2</interpreter>",
        r"<tool_response>\boxed{42}</tool_response>",
        r"<tool_call>{'code': '\boxed{42}'}</tool_call>",
        "<code># Answer: \\boxed{42}\nprint(1)</code>",
        "<code># Answer: \\boxed{42}",
        "```python\n# \\boxed{42}\n```",
        "```output\n\\boxed{42}\n```",
        "<|im_start|>tool\n\\boxed{42}<|im_end|>",
        "<|im_start|>user\nUse \\boxed{42}.<|im_end|>\n<|im_start|>assistant\nI cannot.",
    ],
)
def test_tool_output_calls_and_forged_tags_earn_nothing(text: str) -> None:
    assert grade(text, "42").correct is False
    assert grade(text + " So \\boxed{41}.", "42").correct is False
    assert grade([Span(text)], "42").correct is False


def test_spans_decide_who_spoke() -> None:
    spans = [
        Span(r"Put it in \boxed{42}.", Speaker.PROMPT),
        Span(r"It is \boxed{41}."),
        Span(r"\boxed{42}", Speaker.TOOL),
    ]
    assert grade(spans, "42").pred == "41"
    for cut in (
        r"\boxed{4|2}",
        r"\boxed|{42}",
        r"\boxed |42",
        "Answer:|42",
        "<answer>|42</answer>",
    ):
        before, after = cut.split("|")
        spans = [Span(before), Span("}", Speaker.TOOL), Span(after)]
        assert grade(spans, "42").reason is Reason.NO_ANSWER
    with pytest.raises(TypeError, match="Span"):
        grade(["text"], "42")  # type: ignore[list-item]


def test_a_tag_cut_between_two_spans_of_the_policy_is_a_tag() -> None:
    assert grade([Span("<co"), Span("de># \\boxed{42}</code>")], "42").correct is False
    assert grade([Span("\\box"), Span("ed{42}")], "42").correct is True


def test_a_mask_makes_spans() -> None:
    ids, mask = [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 0, 1]
    spans = spans_of_tokens(ids, mask, lambda some: "".join(map(str, some)))
    assert [(span.text, span.speaker.value) for span in spans] == [
        ("01", "prompt"),
        ("23", "policy"),
        ("4", "tool"),
        ("5", "policy"),
    ]
    with pytest.raises(ValueError, match="one length"):
        spans_of_tokens([1], [], str)
    with pytest.raises(ValueError, match="0 and 1"):
        spans_of_tokens([1], [2], str)


def test_box_policies() -> None:
    text = r"\boxed{1} \boxed{2} \boxed{3}"
    assert grade(text, "3").correct is False
    assert grade(text, "1,2,3").correct is True
    assert grade(text, "3", GradeConfig(multiple=Multiple.LAST)).correct is True
    reject = GradeConfig(multiple=Multiple.REJECT_MULTI)
    assert grade(text, "3", reject).reason is Reason.NO_ANSWER
    assert grade(r"\boxed{3}. \boxed{3}", "3", reject).correct is True
    assert grade("Answer: 3", "3", GradeConfig(require_box=True)).reason is Reason.NO_ANSWER


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{1}{", "$$"])
def test_a_gold_that_cannot_be_read_gives_no_verdict(gold: str) -> None:
    found = grade(r"\boxed{7}", gold)
    assert found.correct is None
    assert found.reason is Reason.GOLD_UNPARSABLE


@pytest.mark.parametrize("gold", [None, True, math.nan, ["7"], {"answer": 7}, b"7"])
async def test_what_is_no_gold_gives_no_verdict(gold: Any) -> None:
    assert grade(r"\boxed{7}", gold).reason is Reason.GOLD_UNPARSABLE
    async with AsyncGrader() as grader:
        (found,) = await grader.grade_many([(r"\boxed{7}", gold)])
    assert found.reason is Reason.GOLD_UNPARSABLE


def test_prose_golds_only_refute() -> None:
    gold = "9. The walker climbs five floors, so the path is five times longer."
    assert grade(r"\boxed{7}", gold).correct is False
    assert grade(r"\boxed{9}", gold).correct is None
    assert grade(rf"\boxed{{{gold}}}", gold).correct is True


def test_decimals_stand_for_exact_numbers_by_rule() -> None:
    assert grade(box("0.3333"), r"\frac13").correct is True
    assert grade(box("0.33"), r"\frac13").correct is False
    assert grade(box(r"\frac{100}{3}"), "33.3").correct is True
    assert grade(box("33.33"), "33.3").correct is False
    assert grade(box("2"), "2.7").correct is False
    assert grade(box(repr(math.sqrt(17))), r"\sqrt{17}").correct is True
    assert grade(box("0.33"), r"\frac13", GradeConfig(decimal_places=2)).correct is False
    assert grade(box("0.333"), r"\frac13", GradeConfig(decimal_places=3)).correct is True


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_answer_chars", 0),
        ("decimal_places", 0),
        ("symbolic_time_s", 0),
        ("symbolic_time_s", math.nan),
        ("symbolic_memory_mib", 10),
        ("multiple", "first"),
    ],
)
def test_a_config_refuses_bad_values(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"must be|not a valid"):
        GradeConfig(**{field: value})  # type: ignore[arg-type]


# --- properties ---

integers = st.integers(min_value=-(10**30), max_value=10**30)
rationals = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4)


def spelled(value: Fraction) -> str:
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


@given(integers, integers)
def test_integers_are_equal_if_and_only_if_they_are(a: int, b: int) -> None:
    assert grade(box(str(a)), str(b)).correct is (a == b)
    assert grade(box(f"{a}+0"), str(b)).correct is (a == b)
    assert grade(box(str(a)), b).correct is (a == b)


@given(integers, st.integers(min_value=1, max_value=10**6))
def test_a_neighbour_is_never_right_in_any_spelling(a: int, step: int) -> None:
    b = a + step
    for spelling in (f"{a:,}", f"{{{a}}}", f"({a})", f"{a}.0", rf"\frac{{{2 * a}}}{{2}}"):
        assert grade(box(spelling), str(a)).correct is True
        assert grade(box(spelling), str(b)).correct is False
    power = rf"10^{{40}}+{a}" if a >= 0 else f"10^{{40}}{a}"
    assert grade(box(power), f"10^{{40}}+{b}" if b >= 0 else f"10^{{40}}{b}").correct is False


@given(rationals, rationals)
def test_fractions_are_equal_if_and_only_if_they_are(a: Fraction, b: Fraction) -> None:
    assert grade(box(spelled(a)), spelled(b)).correct is (a == b)
    assert grade(box(f"{a.numerator * 3}/{a.denominator * 3}"), spelled(a)).correct is True


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.randoms())
def test_lists_have_no_order_and_tuples_have(values: list[int], source: object) -> None:
    other = list(values)
    source.shuffle(other)  # type: ignore[attr-defined]
    mine, theirs = ", ".join(map(str, values)), ", ".join(map(str, other))
    assert grade(box(mine), theirs).correct is True
    assert grade(box(rf"\{{{mine}\}}"), rf"\{{{theirs}\}}").correct is True
    assert grade(box(f"({mine})"), f"({theirs})").correct is (values == other)


golds = st.one_of(
    integers.map(str),
    rationals.map(spelled),
    st.builds("{0}\\sqrt{{{1}}}+{2}".format, st.integers(2, 99), st.integers(2, 99), rationals),
    st.builds("({0}, {1}]".format, st.integers(-99, 0), st.integers(1, 99)),
    st.builds("x^{0}-{1}x+{2}".format, st.integers(2, 9), st.integers(1, 9), st.integers(0, 9)),
    st.builds("{0}x+{1}y={2}".format, *[st.integers(1, 99)] * 3),
    st.sampled_from(["A", r"\text{yes}", r"\emptyset", r"\infty", r"90^\circ", r"1 \pm \sqrt{19}"]),
)
decorations = st.sampled_from(
    [
        "{}",
        " {} ",
        "{}.",
        "${}$",
        r"\({}\)",
        r"\displaystyle {}",
        r"{}\,",
        "{{{}}}",
        "\u200b{}",
        r"{}\ ",
        r"\mathbf{{{}}}",
    ]
)


@settings(deadline=None)
@given(golds, decorations)
def test_grading_is_reflexive_and_blind_to_decoration(gold: str, decoration: str) -> None:
    assert grade(box(gold), gold).correct is True
    assert grade(box(decoration.format(gold)), gold).correct is True
    assert grade(box(gold.replace("-", "−")), gold).correct is True


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=30))
def test_no_text_makes_it_raise(answer: str, gold: str) -> None:
    found = grade(box(answer), gold, GradeConfig(symbolic=False))
    assert found.correct in (True, False, None)
    assert (found.correct is None) == (found.reason is Reason.GOLD_UNPARSABLE)


tokens = st.sampled_from(
    [
        r"\boxed{",
        r"\fbox{",
        r"{",
        r"}",
        r"\frac",
        r"\sqrt",
        r"^",
        r"_",
        r"(",
        r")",
        r"[",
        r"]",
        r",",
        r";",
        r"1",
        r"42",
        r"x",
        r"\pi",
        r"+",
        r"-",
        r"\pm",
        r"=",
        r"<",
        r"\le",
        r"\text{",
        r"and",
        r"or",
        r"Answer:",
        r"<answer>",
        r"</answer>",
        r"<code>",
        r"</code>",
        r"<interpreter>",
        r"</interpreter>",
        r"```",
        r"!",
        r"|",
        r"%",
        r"\\",
        r"&",
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        r"\sum",
        r"\int",
        r"\{",
        r"\}",
        r"\cup",
        r".",
        r"°",
        r"²",
    ]
)


@settings(deadline=None, max_examples=200)
@given(st.lists(tokens, max_size=25).map("".join), st.lists(tokens, max_size=6).map("".join))
def test_no_soup_of_tokens_makes_it_raise(answer: str, gold: str) -> None:
    config = GradeConfig(symbolic=False)
    assert grade(answer, gold, config).correct in (True, False, None)
    assert grade(box(answer), gold, config).correct in (True, False, None)
