import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_data import Problem, split_frame, with_answer_form
from retool_data._frames import ANSWER_PREFIX, ANSWER_SUFFIX, BOXED_PREFIX

QUESTION = "The sum of three numbers is 7. Solve for them."


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [
        (ANSWER_PREFIX, ANSWER_SUFFIX),
        (BOXED_PREFIX, ANSWER_SUFFIX),
        ("", "\nPlease reason step by step, and put your final answer within \\boxed{}."),
        ("", ' Let\'s think step by step and output the final answer after "####".'),
        ("", "\nThe answer format must be: \\boxed{'The final answer goes here.'}"),
        (
            "Solve the following problem step by step. You can write code.\n\n*user question:*\n",
            "\n\nRemember to place the final answer in the last part using the format: \n\\boxed{}",
        ),
        ("", ""),
    ],
)
def test_known_frames_are_cut_as_a_whole(prefix: str, suffix: str) -> None:
    assert split_frame(prefix + QUESTION + suffix) == (prefix, QUESTION, suffix)


def test_a_question_that_begins_with_letters_of_the_prefix_survives() -> None:
    # str.lstrip(prefix) would leave "7. Solve for them." less its tail.
    assert QUESTION.lstrip(ANSWER_PREFIX) != QUESTION
    assert split_frame(ANSWER_PREFIX + QUESTION + ANSWER_SUFFIX)[1] == QUESTION


@given(st.text())
def test_the_parts_always_join_to_the_prompt(prompt: str) -> None:
    assert "".join(split_frame(prompt)) == prompt


SIMPLE = (  # one regex for each suffix, as slow as it is plain
    r'\s*Remember to put your answer on its own line after "Answer:"\.\s*\Z',
    r"\s*\n\s*Remember(?: to place the final answer in the last part|: include at least one)",
    r"\s*\n\s*The answer format must be: (?s:.*)",
    (
        r"\s*(?:Please|Let's) (?:reason|think) step by step,? and (?:put|output) "
        r"(?:your|the) final answer (?:within|in|after) (?:\\boxed\{\}|\"####\")\.?\s*\Z"
    ),
)
PARTS = st.sampled_from(
    [
        " ",
        "\n",
        "\x1c",
        "x",
        "Remember",
        ' to put your answer on its own line after "Answer:".',
        " to place the final answer in the last part",
        ": include at least one",
        "The answer format must be: ",
        "Please reason step by step, and put your final answer within \\boxed{}.",
        'Let\'s think step by step and output the final answer after "####"',
    ]
)


@given(st.lists(PARTS, max_size=9).map("".join))
def test_suffixes_are_found_where_a_plain_regex_finds_them(prompt: str) -> None:
    matches = (re.search(pattern, prompt) for pattern in SIMPLE)
    end = next((match.start() for match in matches if match), len(prompt))
    assert split_frame(prompt) == ("", prompt[:end], prompt[end:])


def test_the_answer_form_is_rewritten_to_the_box_that_the_loop_stops_on() -> None:
    problem = Problem(
        problem_id="p", statement=QUESTION, prefix=ANSWER_PREFIX, suffix=ANSWER_SUFFIX
    )
    boxed = with_answer_form(problem, "boxed")
    assert "of the form Answer: \\boxed{$Answer} where" in boxed.prompt
    assert boxed.statement == QUESTION
    assert boxed.provenance.steps == ("answer_form:boxed",)
    assert with_answer_form(boxed, "answer").prompt == problem.prompt
    assert with_answer_form(boxed, "boxed") is boxed


def test_an_unknown_answer_form_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        with_answer_form(Problem(problem_id="p", statement="x"), "xml")
