"""The order of the data: complete, shuffled, and a function of the position alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retool_trainer.stages._stream import Stream


@given(st.integers(1, 30), st.integers(0, 5), st.lists(st.integers(0, 9), max_size=12))
def test_each_epoch_has_every_item_once_however_it_is_cut(
    size: int, seed: int, takes: list[int]
) -> None:
    stream = Stream(list(range(size)), seed)
    drawn = [item for count in takes for item in stream.take(count)]
    for start in range(0, len(drawn) - size + 1, size):
        assert sorted(drawn[start : start + size]) == list(range(size))


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 20))
def test_a_position_is_all_that_a_resumed_stream_needs(size: int, start: int, count: int) -> None:
    whole = Stream(list(range(size)), seed=1)
    whole.take(start)
    assert Stream(list(range(size)), seed=1, position=start).take(count) == whole.take(count)


def test_epochs_are_shuffled_differently() -> None:
    stream = Stream(list(range(50)), seed=0)
    assert stream.take(50) != stream.take(50)
