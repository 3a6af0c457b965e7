"""Frames, captured output and its cut: properties of the pure parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_sandbox._bench import percentile
from retool_sandbox._frames import FrameError, FrameReader, pack, unpack
from retool_sandbox._guest._capture import Capture
from retool_sandbox._guest._scratch import measure, remove_tree
from retool_sandbox._text import join_cut

heads = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key != "blobs"), st.integers() | st.text()
)


@given(heads, st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_frames_survive_any_split_of_the_stream(
    head: dict[str, object], blobs: list[bytes], data: st.DataObject
) -> None:
    stream = pack(head, blobs) * 3
    reader = FrameReader()
    bodies: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        bodies += reader.feed(stream[:size])
        stream = stream[size:]
    assert [unpack(body) for body in bodies] == [(head, blobs)] * 3


@given(st.binary(max_size=200))
def test_unpack_of_any_bytes_gives_a_frame_or_a_frame_error(body: bytes) -> None:
    try:
        head, blobs = unpack(body)
    except FrameError:
        return
    assert isinstance(head, dict)
    assert all(isinstance(blob, bytes) for blob in blobs)


def test_reader_refuses_a_frame_that_claims_too_much() -> None:
    with pytest.raises(FrameError, match="4294967295"):
        FrameReader(1000).feed(b"\xff\xff\xff\xff")


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(2, 64))
def test_capture_keeps_head_and_tail_in_bounded_memory(parts: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for part in parts:
        capture.add(part)
    whole = b"".join(parts)
    head, tail = capture.parts()
    assert capture.total == len(whole)
    assert len(head) + len(tail) <= limit
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert capture.cut_bytes == len(whole) - len(head) - len(tail)
    if len(whole) <= limit // 2 * 2:
        assert head + tail == whole


@given(st.text(max_size=300), st.integers(2, 100))
def test_cut_text_has_one_marker_and_no_broken_character(text: str, limit: int) -> None:
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    capture = Capture(limit)
    capture.add(data)
    shown = join_cut(*capture.parts(), capture.cut_bytes)
    if capture.cut_bytes == 0:
        assert shown.encode() == data
        return
    assert shown.count(" bytes cut ...]\n") >= 1
    before, after = shown.split("\n[... ", 1)
    kept = len(before.encode()) + len(after.split(" bytes cut ...]\n", 1)[1].encode())
    missing = int(after.split(" ", 1)[0])
    assert kept + missing == len(data)
    assert data.decode().startswith(before)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentile_is_one_of_the_values(values: list[float], share: float) -> None:
    assert min(values) <= percentile(values, share) <= max(values)
    assert percentile(values, share) in values


def test_tree_of_any_depth_and_mode_is_removed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import os

    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (top / "closed").mkdir()
    (top / "closed" / "file").write_text("x")
    (top / "closed").chmod(0)
    (top / "link").symlink_to("/")
    assert measure(str(top), 4096)[2] > 60
    remove_tree(str(top))
    assert not top.exists()
