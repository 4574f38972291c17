"""Latencies of the last hour as log-bucket rows: one per minute, series and bucket of concurrency or of context.

Rows are taken from a fixed pool as they are needed and given back when their minute is an hour old, so memory is
1,444 bytes per row (7.2 MB for 5,000) whatever happens. A server whose traffic falls into four buckets of each ladder
needs 960 rows an hour for both signals. When the pool is empty the oldest minute goes, early, and is counted.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CONCURRENCY_BUCKETS, CONTEXT_BUCKETS
from gpumon.requests.logbuckets import SIZE, quantiles

WIDTH_S: Final = 60.0
MINUTES: Final = 60
QUANTILES: Final = (0.5, 0.95, 0.99)
_COLUMNS = len(CONCURRENCY_BUCKETS) + len(CONTEXT_BUCKETS)
_NEVER = -(1 << 60)


class Signal(IntEnum):
    """What is kept in windows."""

    FIRST_TOKEN = 0
    INTER_TOKEN = 1


class Ladder(IntEnum):
    """By what; the value is the first column of its buckets."""

    CONCURRENCY = 0
    CONTEXT = len(CONCURRENCY_BUCKETS)

    @property
    def labels(self) -> tuple[str, ...]:
        return CONTEXT_BUCKETS if self is Ladder.CONTEXT else CONCURRENCY_BUCKETS


class Row(NamedTuple):
    """Observations of one minute, series and bucket."""

    signal: Signal
    slot: int
    position: int
    """Position of the bucket on its ladder; -1: all of them."""
    start_s: float
    """Steady seconds of the minute's beginning."""
    counts: NDArray[np.int64]


class Places(NamedTuple):
    """Observations on their way into rows, as columns of one length."""

    cells: NDArray[np.intp]
    """Series and minute."""
    minutes: NDArray[np.int64]
    logs: NDArray[np.intp]
    weights: NDArray[np.int64] | None
    late: NDArray[np.bool_] | None
    """Those whose minute is gone; None where none is."""

    def only(self, chosen: NDArray[np.bool_]) -> Places:
        """Some of them."""
        return Places(*(None if column is None else column[chosen] for column in self))  # type: ignore[arg-type]


