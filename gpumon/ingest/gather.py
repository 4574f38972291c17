"""Events of the spans of several requests, decoded together and handed back to their spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.ingest.attributes import cut
from gpumon.ingest.columns import Table, joined, read_events
from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.records import TOKEN_EVENT_NAMES, EventRecord, SpanRecord, TokenColumns
from gpumon.ingest.schema import ProtobufError, check_events, parse_events
from gpumon.ingest.spans import SpanReader
from gpumon.ingest.walk import token_of

_PASS = 16_384
"""Events per numpy pass: enough to forget its fixed cost, and still little enough for the CPU's cache."""

_SHORTEST_TOKEN = min(map(len, TOKEN_EVENT_NAMES)) + 2
"""Bytes of the shortest token event: its name, with tag and length."""


class _Segment:
    """The events of one span: rows ``first`` to ``last`` of all that was added."""

    __slots__ = ("first", "last", "others", "reader", "record")

    def __init__(self, reader: SpanReader, record: SpanRecord, first: int, last: int) -> None:
        self.reader = reader
        self.record = record
        self.first = first
        self.last = last
        self.others: list[EventRecord] | None = None
        """Those that are no token events, if any."""


class _Uniform(NamedTuple):
    """What is so of every event of the batch, to look only once."""

    taken: bool
    single: bool
    """One token each."""
    latency: bool


_ALL_PLAIN = _Uniform(taken=True, single=True, latency=True)


