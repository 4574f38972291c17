"""Bodies: the same payload and the same end, wherever the bytes were cut; h11 is the other opinion."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.proxy.http_body import BodyReader, body_reader
from gpumon.proxy.http_head import Framing


def fed(reader: BodyReader, data: bytes, at: list[int]) -> bytes:
    """The payload, of bytes that come cut at these places."""
    found = b""
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    for low, high in pairwise(places):
        pieces = reader.feed(data[low:high])
        assert all(pieces)
        found += b"".join(pieces)
    return found


PIECES = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
PLACES = st.lists(st.integers(0, 4000), max_size=40)


@given(PIECES, PLACES, st.sampled_from([b"", b"X-A: 1\r\nX-B: 2\r\n"]), st.binary(max_size=10))
def test_chunks_are_read_wherever_they_are_cut(
    pieces: list[bytes], at: list[int], trailers: bytes, rest: bytes
) -> None:
    reader = body_reader(Framing.CHUNKED, 0)
    framed = b"".join(b"%X ;x=y\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"000\r\n" + trailers + b"\r\n"
    assert fed(reader, framed + rest, at) == b"".join(pieces)
    assert (reader.done, reader.broken, reader.rest) == (True, False, rest)
    assert len(reader.trailers) == (2 if trailers else 0)


@given(st.binary(max_size=200), PLACES)
def test_arbitrary_bytes_are_never_read_as_more_than_h11_reads(data: bytes, at: list[int]) -> None:
    other = h11.Connection(h11.CLIENT)
    other.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    other.send(h11.EndOfMessage())
    other.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    expected, ended = b"", False
    try:
        while not ended:
            event = other.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                break
            if isinstance(event, h11.Data):
                expected += event.data
            ended = isinstance(event, h11.EndOfMessage)
    except h11.RemoteProtocolError:
        pass
    reader = body_reader(Framing.CHUNKED, 0)
    found = fed(reader, data, at)
    assert expected.startswith(found) or found.startswith(expected)
    if reader.done:
        assert ended


@pytest.mark.parametrize(
    "data",
    [
        *(b"g\r\n", b"-1\r\n", b"0x1\r\n", b" 1\r\n", b"1_0\r\n", b"\r\n", b"1\n", b"1" * 16 + b"\r\n", b"1;\x00\r\n"),
        *(b"1\r\nab", b"1\r\na\n", b"0\r\nX\r\n\r\n", b"0\r\nX: " + b"y" * 70_000, b"1;" + b"x" * 5000),
    ],
)
def test_what_is_no_chunk_breaks_the_body(data: bytes) -> None:
    reader = body_reader(Framing.CHUNKED, 0)
    reader.feed(data)
    assert (reader.broken, reader.done) == (True, False)


def test_what_came_before_the_break_is_given() -> None:
    assert body_reader(Framing.CHUNKED, 0).feed(b"1\r\na\r\nzz\r\n") == [b"a"]


@given(st.binary(min_size=1, max_size=100), st.integers(1, 100), PLACES)
def test_a_length_is_kept_to(data: bytes, length: int, at: list[int]) -> None:
    reader = body_reader(Framing.LENGTH, length)
    assert fed(reader, data, at) == data[:length]
    assert reader.done is (len(data) >= length)
    assert reader.rest == data[length:]


def test_nothing_is_done_at_once_and_the_end_of_a_connection_is_not_seen_here() -> None:
    assert body_reader(Framing.NONE, 0).done
    reader = body_reader(Framing.EOF, 0)
    assert reader.feed(b"abc") == [b"abc"]
    assert not reader.done
