import pytest

from retool_data import (
    DedupeReport,
    Problem,
    Provenance,
    Segment,
    Trajectory,
    dedupe,
    find_contamination,
    mark_contaminated,
)
from retool_data._normalise import normalise, same_gold

TRAIN = (
    "A train leaves town at $9$ in the morning with speed $60$ kilometers per hour, and a second "
    "train follows at $10$ with speed $90$. After how many minutes does the second meet the first?"
)


def problem(name: str, statement: str, gold: str | None = "120") -> Problem:
    provenance = Provenance(source="t.jsonl", row=1)
    return Problem(problem_id=name, statement=statement, gold=gold, provenance=provenance)


def kept(*problems: Problem, level: str = "near") -> list[str]:
    return [p.problem_id for p in dedupe(problems, level=level)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Find $x$ with \\(x+1 = 2\\).", "Find \\(x\\) with $x + 1=2$."),
        ("What is $\\dfrac{1}{2}$?", "what is $\\tfrac{1}{2}$ ?"),
        ("Let $A B C$ be \\left( a \\right).", "Let $ABC$ be (a)."),
        ("See [asy] draw((0,0)--(1,1)); [/asy] it.", "See it."),
        ("$\\mathcal{T}$ is a torus", "$T$ is a torus"),
        ("１２ apples", "12 apples"),
    ],
)
def test_spellings_of_one_text_normalise_alike(a: str, b: str) -> None:
    assert normalise(a) == normalise(b)


def test_other_numbers_are_another_text() -> None:
    assert normalise("Add 2 and 3") != normalise("Add 2 and 4")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [("025", "25", True), ("1,024", "1024", True), ("0,1", "1", False), (None, "1", None)],
)
def test_golds_are_compared_as_written(a: str | None, b: str, same: bool | None) -> None:
    assert same_gold(a, b) is same


def test_a_hundred_copies_collapse_to_one() -> None:
    report = DedupeReport()
    copies = [problem(f"p{i}", TRAIN) for i in range(100)]
    assert len(list(dedupe(copies, report=report))) == 1
    assert (report.rows, report.kept, report.levels) == (100, 1, {"exact": 99})
    assert report.duplicates[0].duplicate_of == "p0"


def test_rows_that_share_an_id_are_compared_all_the_same() -> None:
    assert len(kept(problem("p", TRAIN), problem("p", TRAIN))) == 1


def test_each_level_finds_more_than_the_one_before() -> None:
    spelled = TRAIN.replace("$9$", "9").replace("$60$", "\\(60\\)")
    reworded = TRAIN.replace("leaves town", "departs").replace("a second train", "another one")
    rows = (problem("a", TRAIN), problem("b", TRAIN), problem("c", spelled), problem("d", reworded))
    assert kept(*rows, level="exact") == ["a", "c", "d"]
    assert kept(*rows, level="normalised") == ["a", "d"]
    assert kept(*rows, level="near") == ["a"]


def test_one_text_with_other_numbers_is_another_problem() -> None:
    other = TRAIN.replace("90", "75")
    assert kept(problem("a", TRAIN), problem("b", other, "240")) == ["a", "b"]


@pytest.mark.parametrize("gold", ["7", None])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Compute the value of $12 + 5$ by hand.", "Compute the value of $12 - 5$ by hand."),
        ("Solve $1.5x = 3$ for the unknown x.", "Solve $15x = 3$ for the unknown x."),
        ("Give all x where x^2 > 3 holds true.", "Give all x where x^2 < 3 holds true."),
        ("![](a.png)", "![](b.png)"),
    ],
)
def test_texts_that_differ_in_their_signs_are_other_problems(
    a: str, b: str, gold: str | None
) -> None:
    assert kept(problem("a", a, gold), problem("b", b, gold), level="normalised") == ["a", "b"]
    if gold is None:  # an equal gold is evidence of a copy for `near`
        assert kept(problem("a", a, gold), problem("b", b, gold)) == ["a", "b"]


