"""A period in cells of one width, and what requests do in it, spread evenly over the time that each took."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

WIDTH_S: Final = 10.0
MOST: Final = 360
"""Cells: longer periods have wider ones."""
FINE: Final = 60
"""Cells that a short period is to have about, where they may be narrow."""
FINE_S: Final = (1.0, 2.0, 5.0)
"""Their widths."""
_SHORTEST_S: Final = 1e-3
"""What took no time is spread over this."""

Floats = NDArray[np.float64]


class Cells:
    """Cell i is [start_s + i width_s, start_s + (i + 1) width_s)."""

    def __init__(self, start_s: float, end_s: float, *, fine: bool = False) -> None:
        """Steady seconds. At least one cell, at most MOST; the last one may end after end_s. fine: whether those of a
        short period are narrower."""
        span_s = max(end_s - start_s, 0.0)
        self.start_s = start_s
        self.width_s = WIDTH_S * max(1.0, float(np.ceil(span_s / (MOST * WIDTH_S))))
        if fine:
            self.width_s = next((width_s for width_s in FINE_S if span_s <= FINE * width_s), self.width_s)
        self.count = max(1, int(np.ceil(span_s / self.width_s)))

    def edges(self) -> Floats:
        """Relative to start_s, count + 1 of them."""
        return np.arange(self.count + 1, dtype=np.float64) * self.width_s

    def at(self, moments_s: Floats) -> NDArray[np.intp]:
        """The cells of moments; those outside count to the first or the last."""
        positions: NDArray[np.intp] = np.clip((moments_s - self.start_s) // self.width_s, 0, self.count - 1).astype(
            np.intp
        )
        return positions

    def period(self, first: int, last: int) -> tuple[float, float]:
        """Steady seconds from the begin of a cell to the end of another."""
        return self.start_s + first * self.width_s, self.start_s + (last + 1) * self.width_s

    def spread(
        self, start_s: Floats, end_s: Floats, amounts: Floats, owners: NDArray[np.intp] | None = None, size: int = 1
    ) -> Floats:
        """Sums by owner and cell of the amounts, each spread evenly from start to end: (size, count).

        owners: position of each amount's owner, below size; None: all are the first one's. What lies outside the cells
        is left out.
        """
        begin = start_s - self.start_s
        end = np.maximum(end_s - self.start_s, begin + _SHORTEST_S)
        rates = amounts / (end - begin)
        of = np.zeros(len(begin), dtype=np.intp) if owners is None else owners
        edges = self.edges()
        total = np.zeros((size, self.count + 1))
        # What has passed by an edge t: the sum of rate (t - begin) over those begun, less the same from their ends.
        for moments, sign in ((begin, 1.0), (end, -1.0)):
            flat = of * (self.count + 2) + np.searchsorted(edges, moments, "left")
            shape = (size, self.count + 2)
            slope = np.bincount(flat, rates, size * (self.count + 2)).reshape(shape)[:, :-1].cumsum(axis=1)
            passed = np.bincount(flat, rates * moments, size * (self.count + 2)).reshape(shape)[:, :-1].cumsum(axis=1)
            total += sign * (edges * slope - passed)
        return np.maximum(np.diff(total, axis=1), 0.0)
