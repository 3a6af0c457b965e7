"""The shared cases: every label, on the main thread and off it."""

import json
import threading
from pathlib import Path

import pytest

from retool_reward import Grade, grade

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
    return [str(record.get("answer", record.get("output"))) for record in records]


@pytest.mark.parametrize("name", ["math500_llmeval.jsonl", "aime24_llmeval.jsonl"])
def test_golds_equal_themselves_and_no_other(shared: Path, name: str) -> None:
    all_golds = golds(shared, name)
    for gold in all_golds:
        assert grade(f"Answer: \\boxed{{{gold}}}", gold).correct is True, gold
    for step in (1, 7):
        for mine, gold in zip(all_golds, all_golds[step:], strict=False):
            if bare(mine) != bare(gold):
                assert grade(f"Answer: \\boxed{{{mine}}}", gold).correct is False, (mine, gold)


def bare(gold: str) -> str:
    """Spell a gold without its name, so that x=5 and 5 are one."""
    return gold.rpartition("=")[2].replace(" ", "")
