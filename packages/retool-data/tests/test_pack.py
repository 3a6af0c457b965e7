import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_data import Span, SpanKind, TokenSample, pack, pack_lengths
from retool_data._pack import _fill


def sample(name: str, length: int) -> TokenSample:
    span = Span(start=0, end=length, kind=SpanKind.TURN, turn=0, trained=True)
    return TokenSample(problem_id=name, ids=tuple(range(length)), mask=(1,) * length, spans=(span,))


def first_fit_decreasing(lengths: list[int], room: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for chosen in bins:
            if sum(lengths[i] for i in chosen) + lengths[item] <= room:
                chosen.append(item)
                break
        else:
            bins.append([item])
    return bins


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 120))
def test_bin_by_bin_the_longest_that_fits_is_first_fit_decreasing(
    lengths: list[int], room: int
) -> None:
    plain = _fill(lengths, room, in_pairs=False)
    assert plain == first_fit_decreasing(lengths, room)
    assert len(pack_lengths(lengths, room)) <= len(plain)


def test_pairs_that_fill_a_pack_are_found() -> None:
    lengths = [6, 6, 5, 4, 3, 3]
    assert first_fit_decreasing(lengths, 14) == [[0, 1], [2, 3, 4], [5]]
    assert pack_lengths(lengths, 14) == [[0, 4, 2], [1, 5, 3]]


def test_rows_as_long_as_those_of_retool_fill_the_packs() -> None:
    random_ = random.Random(0)
    lengths = [int(random_.triangular(1163, 4742, 2000)) for _ in range(5000)]
    bins = pack_lengths(lengths, 9216)
    assert sum(lengths) / (9216 * len(bins)) > 0.99


@given(st.lists(st.integers(1, 50), max_size=60))
def test_no_sample_is_lost_split_or_repeated(lengths: list[int]) -> None:
    samples = [sample(str(i), length) for i, length in enumerate(lengths)]
    packs = pack(samples, 64)
    assert sorted(name for p in packs for name in p.problem_ids) == sorted(
        s.problem_id for s in samples
    )
    for p in packs:
        for name, start, end in zip(p.problem_ids, p.cu_seqlens, p.cu_seqlens[1:], strict=False):
            assert p.ids[start:end] == samples[int(name)].ids
            assert p.position_ids[start:end] == tuple(range(end - start))


def test_a_sample_longer_than_the_pack_is_refused() -> None:
    with pytest.raises(ValueError, match="sample 1 has 9 tokens; a pack holds 1 to 8"):
        pack_lengths([8, 9], 8)


def test_nothing_packs_into_nothing() -> None:
    assert pack([], 8) == []


def test_a_sample_whose_mask_has_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 ids but 1 mask"):
        TokenSample(problem_id="x", ids=(1, 2), mask=(1,), spans=())
