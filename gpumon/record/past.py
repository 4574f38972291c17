"""The last half hour of every scalar series, once a second, compressed in bounded memory.

Reads views of the store. A batch of an owner that is still the one of the last time costs nothing and adds nothing;
a new one adds a row, with the time at which it was read, so that what is read every 5 s is kept every 5 s and what has
no reading has no row. Every ``PACK_S`` the rows of all owners become one ``Chunk`` (``packing``; values keep the
digits that are stated there). Which series the columns are is told by tables, which chunks share for as long as the
series of an owner stay the same. The oldest chunks leave when there are more than ``memory_bytes``, or when they are
older than ``before_s``.

Kept: gauges and counters of all families but catalogue.WITHOUT_HISTORY; of those, the incidents all the same.
"""

from __future__ import annotations

import json
import sys
import threading
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import GROUPS, METRICS, WITHOUT_HISTORY
from gpumon.model import Kind
from gpumon.record.packing import DECIMALS, Block, pack
from gpumon.store import Batch, Key, View

PACK_S = 20.0
"""Longer chunks are smaller, and cost more memory until they are packed."""
_UNPACKED_SHARE = 8
_UNPACKED_MOST = 32 << 20
"""Rows are packed before that time once they take this part of the memory, or this much."""
_KEPT = frozenset(
    metric
    for metric in METRICS
    if metric.kind in (Kind.GAUGE, Kind.COUNTER) and (metric not in WITHOUT_HISTORY or metric in GROUPS["incidents"])
)


class Table(NamedTuple):
    """What the columns of blocks are. Numbers are never used again while gpumon runs."""

    number: int
    payload: bytes
    """As ``pack_table`` makes it."""


class Chunk(NamedTuple):
    """Some seconds of all owners."""

    number: int
    """Ascending, without gaps while nothing has left."""
    first_s: float
    last_s: float
    """Steady seconds of the oldest and the newest reading."""
    payload: bytes
    """As ``packing.pack`` makes it."""
    tables: tuple[Table, ...]
    """Those its blocks speak of."""


def pack_table(series: Sequence[Key]) -> bytes:
    """JSON, compressed: ``[[family, kind, unit, names of labels, [labels of each series]], ...]``, in column order."""
    families: list[tuple[str, str, str, tuple[str, ...], list[tuple[str, ...]]]] = []
    last = None
    for metric, labels in series:
        if metric is not last:
            families.append((metric.name, metric.kind.value, metric.unit.value, metric.labels, []))
            last = metric
        families[-1][4].append(labels)
    return zlib.compress(json.dumps(families, separators=(",", ":")).encode(), 1)


class _Part:
    """Series of one owner that came to be known together, and their rows that are not packed yet."""

    __slots__ = ("columns", "digits", "places", "positions", "rows", "table")

    def __init__(self, columns: list[Key]) -> None:
        self.columns = columns
        self.digits = np.array([DECIMALS[metric.unit] for metric, _ in columns], np.intp)
        self.table: Table | None = None
        """None: to be made with the next row."""
        self.rows: list[NDArray[np.float64]] = []
        self.positions: list[int] = []
        """Samples of the owner's batch that are of this part."""
        self.places: NDArray[np.intp] | None = None
        """Their columns in a row, the time being 0; None: all of them, in order."""

    def take(self, batch: Batch) -> int:
        """Add a row; its size."""
        row = np.empty(1 + len(self.columns))
        samples = batch.samples
        values = [samples[position].value for position in self.positions]
        if self.places is None:
            row[1:] = values
        else:
            row.fill(np.nan)
            row[self.places] = values
        row[0] = batch.at_s
        self.rows.append(row)
        return sys.getsizeof(row)


class _Owner:
    """What is known of one owner of batches."""

    __slots__ = ("batch", "keys", "parts")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        """The last one taken."""
        self.keys: list[Key] = []
        """Of all its samples, also of those that are not kept."""
        self.parts: list[_Part] = []

    def is_new(self, batch: Batch) -> bool:
        return self.batch is None or (batch is not self.batch and batch.at_s > self.batch.at_s)

    def look(self, batch: Batch) -> None:
        """Take notice of which series the batch has. Those not seen before become a part of their own."""
        self.batch = batch
        keys = [(metric, labels) for metric, labels, _ in batch.samples]
        if keys != self.keys:
            self.keys = keys
            known = {key for part in self.parts for key in part.columns}
            new = [key for key in keys if key[0] in _KEPT and key not in known]
            if new:
                self.parts.append(_Part(new))
            self._place()

    def tidy(self, alive: list[Key]) -> None:
        """After a chunk: one part again, of the series that had a reading in it, if it is not so already."""
        if len(self.parts) > 1 or any(len(part.columns) != len(alive) for part in self.parts):
            self.parts = [_Part(alive)] if alive else []
            self._place()

    def _place(self) -> None:
        position_of = {key: position for position, key in enumerate(self.keys)}
        for part in self.parts:
            found = [(position_of[key], column) for column, key in enumerate(part.columns, 1) if key in position_of]
            part.positions = [position for position, _ in found]
            is_whole = len(found) == len(part.columns)
            part.places = None if is_whole else np.array([column for _, column in found], np.intp)


