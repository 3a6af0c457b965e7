"""The reward tables, their order, and who may count as a tool user."""

import math
import statistics
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_reward import (
    Preset,
    Sample,
    count_tool_turns,
    overlong_penalty,
    shape,
    shape_group,
    with_terms,
)

turns = st.integers(min_value=0, max_value=1_000)
presets = st.sampled_from(list(Preset))


@pytest.mark.parametrize(
    ("correct", "tool_turns", "total"),
    [
        (True, 0, 1.0),
        (True, 1, 1.05),
        (True, 4, 1.2),
        (True, 40, 1.2),
        (False, 0, 0.0),
        (False, 1, 0.02),
        (False, 3, 0.06),
        (False, 5, 0.1),
        (False, 50, 0.1),
    ],
)
def test_the_default_is_the_retool_table(correct: bool, tool_turns: int, total: float) -> None:
    reward = shape(correct, tool_turns)
    assert reward.total == total
    assert sum(reward.components.values()) == total


@given(turns)
def test_slime_and_verl_presets_have_their_bits(n: int) -> None:
    assert shape(False, n, preset="slime").total == min(-0.6, -1.0 + (n - 2) / 2 * 0.1)
    messages = 2 + 2 * n
    assert shape(False, n, preset="verl").total == min(-0.6, -1.0 + (messages - 2) / 2 * 0.1)
    assert shape(True, n, preset="slime").total == shape(True, n, preset="verl").total == 1.0


@given(turns, turns, presets, st.sampled_from(["completed", "truncated"]))
def test_a_correct_answer_always_earns_more_than_a_wrong_one(
    mine: int, theirs: int, preset: Preset, status: str
) -> None:
    right, wrong = shape(True, mine, status, preset), shape(False, theirs, status, preset)
    assert right.total is not None
    assert wrong.total is not None
    assert right.total > wrong.total


@pytest.mark.parametrize("bad", [-1, None, float("nan"), 1.0, True, "2"])
def test_a_count_that_is_no_count_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="tool_turns"):
        shape(True, bad)  # type: ignore[arg-type]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="status"):
        shape(True, 0, "done")
    with pytest.raises(ValueError, match="bonus"):
        shape(True, 0, preset="bonus")


@pytest.mark.parametrize("status", ["aborted", "failed"])
@pytest.mark.parametrize("preset", list(Preset))
def test_our_own_failures_and_ungradable_answers_earn_nothing_at_all(
    status: str, preset: Preset
) -> None:
    assert shape(False, 0, status, preset).total is None
    assert shape(None, 3, "completed", preset).total is None


def test_truncated_is_graded_zeroed_or_masked() -> None:
    assert shape(True, 1, "truncated").total == 1.05
    assert shape(True, 1, "truncated", truncated="zero").total == 0.0
    assert shape(True, 1, "truncated", truncated="mask").total is None


groups = st.lists(
    st.builds(Sample, correct=st.sampled_from([True, False, None]), tool_turns=st.integers(0, 12)),
    min_size=1,
    max_size=16,
)


@given(groups)
def test_success_gated_never_flips_the_sign_of_the_accuracy_advantage(group: list[Sample]) -> None:
    pairs = [
        (float(sample.correct), reward.total)
        for sample, reward in zip(group, shape_group(group, "success_gated"), strict=True)
        if sample.correct is not None and reward.total is not None
    ]
    assert all(
        reward.total is None
        for sample, reward in zip(group, shape_group(group, "success_gated"), strict=True)
        if sample.correct is None
    )
    if not pairs:
        return
    mean_accuracy = statistics.fmean(accuracy for accuracy, _ in pairs)
    mean_reward = statistics.fmean(total for _, total in pairs)
    for accuracy, total in pairs:
        if 0.0 < mean_accuracy < 1.0:
            assert math.copysign(1, total - mean_reward) == math.copysign(
                1, accuracy - mean_accuracy
            )
        else:
            assert total == accuracy  # one outcome only: no bonus, so no advantage either


@given(groups)
def test_other_presets_do_not_look_at_the_group(group: list[Sample]) -> None:
    for sample, reward in zip(group, shape_group(group), strict=True):
        assert reward == shape(sample.correct, sample.tool_turns, sample.status)


@dataclass(frozen=True)
class Record:
    name: str
    arguments: str | dict[str, str] | None
    ok: bool
    outcome: str = field(default="ok")


calls = st.builds(
    Record,
    name=st.sampled_from(["code_interpreter", "search"]),
    arguments=st.sampled_from(["print(1)", "print(1) ", "print(2)", {"code": "print(1)"}, None]),
    ok=st.booleans(),
)


@given(st.lists(calls))
def test_only_distinct_calls_that_worked_count(records: list[Record]) -> None:
    counted = count_tool_turns(records)
    worked = [record for record in records if record.ok]
    assert counted <= len(worked)
    assert (counted == 0) == (not worked)
    assert count_tool_turns(records + worked) == counted


@given(st.lists(calls), turns, presets)
def test_a_policy_that_only_makes_failing_calls_never_out_earns_one_that_answers(
    records: list[Record], others: int, preset: Preset
) -> None:
    failing = [Record(record.name, record.arguments, ok=False) for record in records]
    erring = shape(False, count_tool_turns(failing), preset=preset)
    assert erring.total == shape(False, 0, preset=preset).total
    answering = shape(True, others, preset=preset)
    assert erring.total is not None
    assert answering.total is not None
    assert erring.total < answering.total
    wrong = shape(False, others, preset=preset)
    assert wrong.total is not None
    assert erring.total <= wrong.total


def test_a_count_from_text_is_refused() -> None:
    with pytest.raises(TypeError, match="ok must be a bool"):
        count_tool_turns([Record("code_interpreter", "1", ok="yes")])  # type: ignore[arg-type]


def test_overlong_penalty_rises_over_the_buffer() -> None:
    assert overlong_penalty(16_000, 20_480, 4_096) == 0.0
    assert overlong_penalty(16_384, 20_480, 4_096) == 0.0
    assert overlong_penalty(18_432, 20_480, 4_096) == -0.5
    assert overlong_penalty(20_480, 20_480, 4_096) == -1.0
    assert overlong_penalty(99_999, 20_480, 4_096) == -1.0
    with pytest.raises(ValueError, match="buffer_tokens"):
        overlong_penalty(10, 20, 30)


def test_terms_are_added_by_name_and_never_to_a_dropped_sample() -> None:
    reward = with_terms(shape(True, 0), overlong=-0.5, format=0.1)
    assert reward.total == pytest.approx(0.6)
    assert reward.components == {"accuracy": 1.0, "tool": 0.0, "overlong": -0.5, "format": 0.1}
    assert with_terms(shape(None, 0), overlong=-0.5).total is None
    with pytest.raises(ValueError, match="finite"):
        with_terms(shape(True, 0), overlong=math.nan)
    with pytest.raises(ValueError, match="already"):
        with_terms(shape(True, 0), tool=1.0)
