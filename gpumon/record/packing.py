"""Blocks of readings as compressed bytes, and back: what the flight recorder keeps in memory and in its files.

A block is a matrix: a row per reading, steady seconds first, then a value per series of its table. Values are kept as
whole multiples of a small part of their unit (1 byte, 1 µs, 1 mW; ``DECIMALS``), far below what any sensor tells, so
that what hardly changes is hardly any bytes: differences in time, their bytes sorted by significance, zlib. A column
of nothing but whole numbers is exact up to 2**62, which every counter is; what is too large for its grid is kept bit
by bit. NaN stands for "no reading" in a matrix, and nowhere outside of it.

Layout before zlib, little endian: length of a JSON list (u32), the list ``[[table, rows, columns], ...]``, one byte
per column and block (decimal digits kept, or 255 for bits), then all numbers, block by block and column by column, as
zigzag differences: first the lowest bytes of all of them, then the next, to the eighth.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.model import Unit

DECIMALS: dict[Unit, int] = {
    Unit.NONE: 6,
    Unit.SECONDS: 6,
    Unit.BYTES: 0,
    Unit.WATTS: 3,
    Unit.JOULES: 3,
    Unit.HERTZ: 0,
    Unit.CELSIUS: 3,
    Unit.RATIO: 5,
    Unit.TIMESTAMP: 3,
}
"""Decimal digits kept of a value that is not whole, by unit."""
_TIME_DECIMALS = 6
_BITS = 255
"""In the place of the digits: the column holds the bits of its doubles."""
_ABSENT = np.int64(-(2**63))
_WHOLE_MOST = 2.0**62
_SCALED_MOST = 2.0**52
"""Above it a double has no half any more: the grid would be finer than the number."""
_LENGTH = struct.Struct("<I")
_LEVEL = 1
_MAX_BYTES = 64 << 20
"""Most that packed bytes may unpack to: twice of what ``past`` and ``fast_past`` ever pack at once."""


class PackError(ValueError):
    """The bytes are not what ``pack`` makes."""


class Block(NamedTuple):
    """Readings of one table."""

    table: int
    """Number of the table, by which the reader knows what the columns are."""
    rows: NDArray[np.float64]
    """Shape (readings, 1 + series): steady seconds, then the values; NaN where there was no reading."""


def pack(blocks: Sequence[Block], decimals: Sequence[NDArray[np.intp]]) -> bytes:
    """``decimals``: of every block, the digits kept of each of its series (without the time)."""
    shapes = [[block.table, *block.rows.shape] for block in blocks]
    coded = [_encode(block.rows, digits) for block, digits in zip(blocks, decimals, strict=True)]
    head = json.dumps(shapes, separators=(",", ":")).encode()
    numbers = np.concatenate([numbers for _, numbers in coded]) if coded else np.empty(0, np.int64)
    planes = np.ascontiguousarray(numbers.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8).T)
    codes = b"".join(code.tobytes() for code, _ in coded)
    return zlib.compress(b"".join((_LENGTH.pack(len(head)), head, codes, planes.tobytes())), _LEVEL)


def unpack(packed: bytes) -> list[Block]:
    """The blocks. Raises PackError."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, _MAX_BYTES)
    except zlib.error as err:
        raise PackError(f"not compressed as it should be: {err}") from err
    if not unpacker.eof or len(data) < _LENGTH.size:
        raise PackError("cut short, or larger than anything that is written")
    (head_size,) = _LENGTH.unpack_from(data)
    shapes = _read_shapes(data[_LENGTH.size : _LENGTH.size + head_size])
    codes_at = _LENGTH.size + head_size
    planes_at = codes_at + sum(columns for _, _, columns in shapes)
    count = sum(rows * columns for _, rows, columns in shapes)
    if len(data) != planes_at + 8 * count:
        raise PackError(f"{len(data)} bytes where {planes_at + 8 * count} belong")
    planes = np.frombuffer(data, np.uint8, 8 * count, planes_at).reshape(8, count)
    numbers = np.ascontiguousarray(planes.T).view("<i8").reshape(count).astype(np.int64, copy=False)
    blocks: list[Block] = []
    at = 0
    for table, rows, columns in shapes:
        codes = np.frombuffer(data, np.uint8, columns, codes_at)
        blocks.append(Block(table, _decode(numbers[at : at + rows * columns].reshape(columns, rows), codes)))
        at += rows * columns
        codes_at += columns
    return blocks


def _read_shapes(head: bytes) -> list[tuple[int, int, int]]:
    try:
        found = json.loads(head)
    except (ValueError, RecursionError) as err:
        raise PackError("its list of blocks is no JSON") from err
    if not isinstance(found, list):
        raise PackError("its list of blocks is no list")
    shapes: list[tuple[int, int, int]] = []
    for shape in found:
        # A boolean is an int to Python, and no more than 0 or 1 to anybody: nothing to refuse.
        if not (isinstance(shape, list) and len(shape) == 3 and all(isinstance(number, int) for number in shape)):
            raise PackError("an entry of its list of blocks is no three numbers")
        table, rows, columns = shape
        if min(table, rows, columns - 1) < 0 or max(rows, columns) > _MAX_BYTES // 8:
            raise PackError(f"a block of {rows} x {columns}")
        shapes.append((table, rows, columns))
    return shapes


def _encode(rows: NDArray[np.float64], decimals: NDArray[np.intp]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Code of each column, and the zigzag differences column by column."""
    columns = np.ascontiguousarray(rows.T)
    absent = np.isnan(columns)
    some_absent = bool(absent.any())
    values = np.where(absent, 0.0, columns) if some_absent else columns
    values = values + 0.0  # -0.0 becomes 0.0: its bits are those of "absent"
    largest = np.abs(values).max(axis=1, initial=0.0)
    whole = (values == np.rint(values)).all(axis=1) & (largest <= _WHOLE_MOST)
    digits = np.where(whole, 0, np.concatenate(([_TIME_DECIMALS], decimals)))
    factors = 10.0**digits
    bits = ~whole & (largest > _SCALED_MOST / factors)
    factors[bits] = 0.0  # so that what is too large does not overflow on its way to being replaced
    numbers = np.rint(values * factors[:, None]).astype(np.int64)
    if bits.any():
        numbers[bits] = values[bits].view(np.int64)
    if some_absent:
        numbers[absent] = _ABSENT
    deltas = numbers.copy()
    deltas[:, 1:] -= numbers[:, :-1]  # wraps, and wraps back when it is read
    zigzag = (deltas << 1) ^ (deltas >> 63)
    return np.where(bits, _BITS, digits).astype(np.uint8), zigzag.reshape(-1)


def _decode(zigzag: NDArray[np.int64], codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    unsigned = zigzag.view(np.uint64)
    deltas = (unsigned >> np.uint64(1)).view(np.int64) ^ -(zigzag & 1)
    numbers = np.cumsum(deltas, axis=1, dtype=np.int64)
    bits = codes == _BITS
    if (codes[~bits] > max(_TIME_DECIMALS, *DECIMALS.values())).any():
        raise PackError("a column of a kind that is not known")
    values = numbers / 10.0 ** np.where(bits, 0, codes)[:, None]
    values[bits] = numbers[bits].view(np.float64)
    values[numbers == _ABSENT] = np.nan
    if np.isinf(values).any():
        raise PackError("a value that is not finite")
    return np.ascontiguousarray(values.T)
