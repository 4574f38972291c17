"""How many requests a server had open over the last minutes, as somebody saw it while they ran.

Spans tell of most requests only when they end, so the concurrency at a token's time is usually that at the arrival of
its request. Whoever sees every request of a server while it runs (a proxy, the server's own gauge) knows better; what
it observed is kept here and decides for tokens made within ``VALID_S`` after an observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

VALID_S = 5.0
_POINTS = 1024


class Running:
    """The newest 1,024 observations of one server, 16 kB."""

    def __init__(self) -> None:
        self._times = np.empty(2 * _POINTS)
        self._open = np.empty(2 * _POINTS, dtype=np.int64)
        self._end = 0

    def observe(self, open_requests: int, at_s: float) -> None:
        """So many were open at this steady time. An observation that is not newer than the last one is ignored."""
        if self._end and at_s <= self._times[self._end - 1]:
            return
        if self._end == 2 * _POINTS:
            self._times[:_POINTS], self._open[:_POINTS] = self._times[_POINTS:], self._open[_POINTS:]
            self._end = _POINTS
        self._times[self._end] = at_s
        self._open[self._end] = open_requests
        self._end += 1

    def at(self, at_s: NDArray[np.float64], otherwise: NDArray[Any]) -> NDArray[np.int64]:
        """Open requests at each time; ``otherwise`` where nobody looked, or saw none although one was open."""
        times, counts = self._times[: self._end], self._open[: self._end]
        positions = np.searchsorted(times, at_s, "right") - 1
        if not self._end:
            return otherwise.astype(np.int64)
        found = counts[positions]
        good = (positions >= 0) & (at_s - times[positions] <= VALID_S) & (found > 0)
        return np.where(good, found, otherwise)