class Windows:
    """The pool of rows. Not thread-safe. Series are slots 0 to ``slots`` - 1."""

    def __init__(self, slots: int, rows: int) -> None:
        """rows: size of the pool; at least one minute of everything, 34 per slot."""
        self._rows = max(rows, slots * len(Signal) * _COLUMNS)
        self._pool = np.zeros((self._rows, SIZE), dtype=np.uint32)
        self._table = np.full((len(Signal) * _COLUMNS, slots * MINUTES), -1, dtype=np.intp)
        """Row by signal and bucket, series and minute; -1 for none."""
        self._free = list(range(self._rows - 1, -1, -1))
        self._keys = np.full(self._rows, -1, dtype=np.int64)
        """By row: its position in the flat table; -1 for a free one."""
        self._minutes = np.full(self._rows, _NEVER, dtype=np.int64)
        self._newest = _NEVER
        self.late = 0
        """Observations of minutes that are gone."""
        self.evicted = 0
        """Observations that left early for lack of room."""

    @property
    def used(self) -> int:
        """Rows in use."""
        return self._rows - len(self._free)

    @property
    def capacity_bytes(self) -> int:
        """Bytes when full."""
        return self._pool.nbytes + self._table.nbytes + self._keys.nbytes + self._minutes.nbytes

    def places(
        self,
        slots: NDArray[np.intp],
        at_s: NDArray[np.float64],
        logs: NDArray[np.intp],
        weights: NDArray[np.int64] | None,
    ) -> Places:
        """Where observations belong, as columns of one length. at_s: steady times, none of them in the future."""
        minutes = (at_s * (1 / WIDTH_S)).astype(np.int64)  # steady time is positive: the floor
        if len(minutes):
            self._advance(int(minutes.max()))
        late = minutes <= self._newest - MINUTES
        places = Places(slots * MINUTES + minutes % MINUTES, minutes, logs, weights, late if late.any() else None)
        if places.late is not None:
            self.late += _weight(weights, places.late)
        return places

    def insert(self, signal: Signal, ladder: Ladder, positions: NDArray[np.intp], places: Places) -> None:
        """Count observations in buckets of a ladder, where ``places`` said just now."""
        if places.late is not None:
            current = ~places.late
            positions, places = positions[current], places.only(current)
        keys = positions + (signal * _COLUMNS + ladder)
        keys *= self._table.shape[1]
        keys += places.cells
        logs, weights = places.logs, places.weights
        table = self._table.reshape(-1)
        rows = table[keys]
        if len(rows) and rows.min() < 0:
            missing, first = np.unique(keys[rows < 0], return_index=True)
            self._take(missing, places.minutes[rows < 0][first])
            rows = table[keys]
            if rows.min() < 0:
                held = rows >= 0
                self.evicted += _weight(weights, ~held)
                rows, logs = rows[held], logs[held]
                weights = None if weights is None else weights[held]
        rows *= SIZE
        rows += logs
        if weights is None:
            np.add.at(self._pool.reshape(-1), rows, np.uint32(1))
        else:
            np.add.at(self._pool.reshape(-1), rows, weights.astype(np.uint32))

    def clear(self, slot: int) -> None:
        """Forget a series."""
        rows = self._table[:, slot * MINUTES : (slot + 1) * MINUTES]
        self._release(rows[rows >= 0])

    def rows(self, ladder: Ladder, since_s: float, at_s: float) -> list[Row]:
        """Rows of minutes that end after ``since_s``, of the newest 60 by ``at_s``: by signal, slot, bucket, time."""
        oldest = max(int(since_s // WIDTH_S), int(at_s // WIDTH_S) - MINUTES + 1)
        taken = np.flatnonzero((self._keys >= 0) & (self._minutes >= oldest))
        columns, cells = np.divmod(self._keys[taken], self._table.shape[1])
        signals, positions = np.divmod(columns, _COLUMNS)
        positions -= ladder
        slots = cells // MINUTES
        mine = (positions >= 0) & (positions < len(ladder.labels))
        order = np.lexsort((self._minutes[taken], positions, slots, signals))
        return [
            Row(
                Signal(int(signals[i])),
                int(slots[i]),
                int(positions[i]),
                float(self._minutes[taken[i]]) * WIDTH_S,
                self._pool[taken[i]].astype(np.int64),
            )
            for i in order.tolist()
            if mine[i]
        ]

    def _advance(self, minute: int) -> None:
        if minute > self._newest:
            self._newest = minute
            self._release(np.flatnonzero((self._keys >= 0) & (self._minutes <= minute - MINUTES)))

    def _take(self, keys: NDArray[np.intp], minutes: NDArray[np.int64]) -> None:
        for key, minute in zip(keys.tolist(), minutes.tolist(), strict=True):
            if not self._free:
                oldest = int(self._minutes[self._keys >= 0].min())
                if oldest >= minute:
                    continue
                gone = np.flatnonzero(self._minutes == oldest)
                self.evicted += int(self._pool[gone].sum(dtype=np.int64))
                self._release(gone)
            row = self._free.pop()
            self._table.reshape(-1)[key] = row
            self._keys[row], self._minutes[row] = key, minute

    def _release(self, rows: NDArray[np.integer]) -> None:
        if not len(rows):
            return
        self._table.reshape(-1)[self._keys[rows]] = -1
        self._pool[rows] = 0
        self._keys[rows] = -1
        self._minutes[rows] = _NEVER
        self._free.extend(sorted(rows.tolist(), reverse=True))


def merged(rows: list[Row]) -> list[Row]:
    """Rows of one ladder, merged over its buckets."""
    sums: dict[tuple[Signal, int, float], NDArray[np.int64]] = {}
    for row in rows:
        key = (row.signal, row.slot, row.start_s)
        known = sums.get(key)
        sums[key] = row.counts if known is None else known + row.counts
    return [Row(*key[:2], -1, key[2], sums[key]) for key in sorted(sums)]


def quantiles_of(rows: list[Row]) -> NDArray[np.float64]:
    """Seconds, shape (rows, QUANTILES)."""
    return quantiles(np.array([row.counts for row in rows]).reshape(-1, SIZE), QUANTILES)


def _weight(weights: NDArray[np.int64] | None, chosen: NDArray[np.bool_]) -> int:
    return int(chosen.sum() if weights is None else weights[chosen].sum())
