"""The quickstart's problems, demonstrations and tokenizer."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from retool_trainer.quickstart import (
    build_tokenizer,
    clean_demonstration,
    copy_exercise,
    heldout_problems,
    mixed_demonstration,
    train_problems,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [
        text
        for problem in train_problems(2000, seed=0, exclude=[])
        for text in (
            problem.question,
            f'{{"name": "code_interpreter", "arguments": {{"code": "{problem.code}"}}}}',
            f"Answer: \\boxed{{{problem.answer}}}",
            "user\nassistant\n",
        )
    ]
    return build_tokenizer(texts)


def test_no_training_problem_is_held_out_and_none_repeats() -> None:
    heldout = heldout_problems(256, seed=20_261_201)
    train = train_problems(4096, seed=0, exclude=heldout)
    questions = [problem.question for problem in [*heldout, *train]]
    assert len(set(questions)) == len(questions) == 4352


def test_every_flaw_is_one() -> None:
    for problem in heldout_problems(500, seed=1):
        assert _output(problem.code) == problem.answer
        assert _output(problem.flawed_code) != problem.answer


def _output(code: str) -> int:
    printed: list[int] = []
    exec(code, {"print": printed.append})
    return printed[0]


def test_the_same_seed_draws_the_same_problems() -> None:
    assert heldout_problems(50, seed=3) == heldout_problems(50, seed=3)
    assert heldout_problems(50, seed=3) != heldout_problems(50, seed=4)


def test_mixed_demonstrations_are_worse_for_harder_templates() -> None:
    problems = train_problems(4000, seed=0, exclude=[])
    rng = random.Random(0)
    good = {True: [0, 0], False: [0, 0]}
    for problem in problems:
        row = mixed_demonstration(rng, problem)
        hard = problem.template > 10 and problem.level > 0
        good[hard][0] += row.programs[-1:] == (problem.code,)
        good[hard][1] += 1
    easy_share, hard_share = (good[key][0] / good[key][1] for key in (False, True))
    assert 0.1 < hard_share < easy_share < 0.65


def test_a_clean_demonstration_ends_on_the_right_program_and_sometimes_begins_with_an_error() -> (
    None
):
    rng = random.Random(0)
    rows = [(p, clean_demonstration(rng, p)) for p in train_problems(2000, seed=0, exclude=[])]
    assert all(row.programs[-1] == problem.code for problem, row in rows)
    fixed = sum(len(row.programs) == 2 for _, row in rows)
    assert 20 <= fixed <= 120


def test_copy_exercises_repeat_what_is_asked() -> None:
    row = copy_exercise(random.Random(0))
    assert row.question == f"Copy {row.answer}"


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_the_tokenizer_gives_printable_ascii_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens_and_the_vocabulary_is_full(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 224
    assert tokenizer.encode("12345").tokens == list("12345")


def test_a_character_outside_ascii_becomes_a_question_mark(tokenizer: Tokenizer) -> None:
    assert set(tokenizer.decode(tokenizer.encode("é").ids)) == {"?"}
