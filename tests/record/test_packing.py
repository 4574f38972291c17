"""``gpumon.record.packing``."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.model import Unit
from gpumon.record.packing import DECIMALS, Block, PackError, pack, unpack

FINITE = st.floats(allow_nan=False, allow_infinity=False)
CELL = st.one_of(FINITE, st.just(float("nan")), st.just(-0.0), st.integers(-(2**62), 2**62).map(float))


def digits(*units: Unit) -> NDArray[np.intp]:
    return np.array([DECIMALS[unit] for unit in units], np.intp)


def through(rows: list[list[float]], *units: Unit) -> list[list[float]]:
    """Rows of time and values, packed and unpacked."""
    (block,) = unpack(pack([Block(7, np.array(rows, dtype=float))], [digits(*units)]))
    assert block.table == 7
    return [list(row) for row in block.rows]


def test_every_unit_has_its_digits() -> None:
    assert set(DECIMALS) == set(Unit)


def test_counters_of_bytes_are_exact() -> None:
    rows = [[1.0, 1e13 + 1], [2.0, 1e13 + 2], [3.0, 2.0**53]]
    assert through(rows, Unit.BYTES) == rows


def test_whole_numbers_are_exact_in_every_unit() -> None:
    rows = [[1.0, 123_456_789_012_345.0], [2.0, 2.0**61]]
    assert through(rows, Unit.SECONDS) == rows


def test_what_is_not_whole_keeps_the_digits_of_its_unit() -> None:
    ((at_s, watts, ratio),) = through([[1234.5678904, 512.3456, 0.123456]], Unit.WATTS, Unit.RATIO)
    assert (at_s, watts, ratio) == (1234.56789, 512.346, 0.12346)


def test_what_is_too_large_for_its_digits_is_kept_bit_by_bit() -> None:
    rows = [[1.0, 1.5e300], [2.0, -1e-300], [3.0, -0.0], [4.0, 3.3]]
    assert through(rows, Unit.SECONDS) == rows


def test_no_reading_stays_no_reading_among_others() -> None:
    (first, second, third) = through([[1.0, 5.0], [2.0, float("nan")], [3.0, 6.0]], Unit.BYTES)
    assert (first[1], third[1]) == (5.0, 6.0)
    assert second[1] != second[1]


def test_no_blocks_and_blocks_of_no_readings_are_possible() -> None:
    assert unpack(pack([], [])) == []
    (block,) = unpack(pack([Block(1, np.empty((0, 3)))], [digits(Unit.BYTES, Unit.BYTES)]))
    assert block.rows.shape == (0, 3)


def test_several_blocks_come_back_in_order() -> None:
    blocks = [Block(2, np.array([[1.0, 4.0]])), Block(1, np.array([[1.5], [2.5]])), Block(2, np.array([[3.0, 5.0]]))]
    packed = pack(blocks, [digits(Unit.BYTES), digits(), digits(Unit.BYTES)])
    assert [(block.table, block.rows.tolist()) for block in unpack(packed)] == [
        (block.table, block.rows.tolist()) for block in blocks
    ]


def test_what_stands_still_is_hardly_any_bytes() -> None:
    rows = np.column_stack([np.arange(20.0), np.full((20, 1000), 1980e6)])
    assert len(pack([Block(1, rows)], [np.zeros(1000, np.intp)])) < 2000  # a tenth of a byte each


@given(st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=8), st.sampled_from(list(Unit)))
def test_whatever_is_packed_comes_back_within_half_a_digit(cells: list[list[float]], unit: Unit) -> None:
    rows = [[float(second), *row] for second, row in enumerate(cells)]
    back = through(rows, unit, unit, unit)
    for row, found in zip(rows, back, strict=True):
        for value, kept in zip(row, found, strict=True):
            if value != value:
                assert kept != kept
            else:
                assert abs(kept - value) <= 0.5000001 * 10.0 ** -DECIMALS[unit] or kept == value


@given(st.binary(max_size=64))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PackError):
        unpack(data)
    with pytest.raises(PackError):
        unpack(zlib.compress(data))


@given(st.data())
def test_damaged_bytes_are_refused_or_give_finite_values(data: st.DataObject) -> None:
    packed = pack([Block(1, np.array([[1.0, 0.25, 1e300], [2.0, 0.5, 1.5]]))], [digits(Unit.RATIO, Unit.NONE)])
    plain = bytearray(zlib.decompress(packed))
    position = data.draw(st.integers(0, len(plain) - 1))
    plain[position] = data.draw(st.integers(0, 255))
    try:
        blocks = unpack(zlib.compress(bytes(plain)))
    except PackError:
        return
    assert not any(np.isinf(block.rows).any() for block in blocks)


@pytest.mark.parametrize(
    "head",
    [
        b"{}",
        b"nonsense",
        b"[[1, 2]]",
        b'[["1", 2, 3]]',
        b"[[1, -1, 2]]",
        b"[[1, 1, 0]]",
        b"[[1, 1, 99999999999]]",
        b"[" * 100_000,
    ],
)
def test_a_list_of_blocks_that_makes_no_sense_is_refused(head: bytes) -> None:
    with pytest.raises(PackError):
        unpack(zlib.compress(struct.pack("<I", len(head)) + head))


def test_a_bomb_is_not_unpacked_whole() -> None:
    head = json.dumps([[1, 1, 1]]).encode()
    with pytest.raises(PackError, match="larger"):
        unpack(zlib.compress(struct.pack("<I", len(head)) + head + bytes(64 << 20)))
