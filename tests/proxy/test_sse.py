"""Events of a stream: the same, wherever it was cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpumon.proxy.sse import EVENT_BYTES, SseSplitter, data_of

END = st.sampled_from([b"\n", b"\r\n", b"\r"])


TEXT = st.text(st.characters(exclude_characters="\r\n ", exclude_categories=["Cs"]), min_size=1, max_size=12)
LINE = st.tuples(st.sampled_from([b"data:", b"data: "]), TEXT)
OTHER = st.sampled_from([b": ping", b"event: x", b"id: 7", b"retry"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream as one server writes it, and the data of its events."""
    end = draw(END)
    stream, expected = draw(st.sampled_from([b"", "\ufeff".encode()])), []
    for lines in draw(st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6)):
        written = [name + text.encode() for name, text in lines]
        for other in draw(st.lists(OTHER, max_size=2)):
            written.insert(draw(st.integers(0, len(written))), other)
        stream += end.join(written) + end + end
        expected.append("\n".join(text for _, text in lines).encode())
    return stream, expected


def split(stream: bytes, at: list[int]) -> list[bytes]:
    splitter = SseSplitter()
    places = [0, *sorted(place % (len(stream) + 1) for place in at), len(stream)]
    events = [event for low, high in pairwise(places) for event in splitter.feed(stream[low:high])]
    assert b"".join(events) + splitter.rest == stream
    return [*events, splitter.rest]


@given(streams(), st.lists(st.integers(0, 500), max_size=40))
def test_the_data_are_the_same_wherever_the_stream_was_cut(told: tuple[bytes, list[bytes]], at: list[int]) -> None:
    stream, expected = told
    assert [data for data in map(data_of, split(stream, at)) if data] == expected


@given(st.text("d: \r\n{x", max_size=60).map(str.encode), st.lists(st.integers(0, 80), max_size=80))
@example(b"data: a\r\n\r\ndata: b\n\n", [9, 10, 11])
@example(b"data: a\r\rdata: b\r\r", [8, 9])
def test_nothing_is_lost_and_cuts_change_no_data(stream: bytes, at: list[int]) -> None:
    whole, parted = ([data for data in map(data_of, split(stream, cuts)) if data] for cuts in ([], at))
    assert parted == whole


@pytest.mark.parametrize("piece", [100, 4096, 1 << 20])
def test_an_event_that_is_too_large_goes_by_and_the_next_one_is_read(piece: int) -> None:
    stream = b"data: " + b"x" * (3 * EVENT_BYTES) + b"\n\n" + b"data: y\n\n"
    splitter = SseSplitter()
    events = []
    for at in range(0, len(stream), piece):
        events += splitter.feed(stream[at : at + piece])
        assert len(splitter.rest) <= EVENT_BYTES
    assert b"".join(events) == stream
    assert max(map(len, events)) <= EVENT_BYTES + 4
    assert data_of(events[-1]) == b"y"
    assert splitter.oversized


def test_a_stream_byte_by_byte_takes_no_longer_than_its_length() -> None:
    stream = b"data: " + b"x" * 100_000 + b"\n\n"
    assert data_of(split(stream, list(range(len(stream))))[0]) == b"x" * 100_000


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data: a\r\n\r\n", b"a"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: x\ndata: a\n\n", b"a"),
        (b": data: a\n\n", b""),
        (b"database: a\n\n", b""),
        (b"data\n\n", b""),
        (b"\xef\xbb\xbfdata: a\n\n", b"a"),
        (b"\n\n", b""),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes) -> None:
    assert data_of(event) == data
