"""Token events from their serialised bytes to columns, thousands per numpy pass, exactly.

An event is taken here only if every one of its bytes is accounted for. A layout is read off one event, byte by byte:
which bytes are fixed (tags, lengths, names, keys) and which are values (the time, ints, doubles). Every event of the
same length is then compared with it under a mask that covers all but the value bits; the continuation bits of varints
are under the mask, so a varint has the layout's length or the event does not match. What matches has the same fields
in the same places; the values are picked out with shifts. What does not match gets the next layout, and what no
layout of `_MAX_LAYOUTS` takes, or what is no token event or holds anything else than ints, doubles and bools, is left
to the official classes (``Table.taken`` is false there). One odd event costs its neighbours nothing.

Numbers: facts of this way of decoding are printed by ``benchmarks/decode.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.ingest.records import TOKEN_COUNT, TOKEN_EVENT_NAMES, TOKEN_LATENCY_US

MAX_COUNT = 1_000_000
"""More tokens than that in one event are a mistake: read as if the count were absent."""
MAX_ATTRIBUTES = 64
"""Attributes of a token event that are read; the rest is as if absent."""

_TOKEN_NAMES = frozenset(name.encode() for name in TOKEN_EVENT_NAMES)
_COUNT_KEY = TOKEN_COUNT.encode()
_LATENCY_KEY = TOKEN_LATENCY_US.encode()
_MIN_GROUP = 24
"""Fewer events of one length than this are cheaper through the official classes."""
_MAX_LAYOUTS = 48
_MAX_LENGTH = 4096
_SAMPLES = 3
"""Events of one length that are tried as the source of a layout before all of that length are given up."""


class Table(NamedTuple):
    """One row per event, in order. Rows that are not ``taken`` hold nothing."""

    taken: NDArray[np.bool_]
    at_ns: NDArray[np.int64]
    counts: NDArray[np.int32]
    """1 where the event has no count."""
    latency_us: NDArray[np.float64]
    has_latency: NDArray[np.bool_]

    def rows(self, which: slice | NDArray[np.bool_]) -> Table:
        return Table(
            self.taken[which], self.at_ns[which], self.counts[which], self.latency_us[which], self.has_latency[which]
        )


class _Value(NamedTuple):
    """Where a value is in the layout's events; ``width`` bytes of varint, or 0 for eight bytes of double."""

    offset: int
    width: int


class _Layout(NamedTuple):
    pattern: NDArray[np.uint64]
    """The sample, padded to whole words."""
    mask: NDArray[np.uint64]
    at: int | None
    tokens: _Value | None
    latency: _Value | None


def joined(tables: Sequence[Table]) -> Table:
    """All rows, in order."""
    return Table(
        np.concatenate([table.taken for table in tables]),
        np.concatenate([table.at_ns for table in tables]),
        np.concatenate([table.counts for table in tables]),
        np.concatenate([table.latency_us for table in tables]),
        np.concatenate([table.has_latency for table in tables]),
    )


