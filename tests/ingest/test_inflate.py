from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.ingest.inflate import InflateError, TooLargeError, inflate

LIMIT = 1 << 20


@given(st.lists(st.binary(max_size=300_000), min_size=1, max_size=4), st.integers(0, 9))
def test_gzip_of_any_members_is_undone(members: list[bytes], level: int) -> None:
    content = b"".join(members)
    packed = b"".join(gzip.compress(member, level) for member in members)
    if len(content) > LIMIT:
        with pytest.raises(TooLargeError):
            inflate(packed, LIMIT)
    else:
        assert inflate(packed, LIMIT) == content


def test_the_limit_itself_is_allowed_and_one_more_is_not() -> None:
    assert len(inflate(gzip.compress(bytes(LIMIT)), LIMIT)) == LIMIT
    with pytest.raises(TooLargeError, match=str(LIMIT)):
        inflate(gzip.compress(bytes(LIMIT + 1)), LIMIT)


def test_zeros_after_the_last_member_are_padding() -> None:
    assert inflate(gzip.compress(b"abc") + bytes(700_000), LIMIT) == b"abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0a\x02plain protobuf",
        b"\0" * 40,
        zlib.compress(b"zlib, not gzip"),
        gzip.compress(b"cut short" * 100, mtime=0)[:-9],
        gzip.compress(b"cut in its trailer", mtime=0)[:-1],
        gzip.compress(b"one", mtime=0)[:-5] + b"\0\0\0\0\0",
        gzip.compress(b"one", mtime=0) + b"and something else",
        gzip.compress(b"one", mtime=0) + gzip.compress(b"two", mtime=0)[:-3],
    ],
)
def test_what_is_not_whole_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(InflateError):
        inflate(body, LIMIT)


@given(st.binary(max_size=400))
def test_damaged_bodies_raise_nothing_else(noise: bytes) -> None:
    for body in (noise, b"\x1f\x8b\x08\0" + noise, gzip.compress(b"x" * 1000)[:20] + noise):
        try:
            inflate(body, LIMIT)
        except (InflateError, TooLargeError):
            pass


def test_a_bomb_of_a_gigabyte_costs_a_few_times_the_limit() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1024)) + packer.flush()
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        inflate(bomb, LIMIT)
    assert tracemalloc.get_traced_memory()[1] < 6 * LIMIT
    tracemalloc.stop()


def test_a_body_of_empty_members_is_refused_early() -> None:
    with pytest.raises(InflateError, match="members"):
        inflate(gzip.compress(b"") * 100_000, LIMIT)
