"""Sums by cell of a long ring, of moments that touch only a few of its newest cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.detect.time_cells import TimeCells

Floats = NDArray[np.float64]


class Placed(NamedTuple):
    """Moments in the cells of a ring that they touch, from the oldest of these to the newest."""

    cells: NDArray[np.intp]
    """Places in the ring."""
    offsets: NDArray[np.intp]
    """Of every moment that is kept, its position in ``cells``."""
    kept: NDArray[np.bool_] | None
    """Which moments are; None: all."""

    def only(self, values: Floats) -> Floats:
        """Those of the moments that are kept."""
        return values if self.kept is None else values[self.kept]

    def sums(self, weights: Floats | None) -> NDArray[Any]:
        """By cell. None: their number."""
        return np.bincount(self.offsets, None if weights is None else self.only(weights), len(self.cells))


def place(ring: TimeCells, made_s: Floats, width_s: float, size: int) -> Placed:
    """As ``TimeCells.place``, for sums over few cells of a long ring. made_s: not empty, and never before 0."""
    numbers = (made_s / width_s).astype(np.intp)
    first, newest = int(numbers.min()), int(numbers.max())
    ring.advance(newest)
    kept = None
    if first <= ring.newest - size:
        kept = numbers > ring.newest - size
        numbers, first = numbers[kept], ring.newest - size + 1
    numbers -= first
    return Placed(np.arange(first, max(newest, first - 1) + 1) % size, numbers, kept)