@pytest.mark.parametrize(
    ("a", "b"), [("a two-digit $1{,}000-x$", "a two digit $1000 - x$"), ("x \u2212 1", "x-1")]
)
def test_hyphens_and_thousands_are_a_matter_of_spelling(a: str, b: str) -> None:
    assert kept(problem("a", a), problem("b", b), level="normalised") == ["a"]


def test_reworded_text_with_another_gold_is_kept() -> None:
    reworded = TRAIN.replace("leaves town", "departs")
    assert kept(problem("a", TRAIN), problem("b", reworded, "7")) == ["a", "b"]


def test_equal_texts_with_different_golds_are_a_conflict() -> None:
    report = DedupeReport()
    list(dedupe([problem("a", TRAIN), problem("b", TRAIN, "121")], report=report))
    assert report.duplicates[0].gold_conflict


def test_duplicates_can_be_marked_instead_and_trajectories_count_by_their_problem() -> None:
    rows = [
        Trajectory(problem=problem(name, TRAIN), segments=(Segment.of_text("x"),)) for name in "ab"
    ]
    marked = list(dedupe(rows, mark=True))
    assert [row.problem.duplicate_of for row in marked] == [None, "a"]


def test_the_list_of_duplicates_is_bounded_and_the_count_is_not() -> None:
    report = DedupeReport(max_listed=5)
    golds = ["120"] * 40 + ["121"] * 10
    list(dedupe((problem(str(i), TRAIN, gold) for i, gold in enumerate(golds)), report=report))
    assert (len(report.duplicates), report.levels["exact"]) == (5, 49)
    assert report.gold_conflicts == 10


BENCHMARK = [
    problem("bench:1", TRAIN),
    problem("bench:2", "Find the number of primes below 100.", "25"),
]
CLEAN = [
    problem(
        f"clean:{i}", f"Find the number of ways to colour {i} {thing} with {i + 2} colours.", str(i)
    )
    for i, thing in enumerate(["chairs", "doors", "cups", "trees", "boats", "stones"], 3)
]


def test_a_leak_is_found_inside_other_words_with_its_evidence() -> None:
    leak = problem("leak", f"Warm up first. {TRAIN.replace('$', '')} Explain.")
    (found,) = find_contamination([*CLEAN, leak], BENCHMARK)
    assert (found.problem_id, found.benchmark_id, found.same_gold) == ("leak", "bench:1", True)
    assert found.score > 0.9
    assert "kilometersperhour" in found.shared_text
    assert (found.source, found.row) == ("t.jsonl", 1)


def test_stock_phrases_are_no_leak() -> None:
    assert find_contamination(CLEAN, BENCHMARK) == []


def test_a_variant_with_other_numbers_and_answer_is_no_leak() -> None:
    variant = problem("v", TRAIN.replace("60", "45").replace("90", "72").replace("10", "11"), "200")
    assert find_contamination([*CLEAN, variant], BENCHMARK) == []


def test_a_leak_with_a_wrong_gold_is_still_a_leak() -> None:
    (found,) = find_contamination([*CLEAN, problem("v", TRAIN, "7")], BENCHMARK)
    assert found.same_gold is False


def test_contaminated_rows_are_dropped_or_marked() -> None:
    rows = [*CLEAN, problem("leak", TRAIN)]
    found = find_contamination(rows, BENCHMARK)
    assert [p.problem_id for p in mark_contaminated(rows, found)] == [p.problem_id for p in CLEAN]
    marked = list(mark_contaminated(rows, found, drop=False))
    assert marked[-1].contaminated_by == ("bench:1",)
    assert len(marked) == len(rows)


def test_a_clean_row_that_shares_an_id_with_a_contaminated_one_is_kept() -> None:
    rows = [problem("t:1", TRAIN), problem("t:1", "What is $2 + 2$?", "4")]
    found = find_contamination(rows, BENCHMARK)
    assert list(mark_contaminated(rows, found)) == rows[1:]


def test_an_empty_benchmark_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no problems"):
        find_contamination(CLEAN, [])