class Past:
    """What was, up to a moment ago. One thread adds, others may read: one lock, held for some ms while packing.

    Memory: ``memory_bytes`` for chunks, tables and rows not packed yet, and beside it about 300 bytes for each living
    series.
    """

    def __init__(self, *, memory_bytes: int, before_s: float, pack_s: float = PACK_S) -> None:
        """before_s: how far back, at least, memory allowing; the oldest chunk may begin up to ``pack_s`` earlier."""
        self._lock = threading.Lock()
        self._memory_bytes = memory_bytes
        self._before_s = before_s
        self._pack_s = pack_s
        self._owners: dict[str, _Owner] = {}
        self._ended: list[_Part] = []
        """Of owners that are no more, with rows that are not packed yet."""
        self._unpacked_bytes = 0
        self._unpacked_since_s = 0.0
        self._chunks: deque[Chunk] = deque()
        self._chunk_bytes = 0
        self._uses: Counter[int] = Counter()
        """Chunks by table."""
        self._next_table = 1
        self._next_chunk = 1

    @property
    def size_bytes(self) -> int:
        """Memory in use, as counted against ``memory_bytes``."""
        with self._lock:
            return self._chunk_bytes + self._unpacked_bytes

    def add(self, view: View) -> None:
        """Take what is new in a view; to be called once a second, with growing times."""
        with self._lock:
            for name in self._owners.keys() - view.batches.keys():
                self._ended += self._owners.pop(name).parts
            for name, batch in view.batches.items():
                owner = self._owners.get(name)
                if owner is None:
                    owner = self._owners[name] = _Owner()
                if owner.is_new(batch):
                    self._take(owner, batch, view.at_s)
            is_much = self._unpacked_bytes > min(self._memory_bytes // _UNPACKED_SHARE, _UNPACKED_MOST)
            if self._unpacked_bytes and (is_much or view.at_s - self._unpacked_since_s >= self._pack_s):
                self._seal()
            self._forget(view.at_s - self._before_s)

    def seal(self) -> None:
        """Make a chunk of what is not packed yet, so that ``chunks`` has everything."""
        with self._lock:
            self._seal()

    def chunks(self, after: int = 0) -> list[Chunk]:
        """Every chunk with a number above ``after``, oldest first."""
        with self._lock:
            return [chunk for chunk in self._chunks if chunk.number > after]

    def _take(self, owner: _Owner, batch: Batch, at_s: float) -> None:
        owner.look(batch)
        for part in owner.parts:
            if part.positions:
                if part.table is None:
                    part.table = Table(self._next_table, pack_table(part.columns))
                    self._next_table += 1
                if not self._unpacked_bytes:
                    self._unpacked_since_s = at_s
                self._unpacked_bytes += part.take(batch)

    def _seal(self) -> None:
        blocks: list[Block] = []
        digits: list[NDArray[np.intp]] = []
        tables: list[Table] = []
        for owner in (None, *self._owners.values()):
            alive: list[Key] = []
            for part in self._ended if owner is None else owner.parts:
                if part.rows and part.table is not None:
                    rows = np.stack(part.rows)
                    part.rows = []
                    blocks.append(Block(part.table.number, rows))
                    digits.append(part.digits)
                    tables.append(part.table)
                    seen = np.isfinite(rows[:, 1:]).any(axis=0)
                    alive += [part.columns[column] for column in np.flatnonzero(seen)]
            if owner is not None and alive:  # nobody alive: it is slower than chunks are long
                owner.tidy(alive)
        self._ended, self._unpacked_bytes = [], 0
        if not blocks:
            return
        first_s = min(float(block.rows[0, 0]) for block in blocks)
        last_s = max(float(block.rows[-1, 0]) for block in blocks)
        chunk = Chunk(self._next_chunk, first_s, last_s, pack(blocks, digits), tuple(tables))
        self._next_chunk += 1
        self._chunks.append(chunk)
        self._chunk_bytes += len(chunk.payload)
        for table in tables:
            self._uses[table.number] += 1
            if self._uses[table.number] == 1:
                self._chunk_bytes += len(table.payload)

    def _forget(self, oldest_s: float) -> None:
        while self._chunks and (
            self._chunks[0].last_s < oldest_s or self._chunk_bytes + self._unpacked_bytes > self._memory_bytes
        ):
            chunk = self._chunks.popleft()
            self._chunk_bytes -= len(chunk.payload)
            for table in chunk.tables:
                self._uses[table.number] -= 1
                if not self._uses[table.number]:
                    del self._uses[table.number]
                    self._chunk_bytes -= len(table.payload)
