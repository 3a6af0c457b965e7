from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_data import (
    Problem,
    Renderer,
    Segment,
    SpanKind,
    Speaker,
    TokenizeCounts,
    ToolCall,
    TooLongError,
    Trajectory,
    Turn,
    renderer_hash,
    tokenize,
    tokenize_all,
)

PROBLEM = Problem(problem_id="p1", statement="What is 6 * 7?", gold="42")
CALL = ToolCall(name="code_interpreter", arguments={"code": "print(6 * 7)"})


def make(*turns: Turn) -> Trajectory:
    return Trajectory.from_turns(PROBLEM, turns)


def two_turns() -> Trajectory:
    return make(Turn(text="Compute.", calls=(CALL,), results=("42",)), Turn(text="It is 42."))


def trained_text(sample_ids: tuple[int, ...], mask: tuple[int, ...]) -> bytes:
    return bytes(i for i, m in zip(sample_ids, mask, strict=True) if m and i < 256)


def test_only_the_policys_words_are_trained(renderer: Any) -> None:
    sample = tokenize(two_turns(), renderer)
    text = trained_text(sample.ids, sample.mask).decode()
    assert text == "Compute.\n<call>code_interpreter {'code': 'print(6 * 7)'}It is 42."


def test_spans_name_prompt_turns_and_observations(renderer: Any) -> None:
    sample = tokenize(two_turns(), renderer)
    assert [span.kind for span in sample.spans] == [
        SpanKind.PROMPT,
        SpanKind.TURN,
        SpanKind.OBSERVATION,
        SpanKind.TURN,
    ]
    for span in sample.spans:
        assert set(sample.mask[span.start : span.end]) == {int(span.kind is SpanKind.TURN)}


def test_ids_are_what_a_rollout_of_the_same_turns_appends(renderer: Any) -> None:
    ids = renderer.prompt_ids([{"role": "user", "content": PROBLEM.prompt}], [])
    ids += renderer.turn_ids("Compute.", [{"name": CALL.name, "arguments": CALL.as_dict()}])
    ids += renderer.observation_ids(["42"])
    ids += renderer.turn_ids("It is 42.", [])
    assert tokenize(two_turns(), renderer).ids == tuple(ids)


def test_words_of_another_speaker_are_read_but_not_trained(renderer: Any) -> None:
    first = Turn(text="Bad try.", calls=(CALL,), results=("42",), trained=False)
    sample = tokenize(make(first, Turn(text="Good.")), renderer)
    assert trained_text(sample.ids, sample.mask) == b"Good."


def test_a_turn_of_mixed_speakers_is_refused() -> None:
    segments = (Segment.of_text("a"), Segment.of_text("b", speaker=Speaker.OTHER))
    with pytest.raises(ValueError, match="mixes the speakers policy and other"):
        Trajectory(problem=PROBLEM, segments=segments).turns()


def test_text_between_a_call_and_its_result_is_refused() -> None:
    segments = (Segment.of_call("t", {}), Segment.of_text("b"), Segment.of_result("1"))
    with pytest.raises(ValueError, match="text after a call"):
        Trajectory(problem=PROBLEM, segments=segments).turns()


def test_a_missing_result_in_the_middle_is_refused(renderer: Any) -> None:
    broken = make(Turn(text="a", calls=(CALL, CALL), results=("1",)), Turn(text="b"))
    with pytest.raises(ValueError, match="2 calls but 1 results"):
        tokenize(broken, renderer)


def test_a_call_that_ends_the_trajectory_needs_no_result(renderer: Any) -> None:
    sample = tokenize(make(Turn(text="a", calls=(CALL,))), renderer)
    assert sample.spans[-1].kind is SpanKind.TURN


def test_answer_tags_belong_to_the_retool_dialect_only() -> None:
    segments = (Segment.of_text("So"), Segment.of_answer("\\boxed{42}"))
    trajectory = Trajectory(problem=PROBLEM, segments=segments)
    assert trajectory.turns()[0].text == "So\n\n\\boxed{42}"
    assert trajectory.turns(layout="retool")[0].text == ("So\n\n<answer>\n\\boxed{42}\n</answer>")


def test_too_long_rows_are_dropped_whole_and_counted(renderer: Any) -> None:
    counts = TokenizeCounts()
    long = make(Turn(text="x" * 500))
    kept = list(tokenize_all([two_turns(), long], renderer, max_tokens=200, counts=counts))
    assert [len(sample.ids) for sample in kept] == [len(tokenize(two_turns(), renderer).ids)]
    assert (counts.rows, counts.too_long) == (1, 1)
    assert counts.tokens == len(kept[0].ids)


def test_too_long_rows_can_be_refused(renderer: Any) -> None:
    with pytest.raises(TooLongError, match="more than 10"):
        list(tokenize_all([two_turns()], renderer, max_tokens=10, too_long="refuse"))


def test_the_renderer_hash_sees_a_changed_frame(renderer: Any) -> None:
    class Other(type(renderer)):  # type: ignore[misc]
        def observation_ids(self, replies: Any) -> list[int]:
            return [*super().observation_ids(replies), 10]

    assert renderer_hash(renderer) == renderer_hash(type(renderer)())
    assert renderer_hash(renderer) != renderer_hash(Other())


texts = st.text(max_size=20)
turns_strategy = st.lists(
    st.builds(
        lambda text, codes: Turn(
            text=text,
            calls=tuple(ToolCall(name="t", arguments={"code": code}) for code in codes),
            results=tuple(codes),
        ),
        texts,
        st.lists(texts, max_size=3),
    ),
    max_size=4,
)


@given(turns_strategy)
def test_every_trajectory_covers_its_ids_and_masks_by_span(turns: list[Turn]) -> None:
    from_conftest: Renderer = _renderer()
    sample = tokenize(Trajectory.from_turns(PROBLEM, turns), from_conftest)
    assert len(sample.ids) == len(sample.mask)
    for span in sample.spans:
        assert all(bit == span.trained for bit in sample.mask[span.start : span.end])


def _renderer() -> Any:
    class Tiny:
        name = "tiny"

        def prompt_ids(self, messages: Any, tools: Any) -> list[int]:
            return [1]

        def turn_ids(self, text: str, calls: Any) -> list[int]:
            return [2, *map(ord, text)]

        def observation_ids(self, replies: Any) -> list[int]:
            return [3]

    return Tiny()


def test_threads_give_the_same_samples_in_the_same_order_and_stop_with_the_reader(renderer):
    rows = [two_turns() for _ in range(50)]
    alone = list(tokenize_all(rows, renderer))
    assert list(tokenize_all(rows, renderer, num_threads=4)) == alone
    read: list[int] = []

    def reading():
        for number, row in enumerate(rows):
            read.append(number)
            yield row

    assert next(tokenize_all(reading(), renderer, num_threads=2)) == alone[0]
    assert len(read) < 20  # a few rows ahead, never all