class EventGather:
    """Takes the events of spans as bytes, fills the spans' ``tokens`` and ``events`` by the time of ``finish``."""

    def __init__(self, limits: DecodeLimits) -> None:
        self.unreadable: set[SpanReader] = set()
        """Readers of the bodies in which an event cannot be parsed."""
        self._limits = limits
        self._segments: list[_Segment] = []
        self._size = 0
        self._blobs: list[bytes] = []
        """Of the pass to come; they are the last of the ``_size`` events added."""
        self._tables: list[Table] = []
        self._first_open = 0
        """First segment that reaches into the pass to come."""
        self._unkept: list[bytes] = []
        """Events of spans that are not kept: only to be parsed, since an unreadable one fails the whole body."""

    def add(self, reader: SpanReader, record: SpanRecord | None, events: Sequence[bytes]) -> None:
        """Events of a span; without a record they are only checked."""
        size = len(events)
        if record is None:
            for first in range(0, size, _PASS):
                self._unkept += events[first : first + _PASS]
                if len(self._unkept) >= _PASS:
                    self._check(reader)
            return
        self._segments.append(_Segment(reader, record, self._size, self._size + size))
        if size <= _PASS:  # one slice, without the loop
            self._blobs += events[:]
            self._size += size
            if len(self._blobs) >= _PASS:
                self._decode()
            return
        for first in range(0, size, _PASS):
            part = events[first : first + _PASS]
            self._blobs += part
            self._size += len(part)
            if len(self._blobs) >= _PASS:
                self._decode()

    def end_of_body(self, reader: SpanReader) -> None:
        """To be called after the last ``add`` of each reader."""
        if self._unkept:
            self._check(reader)

    def finish(self) -> None:
        """Decode what is left and complete the records."""
        self._decode()
        if not self._segments:
            return
        table = self._tables[0] if len(self._tables) == 1 else joined(self._tables)
        self._tables.clear()
        uniform = _Uniform(
            taken=bool(table.taken.all()),
            single=bool((table.counts == 1).all()),
            latency=bool(table.has_latency.all()),
        )
        for segment in self._segments:
            if segment.others is not None:
                segment.record.events = segment.others
            segment.record.tokens = self._token_columns(segment, table, uniform)

    def _token_columns(self, segment: _Segment, table: Table, uniform: _Uniform) -> TokenColumns | None:
        most = self._limits.max_token_events
        if uniform == _ALL_PLAIN and segment.last - segment.first <= most:
            rows = slice(segment.first, segment.last)
            return TokenColumns(table.at_ns[rows], None, table.latency_us[rows])
        table = table.rows(slice(segment.first, segment.last))
        if not uniform.taken and not table.taken.all():
            table = table.rows(table.taken)
        size = len(table.taken)
        if not size:
            return None
        if size > most:
            cut(segment.reader.decoded.truncated, "tokens", size - most)
            table = table.rows(slice(most))
        return TokenColumns(
            table.at_ns,
            None if uniform.single or (table.counts == 1).all() else table.counts,
            table.latency_us if uniform.latency or table.has_latency.all() else None,
        )

    def _check(self, reader: SpanReader) -> None:
        try:
            check_events(self._unkept)
        except ProtobufError:
            self.unreadable.add(reader)
        self._unkept = []

    def _decode(self) -> None:
        """Decode the pass that was gathered."""
        blobs, self._blobs = self._blobs, []
        base = self._size - len(blobs)
        table = read_events(blobs)
        self._tables.append(table)
        rest = np.flatnonzero(~table.taken)
        if len(rest):
            self._read_rest(blobs, table, rest, base)
        self._first_open = max(0, len(self._segments) - 1)

    def _read_rest(self, blobs: list[bytes], table: Table, rest: NDArray[np.int64], base: int) -> None:
        """Events that numpy did not take, body by body, with the official classes."""
        open_segments = self._segments[self._first_open :]
        ends = [segment.last - base for segment in open_segments]
        rest = self._without_flood(blobs, rest, open_segments[0], ends[0])
        owners = np.searchsorted(ends, rest, side="right")
        pairs = [(row, open_segments[owner]) for row, owner in zip(rest.tolist(), owners.tolist(), strict=True)]
        first = 0
        while first < len(pairs):
            reader = pairs[first][1].reader
            last = first
            while last < len(pairs) and pairs[last][1].reader is reader:
                last += 1
            try:
                self._read_some(blobs, table, pairs[first:last])
            except ProtobufError:
                self.unreadable.add(reader)
            first = last

    def _read_some(self, blobs: list[bytes], table: Table, pairs: list[tuple[int, _Segment]]) -> None:
        rows: list[int] = []
        tokens: list[tuple[int, int, float | None]] = []
        events = parse_events([blobs[row] for row, _ in pairs])
        for (row, segment), event in zip(pairs, events, strict=True):
            if event.name in TOKEN_EVENT_NAMES:
                rows.append(row)
                tokens.append(token_of(event))
                continue
            if segment.others is None:
                segment.others = []
            if len(segment.others) < self._limits.max_events:
                segment.others.append(segment.reader.read_event(event))
            else:
                cut(segment.reader.decoded.truncated, "events")
        if rows:
            table.taken[rows] = True
            table.at_ns[rows] = [at for at, _, _ in tokens]
            table.counts[rows] = [count for _, count, _ in tokens]
            table.latency_us[rows] = [0.0 if latency is None else latency for _, _, latency in tokens]
            table.has_latency[rows] = [latency is not None for _, _, latency in tokens]

    def _without_flood(
        self, blobs: list[bytes], rest: NDArray[np.int64], first: _Segment, end: int
    ) -> NDArray[np.int64]:
        """The rows without those of events that would be read for nothing: too short for a token event, in a span
        that has enough others from passes before. Empty events cost the sender two bytes each: they have to be cheap.
        """
        if first.others is None or len(first.others) < self._limits.max_events:
            return rest
        flood = np.fromiter(
            (row < end and len(blobs[row]) < _SHORTEST_TOKEN for row in rest.tolist()), np.bool_, len(rest)
        )
        if not flood.any():
            return rest
        try:
            check_events([blobs[row] for row in rest[flood].tolist()])
        except ProtobufError:
            self.unreadable.add(first.reader)
        cut(first.reader.decoded.truncated, "events", int(flood.sum()))
        return rest[~flood]
