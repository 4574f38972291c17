"""Requests that a server's page says are running and no request that ended tells of: those that still run.

What is known of a batch comes from requests that have ended. Of one that answers for half a minute nothing is known
until then, and the batch that it was in looks smaller than it was, by the more the longer answers are. The page says
every few seconds how many there are; what the known ones do not account for is left, and between two readings it
changes evenly. Of three readings the middle one counts: pages and requests are looked at on slightly different moments.

Only where one page names the model: of two replicas nobody can say whose requests they were.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

KEPT: Final = 256
"""Readings: eight minutes of them at two seconds each."""
FAR_S: Final = 5.0
"""From a reading; what is farther is not known by it."""

Array = NDArray[np.float64]


class RunningPages:
    """Of one group. Not thread-safe."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """When, and how many."""

    def add(self, at_s: float, running: float) -> None:
        """What a page said, steady seconds. The same reading may be told again."""
        if math.isfinite(running) and running >= 0 and (not self._readings or at_s > self._readings[-1][0]):
            self._readings.append((at_s, running))

    def unknown(self, moments_s: Array, known: Callable[[Array], Array]) -> Array:
        """Requests running at each of n moments, ascending, that are not known; 0 far from any reading.

        known: how many are, of m moments, ascending.
        """
        nothing = np.zeros(len(moments_s))
        if not self._readings or not len(moments_s):
            return nothing
        table = np.array(self._readings)
        first, last = np.searchsorted(table[:, 0], (moments_s[0] - 2 * FAR_S, moments_s[-1] + 2 * FAR_S))
        read_s, running = table[first:last].T
        if not len(read_s):
            return nothing
        left = np.maximum(running - known(read_s), 0.0)
        around = np.concatenate([left[:1], left, left[-1:]])
        low, high = np.minimum(around[:-2], around[2:]), np.maximum(around[:-2], around[2:])
        left = np.minimum(np.maximum(left, low), high)  # the middle one of three
        places = np.searchsorted(read_s, moments_s)
        before, after = read_s[np.maximum(places - 1, 0)], read_s[np.minimum(places, len(read_s) - 1)]
        near = np.minimum(np.abs(moments_s - before), np.abs(moments_s - after)) <= FAR_S
        return np.where(near, np.interp(moments_s, read_s, left), 0.0)
