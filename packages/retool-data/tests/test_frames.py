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
