"""Log-spaced buckets of durations: the form in which windows are kept, merged and asked for quantiles.

Base 2^(1/16) from 0.1 ms to 609 s, 361 buckets. Bucket i holds (2^((i-1)/16), 2^(i/16)] seconds, which is schema 4 of
Prometheus' native histograms and scale 4 of OTLP's exponential ones, so a row can be exposed without conversion. Rows
merge by addition. A quantile is the geometric middle of the bucket of the ranked value, at most 2.2 % off; what is
below 0.1 ms reads as 0.1 ms, what is above 609 s as 596 s.

The classic histograms that are exported have other bounds, and their counts must be exact at these. They are counted
apart; ``ClassicBuckets`` finds their bucket from the log bucket faster than a search does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PER_DOUBLING: Final = 16
LOWEST: Final = -212
"""Index of the first bucket, which also holds everything below: up to 0.1026 ms."""
HIGHEST: Final = 148
"""Index of the last bucket, which also holds everything above: from 583 s."""
SIZE: Final = HIGHEST - LOWEST + 1
RELATIVE_ERROR: Final = 2 ** (0.5 / PER_DOUBLING) - 1
"""Largest error of a quantile between 0.1 ms and 609 s: 2.19 %."""

_MIDDLES: NDArray[np.float64] = 2.0 ** ((np.arange(LOWEST, HIGHEST + 1) - 0.5) / PER_DOUBLING)
_SMALLEST_S = 1e-9  # has a logarithm, and is in the first bucket


def log_buckets(seconds: NDArray[np.float64]) -> NDArray[np.intp]:
    """Positions 0 to SIZE - 1 of finite durations >= 0. Within 1e-14 of an edge the neighbour is possible."""
    indices = np.maximum(seconds, _SMALLEST_S)  # then in place: new memory costs as much as the arithmetic
    np.log2(indices, out=indices)
    indices *= PER_DOUBLING
    np.ceil(indices, out=indices)
    indices -= LOWEST
    np.maximum(indices, 0, out=indices)
    np.minimum(indices, SIZE - 1, out=indices)
    positions: NDArray[np.intp] = indices.astype(np.intp)
    return positions


def quantiles(rows: NDArray[Any], shares: tuple[float, ...]) -> NDArray[np.float64]:
    """Quantiles of each row of counts: shape (rows, shares), seconds; NaN in a row without observations.

    The quantile q of n values is the one of rank ceil(q n), from 1.
    """
    sums = np.cumsum(rows, axis=1, dtype=np.int64)
    counts = sums[:, -1]
    found = np.empty((len(rows), len(shares)))
    for column, share in enumerate(shares):
        ranks = np.maximum(np.ceil(share * counts), 1)
        found[:, column] = _MIDDLES[np.argmax(sums >= ranks[:, None], axis=1)]
    found[counts == 0] = np.nan
    return found


class ClassicBuckets:
    """Finds buckets of a classic histogram: the position of the first bound that is not below the value."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """bounds: ascending, seconds, between 0.1 and 600 and at least 2^(1/16) apart."""
        self._bounds = np.array(bounds)
        edges = 2.0 ** (np.arange(LOWEST - 1, HIGHEST + 1) / PER_DOUBLING)
        # A little wider than the bucket is: whatever rounding put a value there, the answer below is exact.
        lows, highs = edges[:-1] * (1 - 1e-9), edges[1:] * (1 + 1e-9)
        lows[0], highs[-1] = 0.0, np.inf
        self._below = np.searchsorted(self._bounds, lows, "left")
        inside = np.searchsorted(self._bounds, highs, "right") - self._below
        self._one_inside = bool(inside.max() <= 1)
        self._bound = np.append(self._bounds, np.inf)[self._below]

    @property
    def size(self) -> int:
        """Buckets, the one for +Inf among them."""
        return len(self._bounds) + 1

    def of(self, seconds: NDArray[np.float64], logs: NDArray[np.intp]) -> NDArray[np.intp]:
        """Positions of durations whose ``log_buckets`` are known."""
        if not self._one_inside:
            return np.searchsorted(self._bounds, seconds, "left")
        # With none inside, the next bound above stands there, and no value of the bucket passes it.
        return self._below[logs] + (seconds > self._bound[logs])
