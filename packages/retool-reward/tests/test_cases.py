"""Labelled pairs: the shared ones, on the main thread and off it; golds; our own in cases.jsonl."""

import json
import threading
from pathlib import Path

import pytest

from retool_reward import Grade, GradeConfig, grade

MUST_BE_RIGHT = {"hack", "prompt", "security", "nested"}


def rows(shared: Path) -> list[dict[str, object]]:
    text = (shared / "cases" / "reward_cases.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def check(cases: list[dict[str, object]], grades: list[Grade]) -> None:
    wrong = {
        case["id"]: found.correct
        for case, found in zip(cases, grades, strict=True)
        if found.correct is not case["expected"]
    }
    plain = [case for case in cases if not case["policy"]]
    assert len([case for case in plain if case["id"] not in wrong]) >= 0.97 * len(plain), wrong
    assert not [case["id"] for case in plain if case["id"] in wrong and not case["expected"]]
    for case in cases:
        assert not (case["category"] in MUST_BE_RIGHT and case["id"] in wrong), case


def test_the_shared_cases_are_right(shared: Path) -> None:
    cases = rows(shared)
    check(cases, [grade(str(case["prediction_text"]), str(case["gold"])) for case in cases])


def test_they_are_right_off_the_main_thread(shared: Path) -> None:
    cases = rows(shared)
    grades: list[Grade] = []

    def work() -> None:
        grades.extend(grade(str(case["prediction_text"]), str(case["gold"])) for case in cases)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    check(cases, grades)


def golds(shared: Path, name: str) -> list[str]:
    text = (shared / "data" / name).read_text()
    records = [json.loads(line) for line in text.splitlines()]
    keys = ("answer", "expected_answer", "output")
    return [str(next(record[key] for key in keys if key in record)) for record in records]


AIME = [
    *(f"aime{year}_llmeval.jsonl" for year in (24, 25, 26)),
    *(f"aime{year}_{source}.jsonl" for year in (24, 25) for source in ("nemoskills", "retool")),
]
# Golds of MATH-500 that are spelled apart and say the same, by RULES.md.
ALIKE = [
    {"36", r"\$36", r"36^\circ", "40_9"},
    *({number, rf"{number}^\circ"} for number in ("30", "90", "120")),
    *({"54", "204_5"}, {"42", "52_8"}, {"5", "x=5"}, {"15", r"15\mbox{ cm}^2"}),
    *({"10080", r"10,\!080"}, {r"\frac14", r"\frac{1}{4}"}, {r"2\sqrt{5}", r"2 \sqrt{5}"}),
    *({r"\pi", r"180^\circ"}, {"-2,1", "1,-2"}, {"-2,1", "(-2,1)"}),
]


@pytest.mark.parametrize("name", ["math500_llmeval.jsonl", *AIME])
def test_golds_equal_themselves_and_no_other(shared: Path, name: str) -> None:
    distinct = sorted(set(golds(shared, name)))
    for gold in distinct:
        assert grade(f"Answer: \\boxed{{{gold}}}", gold).correct is True, gold
    for mine in distinct:
        for gold in distinct:
            if mine != gold and not any({mine, gold} <= alike for alike in ALIKE):
                assert grade(f"Answer: \\boxed{{{mine}}}", gold).correct is False, (mine, gold)


CASES = Path(__file__).with_name("cases.jsonl").read_text().splitlines()
PAIRS: list[dict[str, str]] = [json.loads(line) for line in CASES]
# A busy machine may be slow to agree, but a wrong answer must not wait for it.
PATIENT = GradeConfig(symbolic_time_s=20.0)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair['kind']}: {pair['why']}")
def test_pairs_that_graders_get_wrong(pair: dict[str, str]) -> None:
    response = pair.get("response", f"So.\n\nAnswer: \\boxed{{{pair.get('answer')}}}")
    config = PATIENT if pair["expected"] else GradeConfig()
    assert grade(response, pair["gold"], config).correct is pair["expected"]
