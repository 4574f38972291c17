"""Columns of one value a second, the newest ten minutes, each second filled once.

Second n is [n, n + 1) steady seconds. A value is either of a stretch of time (a rate between two readings): then it
fills the seconds whose middle lies in that stretch, so that successive stretches fill each second once. Or it is the
level of a moment: then it fills the second of that moment, and those after it until the next one is known, as long as
it is believed. NaN is what is not known.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

SECONDS: Final = 600

Floats = NDArray[np.float64]


class SecondTrack:
    """Not thread-safe. Memory: 4 bytes a column and second, 2.4 kB a column."""

    def __init__(self, is_level: NDArray[np.bool_], at_s: float) -> None:
        """is_level: which columns hold levels; the others hold means of stretches. at_s: nothing is filled before."""
        width = len(is_level)
        self._is_level = is_level
        self._rows = np.full((SECONDS, width), np.nan, dtype=np.float32)
        self._newest = int(at_s // 1.0)
        """The newest second that has a row."""
        self._oldest = self._newest
        self._filled = np.full(width, self._newest - 1, dtype=np.int64)
        """The newest second that is filled, or will not be filled any more."""
        self._level = np.full(width, np.nan)
        self._level_s = np.full(width, -np.inf)

    def fill(self, values: Floats, since_s: Floats, at_s: Floats, hold_s: Floats, now_s: float) -> None:
        """What became known by now: arrays of one entry a column.

        values: NaN: nothing new. since_s, at_s: the stretch of each, or at_s alone the moment of a level. hold_s: how
        long a level is believed. now_s: never less than before.
        """
        now = int(now_s // 1.0)
        self._advance(now)
        is_new, is_level = ~np.isnan(values), self._is_level
        at_s = np.where(is_new, at_s, now_s)
        moments = np.floor(at_s)
        # A level goes on until the second before the next one; one of the last second may still be under way.
        last_s = np.minimum(np.where(is_new, moments, now - 1.0) - 1.0, np.floor(self._level_s + hold_s) - 1.0)
        held = is_level & ~np.isnan(self._level)
        self._write(self._filled + 1, np.where(held, last_s, -1.0), self._level)
        firsts = np.where(is_level, moments, np.floor(np.where(is_new, since_s, now_s) - 0.5) + 1.0)
        lasts = np.where(is_level, moments, np.floor(at_s - 0.5))
        self._write(np.maximum(self._filled + 1, firsts), np.where(is_new, np.minimum(lasts, now), -1.0), values)
        newer = is_new & is_level & (at_s > self._level_s)
        self._level = np.where(newer, values, self._level)
        self._level_s = np.where(newer, at_s, self._level_s)

    def means(self, start_s: float, end_s: float) -> NDArray[np.float32]:
        """Of each column, the mean of the known seconds that the stretch touches; NaN where there are none."""
        rows = self._between(int(start_s // 1.0), int(end_s // 1.0))
        known = ~np.isnan(rows)
        counts = known.sum(axis=0)
        sums = np.where(known, rows, 0.0).sum(axis=0, dtype=np.float64)
        found = np.full(len(self._is_level), np.nan, dtype=np.float32)
        np.divide(sums, counts, out=found, where=counts > 0, casting="same_kind")
        return found

    def series(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The seconds, oldest first, and their values, shape (columns, seconds): a copy."""
        first = max(self._oldest, self._newest - SECONDS + 1)
        return np.arange(first, self._newest + 1), np.ascontiguousarray(self._between(first, self._newest).T)

    def _between(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows of the seconds from first to last, as far as they are kept."""
        first, last = max(first, self._newest - SECONDS + 1, 0), min(last, self._newest)
        if last < first:
            return self._rows[:0]
        start, stop = first % SECONDS, last % SECONDS + 1
        if start < stop:
            return self._rows[start:stop]
        return np.concatenate([self._rows[start:], self._rows[:stop]])

    def _advance(self, now: int) -> None:
        if now > self._newest:
            fresh = np.arange(max(self._newest + 1, now - SECONDS + 1), now + 1) % SECONDS
            self._rows[fresh] = np.nan
            self._newest = now

    def _write(self, firsts: Floats | NDArray[np.int64], lasts: Floats, values: Floats) -> None:
        """Each column's value into its seconds from first to last; none where last is before first."""
        due = lasts >= firsts
        if not due.any():
            return
        low = max(int(firsts[due].min()), self._newest - SECONDS + 1)
        for second in range(low, int(lasts[due].max()) + 1):
            now = due & (firsts <= second) & (second <= lasts)
            row = self._rows[second % SECONDS]
            row[now] = values[now]
        self._filled = np.where(due, lasts, self._filled).astype(np.int64)
