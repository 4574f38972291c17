"""Details of requests that somebody looks for later: for an hour the slowest of each cell of the heatmap, and those
that incidents name.

A cell is a minute, a model, a signal (time to first token, or the longest gap between tokens) and a bucket of
concurrency or of context, as ``requests.windows`` counts them. Of each the 20 slowest are held, of an incident the
first 32 that it names. Packed they take 2 to 4 kB each, with times of tokens to the microsecond; ``BYTES`` is all
that they may take. Where that is too little, every minute and incident gets shorter, the longest first and of equal
ones the oldest: the very slowest of an hour ago stay before the tenth of just now, which is among the newest
(``recent``) anyway.
"""

from __future__ import annotations

import heapq
import math
import pickle  # of our own making, and never out of this process
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpumon.explain.explained import Explained, Key, key_of
from gpumon.explain.request_columns import first_token_s
from gpumon.requests.buckets import concurrency_buckets, context_buckets
from gpumon.requests.gaps import possible, tokens_made
from gpumon.requests.windows import MINUTES, WIDTH_S, Ladder, Signal

BYTES: Final = 12 << 20
DEPTHS: Final = (32, 20, 12, 8, 5, 3, 2, 1, 0)
"""How many requests of a cell or an incident are held: the steps in which they get fewer."""
INCIDENTS_MAX: Final = 768
"""As many as there are at most: open ones, and closed ones."""
LONG_MINUTES: Final = 10
"""Of a request that made tokens for longer, the last minutes count."""
_OF_INCIDENT, _OF_MINUTE = DEPTHS[:2]
_PLACE_BYTES: Final = 96
"""What a place in a cell takes, about."""
_ITEM_BYTES: Final = 400
"""What a request takes beside its bytes: its ids, and places in tables."""
_FAST: Final = 1
_COMMON_MAX: Final = 1 << 15
"""zlib looks no further back."""

_Cell = tuple[Signal, str, str, Ladder, int]


class _Packed(NamedTuple):
    data: bytes
    places: int
    """Cells and incidents that hold it."""


