"""Chunks of a recording in the order of time.

They come in the order of their writing, of two processes, and hold what happened before it. A chunk is read as soon as
something in it, or in one behind it, could be next; what is not due yet waits. A pass that took longer than AHEAD_S, or
more than AHEAD_BYTES at once, which no recorder writes, comes late instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from typing import NamedTuple

import msgspec

from gpumon.ingest.request import Signal
from gpumon.record.entries import HEAD, Batch, Block, Body, Calls, Key, read_batch, to_text
from gpumon.record.format import Chunk, FormatError, Reader

AHEAD_S = 60.0
"""How long a pass may have taken for its answers still to come at its beginning."""
AHEAD_BYTES = 128 << 20
"""Most that is read ahead for it, and a chunk."""
MAX_QUESTIONS = 1_000_000
"""Of an epoch; a recorder writes a tenth."""
MAX_WRITERS = 16
"""Processes that wrote and whose questions are remembered."""
_MOST_S = 1e12  # no second is further from zero


class Part(NamedTuple):
    """What is known of a chunk before it is unpacked."""

    first_s: float
    last_s: float
    written_s: float
    offset_s: float


class Epoch:
    """An epoch of one writer: what its numbers stand for."""

    __slots__ = ("keys", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.keys: list[Key] = []


class Event(NamedTuple):
    """A pass began, or a request arrived."""

    at_s: float
    stream: int
    what: str | Body
    """Name of the pass, or the request."""


class Due(NamedTuple):
    """Answers of a pass, or what calls took."""

    at_s: float
    what: Block | list[Calls]
    epoch: Epoch


class _Loaded:
    """The size of a chunk, counted for as long as something of it waits."""

    __slots__ = ("left", "size")

    def __init__(self, size: int) -> None:
        self.left = 0
        self.size = size


class Ahead:
    """Reads one file once, from its beginning. Raises FormatError for what no recorder wrote."""

    def __init__(self, reader: Reader, path: str) -> None:
        self.parts: list[Part] = []
        self.bytes = 0
        """Of chunks that were read and of which something is still to come."""
        self.wants_events = False
        """Whether somebody asks for events; else they are not kept."""
        self._path = path
        self.parts += map(self._part, reader.chunks())
        self._needed = [max(part.first_s, part.written_s - AHEAD_S) for part in self.parts]
        for i in range(len(self._needed) - 2, -1, -1):
            self._needed[i] = min(self._needed[i], self._needed[i + 1])
        self._chunks: Generator[Chunk] = reader.chunks()
        self._next = 0
        self._order = 0
        self._epochs: dict[tuple[int, int], Epoch] = {}
        self._waiting: list[tuple[float, int, Due, _Loaded]] = []
        self._events: list[tuple[float, int, Event, _Loaded | None]] = []

    def close(self) -> None:
        """Let go of the file; nothing more is read."""
        self._chunks.close()
        self._next = len(self.parts)

    def next_event(self) -> Event | None:
        """The next event in the order of time; None at the end."""
        events = self._events
        while self._next < len(self.parts) and (
            not events or (self._needed[self._next] <= events[0][0] and self.bytes < AHEAD_BYTES)
        ):
            self._load()
        if not events:
            return None
        _, _, event, loaded = heapq.heappop(events)
        if loaded is not None:
            self._done(loaded)
        return event

    def due(self, now_s: float) -> Iterator[Due]:
        """What is due by then, in the order of time."""
        while True:
            needed = self._next < len(self.parts) and self._needed[self._next] <= now_s
            if needed and self.bytes < AHEAD_BYTES:  # else it comes late
                self._load()
            elif self._waiting and self._waiting[0][0] <= now_s:
                _, _, due, loaded = heapq.heappop(self._waiting)
                self._done(loaded)
                yield due
            else:
                return

    def damaged(self) -> FormatError:
        """The error for what no recorder wrote."""
        return FormatError(f"{self._path}: what is in it cannot be read")

    def _done(self, loaded: _Loaded) -> None:
        loaded.left -= 1
        if not loaded.left:
            self.bytes -= loaded.size

    def _part(self, chunk: Chunk) -> Part:
        if len(chunk.payload) < HEAD.size:
            raise self.damaged()
        part = Part(*HEAD.unpack_from(chunk.payload))
        if not all(abs(number) < _MOST_S for number in part):  # nor NaN
            raise self.damaged()
        return part

    def _load(self) -> None:
        """Unpack the next chunk."""
        part = self.parts[self._next]
        self._next += 1
        chunk = next(self._chunks, None)
        if chunk is None:  # the file was cut after it was opened
            self._next = len(self.parts)
            return
        try:
            batch = read_batch(memoryview(chunk.payload)[HEAD.size :])
            self._take(self._epoch(chunk.stream, batch), batch, _Loaded(len(chunk.payload)), part.written_s)
        except (msgspec.DecodeError, ValueError, RecursionError) as err:
            raise self.damaged() from err

    def _take(self, epoch: Epoch, batch: Batch, loaded: _Loaded, written_s: float) -> None:
        for question in batch.questions:
            epoch.keys.append((question.kind, to_text(question.subject), to_text(question.detail)))
        if len(epoch.keys) > MAX_QUESTIONS:
            raise ValueError("too many questions")
        for block in batch.blocks:
            self._wait(block.at_s, block, epoch, loaded)
            if block.begins:
                self._add_event(Event(block.at_s, epoch.stream, block.scope), None)
        if batch.calls:
            self._wait(written_s, batch.calls, epoch, loaded)
        for body in batch.bodies:
            Signal(body.signal)  # ValueError for what is none
            self._add_event(Event(body.at_s, epoch.stream, body), loaded)
        self.bytes += loaded.size if loaded.left else 0

    def _wait(self, at_s: float, what: Block | list[Calls], epoch: Epoch, loaded: _Loaded) -> None:
        _check(at_s)
        self._order += 1
        loaded.left += 1
        heapq.heappush(self._waiting, (at_s, self._order, Due(at_s, what, epoch), loaded))

    def _add_event(self, event: Event, loaded: _Loaded | None) -> None:
        _check(event.at_s)
        if self.wants_events:
            self._order += 1
            if loaded is not None:
                loaded.left += 1
            heapq.heappush(self._events, (event.at_s, self._order, event, loaded))

    def _epoch(self, stream: int, batch: Batch) -> Epoch:
        writer = (stream, batch.writer)
        epoch = self._epochs.get(writer)
        if epoch is None or batch.fresh:
            self._epochs.pop(writer, None)
            epoch = self._epochs[writer] = Epoch(stream)
            if len(self._epochs) > MAX_WRITERS:
                del self._epochs[next(iter(self._epochs))]
        return epoch


def _check(at_s: float) -> None:
    if not abs(at_s) < _MOST_S:  # nor NaN, which has no place in any order
        raise ValueError("a time that cannot be")
