"""The shared-memory ring against a list, at its edges, and under a writer that never rests."""

from __future__ import annotations

import math
import mmap
import os
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.sampler.ring import MAGIC, Ring, RingError, Row

COLUMNS = 3


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring.create(4, 8, COLUMNS)
    yield made
    made.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.lists(st.none() | st.floats(), min_size=3, max_size=3)),
        st.tuples(st.just("read"), st.integers(0, 2), st.just([])),
    ),
    max_size=120,
)


def same(left: Row, right: tuple[int, list[float | None]]) -> bool:
    at_ns, values = right
    return left.at_ns == at_ns and all(
        (math.isnan(a) if b is None or math.isnan(b) else a == b) for a, b in zip(left.values, values, strict=True)
    )


@given(steps=STEPS, depth=st.integers(2, 9))
def test_a_slot_is_a_list_of_which_the_newest_are_kept(
    steps: list[tuple[str, int, list[float | None]]], depth: int
) -> None:
    reader = Ring.create(3, depth, COLUMNS)
    writer = Ring.attach(os.dup(reader.fd))
    model: list[list[tuple[int, list[float | None]]]] = [[], [], []]
    for at_ns, (what, slot, values) in enumerate(steps):
        if what == "write":
            writer.write(slot, at_ns, values)
            model[slot].append((at_ns, values))
        else:
            rows, lost = reader.read(slot)
            kept = model[slot][-(depth - 1) :]
            assert lost == len(model[slot]) - len(kept)
            assert len(rows) == len(kept)
            assert all(map(same, rows, kept))
            model[slot].clear()
    writer.close()
    reader.close()


def test_what_was_not_read_is_nan_and_zero_is_zero(ring: Ring) -> None:
    ring.write(0, 7, [None, 0.0, -1.5])
    (row,), lost = ring.read(0)
    assert (row.at_ns, lost) == (7, 0)
    assert math.isnan(row.values[0])
    assert row.values[1:] == (0.0, -1.5)


def test_rows_of_one_slot_are_not_those_of_another(ring: Ring) -> None:
    for slot in range(4):
        ring.write(slot, slot, [float(slot)] * COLUMNS)
    assert [ring.read(slot)[0][0].values[0] for slot in range(4)] == [0.0, 1.0, 2.0, 3.0]


def test_a_reader_that_was_away_is_told_how_many_rows_it_lost(ring: Ring) -> None:
    for at_ns in range(100):
        ring.write(1, at_ns, [1.0, 2.0, 3.0])
    rows, lost = ring.read(1)
    assert [row.at_ns for row in rows] == list(range(93, 100))
    assert lost == 93
    assert ring.read(1) == ([], 0)


def test_a_row_whose_two_numbers_differ_is_left_out_and_counted(ring: Ring) -> None:
    for at_ns in range(3):
        ring.write(0, at_ns, [1.0, 2.0, 3.0])
    with mmap.mmap(ring.fd, 0) as memory:
        row_bytes = (COLUMNS + 3) * 8
        second = (8 + 4) * 8 + row_bytes
        struct.pack_into("<Q", memory, second + row_bytes - 8, 99)  # the number after the values
    rows, lost = ring.read(0)
    assert [row.at_ns for row in rows] == [0, 2]
    assert lost == 1


def test_a_reader_never_sees_half_a_row_of_a_writer_that_laps_it() -> None:
    reader = Ring.create(1, 4, COLUMNS)
    writer = Ring.attach(os.dup(reader.fd))
    count = 20_000

    def write() -> None:
        for number in range(1, count + 1):
            writer.write(0, number, [float(number), float(-number), 3.0 * number])

    thread = threading.Thread(target=write)
    thread.start()
    seen, lost, last = 0, 0, 0
    while seen + lost < count:
        rows, missed = reader.read(0)
        for row in rows:
            assert list(row.values) == [row.at_ns, -row.at_ns, 3.0 * row.at_ns]
            assert row.at_ns > last
            last = row.at_ns
        seen += len(rows)
        lost += missed
    thread.join()
    assert seen + lost == count
    assert last == count
    writer.close()
    reader.close()


def test_the_heartbeat_is_seen_on_the_other_side(ring: Ring) -> None:
    other = Ring.attach(os.dup(ring.fd))
    beats = [ring.heartbeat_ns]
    other.beat(123_456_789_012_345)
    beats.append(ring.heartbeat_ns)
    assert beats == [0, 123_456_789_012_345]
    other.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 63,
        b"\x00" * 4096,
        struct.pack("<8Q", MAGIC, 4, 8, 3, 0, 0, 0, 0),  # a header of more than there is
        struct.pack("<8Q", MAGIC, 0, 0, 0, 0, 0, 0, 0),
        struct.pack("<9Q", MAGIC, 1, 0, 5, 0, 0, 0, 0, 0),
        struct.pack("<8Q", MAGIC, 2**63, 2**63, 2**63, 0, 0, 0, 0),
        struct.pack("<8Q", MAGIC + 1, 1, 1, 1, 0, 0, 0, 0) + b"\x00" * 40,
        os.urandom(512),
    ],
)
def test_foreign_memory_is_refused(content: bytes) -> None:
    fd = os.memfd_create("foreign")
    os.write(fd, content)
    with pytest.raises(RingError):
        Ring.attach(fd)
    os.close(fd)


def test_the_memory_is_touched_only_as_far_as_it_is_used() -> None:
    ring = Ring.create(64, 150, 42)
    before = os.stat(ring.fd).st_blocks
    ring.write(0, 1, [1.0] * 42)
    assert os.stat(ring.fd).st_blocks - before <= 32  # a page or two of 3 MB, in blocks of 512 bytes
    ring.close()


def test_a_ring_that_cannot_be_made_leaves_no_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):  # noqa: PT011 - which limit is reached first is the machine's affair
        Ring.create(1 << 20, 1 << 30, 42)
    assert len(os.listdir("/proc/self/fd")) == before
