"""Inputs made to hang, crash or fool a grader get a verdict, on any thread."""

import threading
import time

import pytest

from retool_reward import Grade, Reason, grade
from retool_reward._bench_cases import HOSTILE, symbolic_pairs

# Ten times what a quiet machine needs; the bench has the real targets.
_BOUND_S = 15.0


@pytest.mark.parametrize(("answer", "gold"), HOSTILE, ids=lambda text: str(text)[:24])
def test_hostile_answers_are_wrong_within_bounds(answer: str, gold: str) -> None:
    started = time.monotonic()
    found = grade(f"\\boxed{{{answer}}}", gold)
    assert found.correct is False
    assert found.reason is not Reason.ABORTED
    assert time.monotonic() - started < _BOUND_S


def test_they_are_wrong_off_the_main_thread_too() -> None:
    grades: list[Grade] = []

    def work() -> None:
        grades.extend(grade(f"\\boxed{{{answer}}}", gold) for answer, gold in HOSTILE[:12])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert [found.correct for found in grades] == [False] * 24


@pytest.mark.parametrize(
    "text",
    [
        "<code>" * 20_000,
        "<interpreter>" * 20_000,
        "</interpreter>" * 20_000,
        "```python" * 10_000,
        "\\boxed{" * 20_000,
        "\\boxed{1} " * 20_000,
        "\\boxed{1\\} " * 8_000,
        "\\boxed{1}\\text{" + " " * 100_000 + "\\boxed{2}",
        "<answer>" * 20_000,
        "Answer: " * 20_000,
        "Answer:" + " " * 200_000 + "x",
        "<|im_start|>" * 20_000,
        "\n" * 200_000,
        "." * 200_000 + " the answer is",
    ],
    ids=lambda text: text[:16],
)
def test_reading_a_response_takes_linear_time(text: str) -> None:
    started = time.monotonic()
    grade(text, "42")
    assert time.monotonic() - started < _BOUND_S


def test_the_hostile_gold_is_the_data_sets_fault() -> None:
    found = grade("\\boxed{42}", "\\int_0^1 e^{e^{x\\sin x}}\\sin(\\cos(x^{x}))\\,dx")
    assert found.correct is False
    assert found.reason in (Reason.TIMEOUT, Reason.MISMATCH)


def test_the_benchs_symbolic_pairs_are_equal_and_distinct() -> None:
    pairs = symbolic_pairs(100)
    assert len({pred for pred, _ in pairs}) == 100
    assert all(grade(f"\\boxed{{{pred}}}", gold).correct for pred, gold in pairs)
    others = [(pred, pairs[k - 20][1]) for k, (pred, _) in enumerate(pairs)]
    wrong = [grade(f"\\boxed{{{pred}}}", gold).correct for pred, gold in others]
    assert wrong.count(False) >= 90  # some templates do not depend on their number