def read_events(blobs: Sequence[bytes]) -> Table:
    """Columns of those serialised ``Span.Event`` that are plain token events."""
    size = len(blobs)
    table = Table(
        taken=np.zeros(size, np.bool_),
        at_ns=np.zeros(size, np.int64),
        counts=np.ones(size, np.int32),
        latency_us=np.zeros(size, np.float64),
        has_latency=np.zeros(size, np.bool_),
    )
    if size < _MIN_GROUP:
        return table
    lengths = np.fromiter(map(len, blobs), np.int64, size)
    starts = np.cumsum(lengths) - lengths
    raw = b"".join(blobs) + bytes(8)
    layouts = 0
    for length, rows in _by_length(lengths):
        words = _gather(raw, starts[rows], length)
        samples = 0
        while len(rows) >= _MIN_GROUP and layouts < _MAX_LAYOUTS and samples < _SAMPLES:
            # The first event of what is left, then others, in case that one is the odd one.
            layout = read_layout(blobs[rows[len(rows) * samples // _SAMPLES]])
            if layout is None:
                samples += 1
                continue
            layouts += 1
            differing = (words ^ layout.pattern) & layout.mask
            if not differing.any():
                _fill(table, rows, words, layout)
                break
            odd = differing.any(axis=1)
            _fill(table, rows[~odd], words[~odd], layout)
            rows, words = rows[odd], words[odd]
            samples = 0
    return table


def read_layout(event: bytes) -> _Layout | None:
    """Layout of a serialised token event; None where it holds anything that is not expected in one.

    Of what is there twice the last wins, as in protobuf.
    """
    mask = bytearray(b"\xff" * len(event) + bytes(-len(event) % 8))
    at: int | None = None
    named = False
    values: dict[bytes, _Value] = {}
    attributes = 0
    place, end = 0, len(event)
    while place < end:
        tag = event[place]
        if tag == 0x09 and place + 9 <= end:  # time_unix_nano, fixed64
            at = place + 1
            mask[at : at + 8] = bytes(8)
            place += 9
        elif tag == 0x12 and place + 2 <= end:  # name
            after = place + 2 + event[place + 1]
            if after > end or event[place + 2 : after] not in _TOKEN_NAMES:
                return None
            named = True
            place = after
        elif tag == 0x1A and place + 2 <= end and event[place + 1] < 0x80:  # attributes
            after = place + 2 + event[place + 1]
            read = _read_attribute(event, place + 2, after) if after <= end else None
            attributes += 1
            if read is None or attributes > MAX_ATTRIBUTES:
                return None
            key, value = read
            values[key] = value
            for index in range(value.offset, value.offset + (value.width or 8)):
                mask[index] = 0x80 if value.width else 0
            place = after
        else:
            return None
    if not named:
        return None
    pattern = event + bytes(-len(event) % 8)
    return _Layout(
        np.frombuffer(pattern, np.uint64),
        np.frombuffer(bytes(mask), np.uint64),
        at,
        values.get(_COUNT_KEY),
        values.get(_LATENCY_KEY),
    )


def unpack_varints(words: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Values of varints of up to ``width`` (≤ 8) bytes, little-endian in a word each, zero after their last byte."""
    values = words & np.uint64(0x7F)
    for index in range(1, width):
        values |= (words >> np.uint64(index)) & np.uint64(0x7F << (7 * index))
    return values


def _read_attribute(event: bytes, start: int, end: int) -> tuple[bytes, _Value] | None:
    """Key and value of a KeyValue that is exactly ``key``, then ``value`` with one int, double or bool."""
    if end - start < 2 or event[start] != 0x0A or event[start + 1] >= 0x80:
        return None
    after_key = start + 2 + event[start + 1]
    key = event[start + 2 : after_key]
    if (
        after_key + 3 > end
        or not key.isascii()
        or event[after_key] != 0x12
        or event[after_key + 1] != end - after_key - 2
    ):
        return None
    kind, offset = event[after_key + 2], after_key + 3
    if kind == 0x21:
        return (key, _Value(offset, 0)) if end - offset == 8 and key != _COUNT_KEY else None
    width = end - offset
    if kind not in (0x18, 0x10) or not 1 <= width <= 8:
        return None
    if event[end - 1] >= 0x80 or any(byte < 0x80 for byte in event[offset : end - 1]):
        return None
    if kind == 0x10 and key in (_COUNT_KEY, _LATENCY_KEY):
        return None
    return key, _Value(offset, width)


def _by_length(lengths: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(length, rows of that length) for lengths that are worth a pass, the most frequent first."""
    if lengths[0] == lengths.max() == lengths.min():
        if lengths[0] <= _MAX_LENGTH:
            yield int(lengths[0]), np.arange(len(lengths))
        return
    short = np.minimum(lengths, _MAX_LENGTH + 1).astype(np.uint16)  # 16 bits: numpy sorts those by radix
    order = np.argsort(short, kind="stable")
    sizes = np.bincount(short)
    ends = np.cumsum(sizes)
    for length in np.argsort(sizes)[::-1].tolist():
        if sizes[length] < _MIN_GROUP:
            return
        if length <= _MAX_LENGTH:
            yield length, order[ends[length] - sizes[length] : ends[length]]


def _gather(raw: bytes, starts: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    """Matrix of words, a row per event. Bytes after the event's last are whatever follows it; masks leave them out."""
    size = length + -length % 8
    if size == 0:
        return np.zeros((len(starts), 0), np.uint64)
    overlapping: NDArray[np.void] = np.ndarray((len(raw) - size + 1,), np.dtype(f"V{size}"), raw, 0, (1,))
    return overlapping[starts].view(np.uint64).reshape(len(starts), size // 8)


def _fill(table: Table, rows: NDArray[np.int64], words: NDArray[np.uint64], layout: _Layout) -> None:
    table.taken[rows] = True
    if layout.at is not None:
        at_ns = _unaligned(words, layout.at).astype(np.int64)
        table.at_ns[rows] = np.maximum(at_ns, 0)
    if layout.tokens is not None:
        counts = _varints(words, layout.tokens)
        table.counts[rows] = np.where(counts <= MAX_COUNT, counts, np.uint64(1))
    if layout.latency is not None:
        table.has_latency[rows] = True
        latency = layout.latency
        table.latency_us[rows] = (
            _varints(words, latency) if latency.width else _unaligned(words, latency.offset).view(np.float64)
        )


def _varints(words: NDArray[np.uint64], value: _Value) -> NDArray[np.uint64]:
    if value.width == 1:
        return words[:, value.offset // 8] >> np.uint64(8 * (value.offset % 8)) & np.uint64(0x7F)
    keep = np.uint64((1 << (8 * value.width)) - 1)
    return unpack_varints(_unaligned(words, value.offset) & keep, value.width)


def _unaligned(words: NDArray[np.uint64], offset: int) -> NDArray[np.uint64]:
    """The eight bytes at ``offset`` of each row; zeros after the row's end."""
    column, bits = divmod(offset, 8)
    low = words[:, column]
    if not bits:
        return low.copy()
    low = low >> np.uint64(8 * bits)
    if column + 1 < words.shape[1]:
        low |= words[:, column + 1] << np.uint64(64 - 8 * bits)
    return low
