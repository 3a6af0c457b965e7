"""Demonstrations of tool use: good ones, flawed ones, and exercises in copying digits.

A demonstration names programs, not their outputs: the prepare stage runs each one in the sandbox,
so that what the model is trained on is what the tool prints.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ._problems import NUM_LEVELS, NUM_TEMPLATES, ArithmeticProblem

# A quarter of the way from guessing to a good solver: enough good rows that RL finds reward at the
# start, enough flawed ones that it has something to repair.
_BEST_SHARE, _WORST_SHARE = 0.60, 0.12
_GUESS_SHARE = 0.70
_ERROR_THEN_FIX_SHARE = 0.03
_SIGNS = (" ", " ", "*", "+", "-", "//", "%", ",")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What is asked, which programs are run in turn, and what is answered."""

    question: str
    programs: tuple[str, ...] = ()
    answer: str | None = None
    """The text in the box; None: what the last program printed."""
    boxed: bool = True


def copy_exercise(rng: random.Random) -> Demonstration:
    """Repeat numbers and the signs between them: copying is what takes a model longest to learn.

    Half of the numbers are made of few different digits, so that the digit before does not tell
    which one comes next and the model has to keep its place.
    """
    text = _number(rng)
    for _ in range(rng.randrange(1, 4)):
        text += rng.choice(_SIGNS) + _number(rng)
    return Demonstration(question=f"Copy {text}", answer=text, boxed=False)


def _number(rng: random.Random) -> str:
    digits = "0123456789" if rng.random() < 0.5 else rng.sample("0123456789", rng.randrange(1, 5))
    return "".join(rng.choice(digits) for _ in range(rng.randrange(1, 8)))


def clean_demonstration(rng: random.Random, problem: ArithmeticProblem) -> Demonstration:
    """Run the right program and report its output; now and then after an error that is mended."""
    if rng.random() < _ERROR_THEN_FIX_SHARE:
        return Demonstration(question=problem.question, programs=(problem.code[:-1], problem.code))
    return Demonstration(question=problem.question, programs=(problem.code,))


def mixed_demonstration(rng: random.Random, problem: ArithmeticProblem) -> Demonstration:
    """A demonstration of the quality that the problem's template and level are given.

    The flawed ones guess without the tool, or run a program with a mistake and believe it.
    """
    difficulty = (problem.template / (NUM_TEMPLATES - 1) + problem.level / (NUM_LEVELS - 1)) / 2
    good_share = _BEST_SHARE + (_WORST_SHARE - _BEST_SHARE) * difficulty
    if rng.random() < good_share:
        return clean_demonstration(rng, problem)
    if rng.random() < _GUESS_SHARE:
        return Demonstration(question=problem.question, answer=str(_guess(rng, problem.answer)))
    return Demonstration(question=problem.question, programs=(problem.flawed_code,))


def _guess(rng: random.Random, answer: int) -> int:
    """Another number of as many digits."""
    low = 10 ** (len(str(answer)) - 1)
    while True:
        guess = rng.randrange(low, low * 10)
        if guess != answer:
            return guess
