"""Rings of the newest points of every scalar series, in memory that is reserved once.

One row of numpy per series: values in the unit of the metric, times in steady seconds. A row that nobody has written
costs no memory, since the pages of fresh zeros are not touched. When all rows are taken, further series have no
history; ``refused`` says how many.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumon.model import Metric

Key = tuple[Metric, tuple[str, ...]]


class History:
    """All rings. The caller holds ``lock`` for everything but ``window``, which takes it."""

    def __init__(self, *, points: int, series: int, lock: threading.Lock) -> None:
        self._lock = lock
        self._points = points
        self._values: NDArray[np.float64] = np.zeros((series, points))
        self._times: NDArray[np.float64] = np.zeros((series, points))
        self._next: NDArray[np.intp] = np.zeros(series, dtype=np.intp)
        self._filled: NDArray[np.intp] = np.zeros(series, dtype=np.intp)
        self._slots: dict[Key, int] = {}
        self._unused = series
        self._freed: list[int] = []
        self._without: set[Key] = set()

    @property
    def capacity_bytes(self) -> int:
        """Bytes when every row is full."""
        return self._values.nbytes + self._times.nbytes + self._next.nbytes + self._filled.nbytes

    @property
    def kept(self) -> int:
        """Series that have history."""
        return len(self._slots)

    @property
    def refused(self) -> int:
        """Living series that found no free row."""
        return len(self._without)

    def slot(self, key: Key) -> int | None:
        """Row of the series, a new and empty one if it had none; None when all are taken."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        if self._freed:
            slot = self._freed.pop()
        elif self._unused:
            self._unused -= 1
            slot = self._unused
        else:
            self._without.add(key)
            return None
        self._without.discard(key)
        self._slots[key] = slot
        self._filled[slot] = self._next[slot] = 0
        return slot

    def release(self, keys: Iterable[Key]) -> None:
        """Forget series; their rows are free for others."""
        for key in keys:
            self._without.discard(key)
            slot = self._slots.pop(key, None)
            if slot is not None:
                self._freed.append(slot)

    def append(self, slots: NDArray[np.intp], at_s: float, values: Sequence[Any]) -> None:
        """Add one point to each row. Rows whose newest point is not older keep what they have."""
        if not len(slots):
            return
        at = self._next[slots]
        newest = self._times[slots, at - 1]  # -1 of an unwrapped ring is its last cell: fine when it was filled
        fresh = (self._filled[slots] == 0) | (newest < at_s)
        new = np.asarray(values, dtype=np.float64)
        if not fresh.all():
            slots, at, new = slots[fresh], at[fresh], new[fresh]
        self._values[slots, at] = new
        self._times[slots, at] = at_s
        self._next[slots] = (at + 1) % self._points
        self._filled[slots] = np.minimum(self._filled[slots] + 1, self._points)

    def window(self, key: Key, since_s: float, until_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Copies of times and values of the points with ``since_s <= time <= until_s``, oldest first."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                return np.empty(0), np.empty(0)
            filled, after = int(self._filled[slot]), int(self._next[slot])
            order = np.arange(after - filled, after)  # negative indices are the older end of a wrapped ring
            times, values = self._times[slot, order], self._values[slot, order]
        first, last = np.searchsorted(times, since_s, "left"), np.searchsorted(times, until_s, "right")
        return times[first:last], values[first:last]
