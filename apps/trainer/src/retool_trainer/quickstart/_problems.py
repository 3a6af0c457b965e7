"""Eight families of arithmetic problems whose answers a tiny model cannot compute in its head.

Each family has a few wordings (templates), the program that solves it, and a program with the
mistake that a careless programmer makes in it. Three levels set the size of the numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NUM_LEVELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticProblem:
    """One problem: the question, the answer, and two programs."""

    question: str
    answer: int
    code: str
    flawed_code: str
    """A program that runs and prints another number than the answer."""
    template: int
    """Index into all templates of all families."""
    level: int


@dataclass(frozen=True, slots=True)
class _Family:
    wordings: tuple[str, ...]
    code: str
    flawed_code: str
    draw: Callable[[random.Random, int], tuple[int, ...]]
    """(rng, level) -> the values of a, b, c that wordings and programs name."""


def _digits(rng: random.Random, num_digits: int) -> int:
    return rng.randrange(10 ** (num_digits - 1), 10**num_digits)


def _pair(rng: random.Random, level: int) -> tuple[int, ...]:
    return _digits(rng, level + 2), _digits(rng, level + 2)


def _descending_pair(rng: random.Random, level: int) -> tuple[int, ...]:
    low, high = sorted(_pair(rng, level))
    return high + 1, low


def _factors(rng: random.Random, level: int) -> tuple[int, ...]:
    return _digits(rng, level + 2), _digits(rng, 2)


def _division(rng: random.Random, level: int) -> tuple[int, ...]:
    return _digits(rng, level + 3), _digits(rng, 2)


def _factors_and_term(rng: random.Random, level: int) -> tuple[int, ...]:
    return *_factors(rng, level), _digits(rng, 2)


def _range(rng: random.Random, level: int) -> tuple[int, ...]:
    low = _digits(rng, 1 + level)
    return low, low + _digits(rng, 2)


def _stepped_range(rng: random.Random, level: int) -> tuple[int, ...]:
    return *_range(rng, level), rng.randrange(2, 10)


_FAMILIES = (
    _Family(
        ("What is {a} plus {b}?", "Add {a} and {b}.", "Find {a}+{b}."),
        "print({a}+{b})",
        "print({a}-{b})",
        _pair,
    ),
    _Family(
        ("What is {a} minus {b}?", "Take {b} from {a}.", "Find {a}-{b}."),
        "print({a}-{b})",
        "print({b}-{a})",
        _descending_pair,
    ),
    _Family(
        ("What is {a} times {b}?", "Multiply {a} by {b}.", "Find {a}*{b}."),
        "print({a}*{b})",
        "print({a}+{b})",
        _factors,
    ),
    _Family(
        ("What is the remainder of {a} by {b}?", "Find {a} mod {b}."),
        "print({a}%{b})",
        "print({a}//{b})",
        _division,
    ),
    _Family(
        ("How many times does {b} fit in {a}?", "Find the whole part of {a}/{b}."),
        "print({a}//{b})",
        "print({a}%{b})",
        _division,
    ),
    _Family(
        (
            "Multiply {a} by {b}, then add {c}.",
            "Find {a}*{b}+{c}.",
            "What is {c} more than {a}*{b}?",
        ),
        "print({a}*{b}+{c})",
        "print({a}*{b}*{c})",
        _factors_and_term,
    ),
    _Family(
        ("Sum the numbers from {a} to {b}.", "What is the sum of {a} to {b}?"),
        "print(sum(range({a},{b}+1)))",
        "print(sum(range({a},{b})))",
        _range,
    ),
    _Family(
        (
            "Sum every {c}th number from {a} to {b}.",
            "Start at {a}, step {c}, stop at {b}: what is the sum?",
            "What is the sum of {a} to {b} by {c}?",
        ),
        "print(sum(range({a},{b}+1,{c})))",
        "print(sum(range({a},{b}+1)))",
        _stepped_range,
    ),
)

_TEMPLATES = tuple((family, wording) for family in _FAMILIES for wording in family.wordings)
NUM_TEMPLATES = len(_TEMPLATES)


def _draw(rng: random.Random) -> ArithmeticProblem:
    template, level = rng.randrange(NUM_TEMPLATES), rng.randrange(NUM_LEVELS)
    family, wording = _TEMPLATES[template]
    while True:
        values = dict(zip("abc", family.draw(rng, level), strict=False))
        code, flawed_code = family.code.format(**values), family.flawed_code.format(**values)
        answer = _value(code)
        # A flaw that happens to print the right number teaches nothing.
        if answer != _value(flawed_code):
            break
    return ArithmeticProblem(
        question=wording.format(**values),
        answer=answer,
        code=code,
        flawed_code=flawed_code,
        template=template,
        level=level,
    )


def _value(code: str) -> int:
    # Our own templates over integers, never model output.
    expression = code.removeprefix("print(").removesuffix(")")
    return eval(expression, {"__builtins__": {"sum": sum, "range": range}})


def _distinct(seed: int, count: int, taken: frozenset[str]) -> Iterator[ArithmeticProblem]:
    rng = random.Random(seed)
    seen = set(taken)
    while count:
        problem = _draw(rng)
        if problem.question not in seen:
            seen.add(problem.question)
            count -= 1
            yield problem


def heldout_problems(count: int, *, seed: int) -> list[ArithmeticProblem]:
    """Draw `count` distinct problems from a seed that nothing else uses."""
    return list(_distinct(seed, count, frozenset()))


def train_problems(
    count: int, *, seed: int, exclude: list[ArithmeticProblem]
) -> list[ArithmeticProblem]:
    """Draw `count` distinct problems, none of whose questions is in `exclude`."""
    return list(_distinct(seed, count, frozenset(problem.question for problem in exclude)))