class _Shelf:
    """A minute, or an incident."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.cells: dict[_Cell | None, list[tuple[float, Key]]] = {}
        """Heaps: what gives way first is the first."""


class Held:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._packing = _Packing()
        self._packed: dict[Key, _Packed] = {}
        self._bytes = 0
        self._minutes: dict[int, _Shelf] = {}
        self._incidents: dict[str, _Shelf] = {}
        self._newest = -MINUTES

    @property
    def used_bytes(self) -> int:
        """At most ``BYTES`` after each call, about."""
        return self._bytes

    def __contains__(self, key: Key) -> bool:
        return key in self._packed

    def all_keys(self) -> Iterable[Key]:
        """Of those held."""
        return self._packed.keys()

    def get(self, key: Key) -> Explained | None:
        """One of them."""
        packed = self._packed.get(key)
        return self._packing.unpack(packed.data) if packed is not None else None

    def offer(self, explained: Sequence[Explained]) -> None:
        """Requests that ended. Those that are among the slowest of a cell are held."""
        for each, places in zip(explained, _places(explained), strict=True):
            key = key_of(each)
            if (known := self._packed.get(key)) is not None:  # it is told again: as it was told last
                self._replace(key, known, each)
                continue
            for minute, cell, value in places:
                if (shelf := self._shelf(minute)) is not None:
                    self._put(shelf, cell, value, key, each)
        self._make_room()

    def name(self, incident_id: str, keys: Sequence[Key], found: Iterable[tuple[Key, Explained]]) -> None:
        """Requests that an incident names. keys: all of them, in its order; found: those whose details are known."""
        shelf = self._incidents.get(incident_id)
        if shelf is None:
            shelf = self._incidents[incident_id] = _Shelf(_OF_INCIDENT)
            while len(self._incidents) > INCIDENTS_MAX:
                self._shorten(self._incidents.pop(next(iter(self._incidents))), 0)
        order = {key: place for place, key in enumerate(keys[: shelf.depth])}
        for key, each in found:
            if key in order:
                self._put(shelf, None, -float(order[key]), key, each)
        self._make_room()

    def named(self, incident_id: str) -> set[Key]:
        """Those held of an incident."""
        shelf = self._incidents.get(incident_id)
        return {key for _, key in shelf.cells.get(None, ())} if shelf is not None else set()

    def _shelf(self, minute: int) -> _Shelf | None:
        """Of a minute; None where it is over for more than an hour."""
        if minute > self._newest:
            self._newest = minute
            for old in [each for each in self._minutes if each <= minute - MINUTES]:
                self._shorten(self._minutes.pop(old), 0)
        if minute <= self._newest - MINUTES:
            return None
        shelf = self._minutes.get(minute)
        if shelf is None:
            shelf = self._minutes[minute] = _Shelf(_OF_MINUTE)
        return shelf

    def _put(self, shelf: _Shelf, cell: _Cell | None, value: float, key: Key, each: Explained) -> None:
        if not shelf.depth:
            return
        heap = shelf.cells.setdefault(cell, [])
        if len(heap) < shelf.depth:
            heapq.heappush(heap, (value, key))
        elif value > heap[0][0]:
            self._let_go(heapq.heapreplace(heap, (value, key))[1])
        else:
            return
        known = self._packed.get(key)
        if known is None:
            known = _Packed(self._packing.pack(each), 0)
            self._bytes += len(known.data) + _ITEM_BYTES
        self._packed[key] = known._replace(places=known.places + 1)
        self._bytes += _PLACE_BYTES

    def _replace(self, key: Key, known: _Packed, each: Explained) -> None:
        data = self._packing.pack(each)
        self._bytes += len(data) - len(known.data)
        self._packed[key] = known._replace(data=data)

    def _let_go(self, key: Key) -> None:
        """Of one place."""
        known = self._packed[key]
        self._bytes -= _PLACE_BYTES
        if known.places > 1:
            self._packed[key] = known._replace(places=known.places - 1)
        else:
            self._bytes -= len(known.data) + _ITEM_BYTES
            del self._packed[key]

    def _make_room(self) -> None:
        while self._bytes > BYTES:
            # Of equal ones the first, which is the oldest.
            longest = max((*self._incidents.values(), *self._by_time()), key=lambda shelf: shelf.depth)
            self._shorten(longest, next(depth for depth in DEPTHS if depth < longest.depth))

    def _by_time(self) -> Iterator[_Shelf]:
        return (self._minutes[minute] for minute in sorted(self._minutes))

    def _shorten(self, shelf: _Shelf, depth: int) -> None:
        shelf.depth = depth
        for heap in shelf.cells.values():
            while len(heap) > depth:
                self._let_go(heapq.heappop(heap)[1])
        if not depth:
            shelf.cells.clear()


class _Packing:
    """Made of bytes and back. What all have in common, names above all, is a dictionary: the first one packed."""

    def __init__(self) -> None:
        self._common = b""

    def pack(self, each: Explained) -> bytes:
        if each.token_s is not None and np.isfinite(each.token_s).all():
            # Microseconds since the one before, the bytes of one weight together: a fifth of what they were.
            times_us = np.rint((each.token_s - each.start_s) * 1e6).astype("<i8")
            planes = np.diff(times_us, prepend=0).view(np.uint8).reshape(-1, 8).T
            each = each._replace(token_s=np.ascontiguousarray(planes))
        data = pickle.dumps(each, pickle.HIGHEST_PROTOCOL)
        self._common = self._common or data[:_COMMON_MAX]
        packer = zlib.compressobj(_FAST, zdict=self._common)
        return packer.compress(data) + packer.flush()

    def unpack(self, packed: bytes) -> Explained:
        data = zlib.decompressobj(zdict=self._common).decompress(packed)
        explained: Explained = pickle.loads(data)  # noqa: S301 - of our own making
        planes = explained.token_s
        if planes is None or planes.dtype != np.uint8:
            return explained
        gaps_us = np.ascontiguousarray(planes.T).view("<i8").reshape(-1)
        return explained._replace(token_s=explained.start_s + np.cumsum(gaps_us) * 1e-6)


def _places(explained: Sequence[Explained]) -> Iterator[list[tuple[int, _Cell, float]]]:
    """Of each request the minutes and cells that it was in, and how slow it was there."""
    if not explained:
        return
    records = [each.record for each in explained]
    made = [tokens if possible(tokens := tokens_made(record)) else None for record in records]
    prompts = [record.prompt_tokens if possible(record.prompt_tokens) else None for record in records]
    open_ = concurrency_buckets(np.array([record.concurrency for record in records])).tolist()
    shortest = context_buckets(np.array([prompt or 0 for prompt in prompts])).tolist()
    ends = [(prompt or 0) + (tokens or 0) for prompt, tokens in zip(prompts, made, strict=True)]
    longest = context_buckets(np.array(ends)).tolist()
    for row, each in enumerate(explained):
        of = each.group.server, each.group.model
        contexts = range(shortest[row], longest[row] + 1) if prompts[row] is not None else range(0)
        places: list[tuple[int, _Cell, float]] = []
        first_s = first_token_s(each.record)
        if first_s is not None and math.isfinite(first_s):
            minute = math.floor((each.start_s + first_s) / WIDTH_S)
            places.append((minute, (Signal.FIRST_TOKEN, *of, Ladder.CONCURRENCY, open_[row]), first_s))
            places += [(minute, (Signal.FIRST_TOKEN, *of, Ladder.CONTEXT, at), first_s) for at in contexts[:1]]
        gap_s = _longest_gap_s(each)
        tokens = made[row]
        if gap_s is not None and (tokens is None or tokens >= 2):
            last = math.floor(each.end_s / WIDTH_S)
            for minute in range(max(math.floor(each.start_s / WIDTH_S), last - LONG_MINUTES + 1), last + 1):
                places.append((minute, (Signal.INTER_TOKEN, *of, Ladder.CONCURRENCY, open_[row]), gap_s))
                places += [(minute, (Signal.INTER_TOKEN, *of, Ladder.CONTEXT, at), gap_s) for at in contexts]
        yield places


def _longest_gap_s(each: Explained) -> float | None:
    if each.token_s is None or len(each.token_s) < 2:
        return None
    gap_s = float(np.diff(each.token_s).max())
    return gap_s if math.isfinite(gap_s) else None
