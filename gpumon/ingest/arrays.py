"""Int arrays of many spans (the compact form of token times), decoded together: numpy's fixed cost is that of some
hundred elements, and most arrays have fewer.

While spans are read, their arrays are left as bytes and empty arrays stand in for them; ``finish`` fills those. Where
one turns out to hold anything else than ints, its span's attributes are read again, array by array, so that the
outcome is always that of reading each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import ArrayValue

from gpumon.ingest.columns import unpack_varints

PACKED_ABOVE = 16
"""Int arrays of this many elements or more become numpy arrays."""

_PASS = 16_384
"""Elements per numpy pass: what the CPU's cache holds."""
_BYTES = np.array([(1 << (8 * width)) - 1 for width in range(9)], np.uint64)
_CONTINUATION_MASK = _BYTES & np.uint64(0x8080808080808080)
_CONTINUATION = np.concatenate([np.zeros(1, np.uint64), _CONTINUATION_MASK[:-1]])
"""By width: the continuation bits of a varint, and what they have to be: set in all but the last byte."""


class _Owner(NamedTuple):
    """A span with arrays: positions ``first`` to ``last`` of those that wait, and how to read it anew."""

    first: int
    last: int
    again: Callable[[], None]


class ArrayGather:
    """An ``ArrayReader`` whose arrays hold nothing before ``finish``, or a call of ``owned_by``, has filled them."""

    def __init__(self) -> None:
        self._raws: list[bytes] = []
        self._places: list[NDArray[np.int64]] = []
        self._owners: list[_Owner] = []
        self._owned = 0
        self._size = 0

    def __call__(self, array: ArrayValue) -> NDArray[np.int64] | None:
        size = len(array.values)
        if size < PACKED_ABOVE:
            return None
        place = np.empty(size, np.int64)
        self._raws.append(array.SerializeToString())
        self._places.append(place)
        self._size += size
        return place

    @property
    def has_new(self) -> bool:
        """Whether there are arrays that nobody owns."""
        return len(self._raws) > self._owned

    def owned_by(self, again: Callable[[], None]) -> None:
        """The arrays since the last call are of one span. again: reads its attributes once more, without this."""
        self._owners.append(_Owner(self._owned, len(self._raws), again))
        self._owned = len(self._raws)
        if self._size >= _PASS:
            self.finish()

    def finish(self) -> None:
        """Fill all arrays."""
        raws, places, owners = self._raws, self._places, self._owners
        self._raws, self._places, self._owners = [], [], []
        self._owned = self._size = 0
        if not raws or _filled(raws, places):
            return
        for owner in owners:
            mine = slice(owner.first, owner.last)
            if not _filled(raws[mine], places[mine]):
                owner.again()


def read_packed_ints(array: ArrayValue) -> NDArray[np.int64] | None:
    """Int array at numpy's speed, exactly; None where an element is anything else than a varint of up to 8 bytes."""
    size = len(array.values)
    return unpacked([array.SerializeToString()], [size]) if size >= PACKED_ABOVE else None


def read_no_ints(array: ArrayValue) -> None:
    """Stands in for ``read_packed_ints`` where every array is to be read element by element."""


def unpacked(raws: Sequence[bytes], sizes: Sequence[int]) -> NDArray[np.int64] | None:
    """Values of serialised ``ArrayValue``s, ``sizes`` elements in each, one array after the other; None: as above.

    Serialised elements are 0A (length) 18 (varint). They are found by those two tags and then have to link up: the
    first of each array starts where the array does, each ends where the next starts, the last ends with the bytes.
    That leaves no other reading.
    """
    raw = b"".join((*raws, bytes(8)))
    end = len(raw) - 8
    data = np.frombuffer(raw, np.uint8)
    starts = np.flatnonzero((data[: end - 2] == 0x0A) & (data[2:end] == 0x18))
    if len(starts) != sum(sizes) or starts[0] != 0:
        return None
    if len(raws) > 1:
        firsts = np.cumsum(sizes[:-1])
        if (starts[firsts] != np.cumsum([len(one) for one in raws[:-1]])).any():
            return None
    widths = data[starts + 1].astype(np.int64) - 1
    ends = starts + 3 + widths
    if ends[-1] != end or (ends[:-1] != starts[1:]).any() or widths.min() < 1 or widths.max() > 8:
        return None
    overlapping: NDArray[np.uint64] = np.ndarray((end + 1,), np.dtype("<u8"), raw, 0, (1,))
    words = overlapping[starts + 3]
    if ((words & _CONTINUATION_MASK[widths]) != _CONTINUATION[widths]).any():
        return None
    return unpack_varints(words & _BYTES[widths], int(widths.max())).astype(np.int64)


def _filled(raws: list[bytes], places: list[NDArray[np.int64]]) -> bool:
    values = unpacked(raws, [len(place) for place in places])
    if values is None:
        return False
    first = 0
    for place in places:
        last = first + len(place)
        place[:] = values[first:last]
        first = last
    return True
