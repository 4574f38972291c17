"""Seconds by which tokens were late, by server and cause, of the last minute: of counters that the store keeps no past
of. A look every few seconds; bounded by the budget of their family."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Final

from gpumon import catalogue
from gpumon.model import Distribution
from gpumon.store import View

LOOKS: Final = 13
"""A minute, of looks that are five seconds apart."""

Key = tuple[str, str, str]
"""Kind of server, model, cause."""


class Lateness:
    """``take`` from one thread, ``of`` from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: deque[tuple[float, dict[Key, float]]] = deque(maxlen=LOOKS)

    def take(self, view: View) -> None:
        """Look at the counters."""
        now: dict[Key, float] = {}
        for sample in view.family(catalogue.SLOW_TOKEN_SECONDS):
            server, model, _, cause = sample.labels
            if not isinstance(sample.value, Distribution):
                now[server, model, cause] = now.get((server, model, cause), 0.0) + sample.value
        with self._lock:
            self._looks.append((view.at_s, now))

    def of(self, server: str, model: str) -> Mapping[str, float] | None:
        """Seconds lost each second, by cause, the largest first; None where two looks did not know of it."""
        with self._lock:
            looks = [*self._looks]
        known = [(at_s, now) for at_s, now in looks if (server, model, "unexplained") in now]
        if len(known) < 2:
            return None
        (first_s, first), (last_s, last) = known[0], known[-1]
        grown = {
            cause: (last[server, model, cause] - first.get((server, model, cause), 0.0)) / (last_s - first_s)
            for cause in catalogue.CAUSES
            if (server, model, cause) in last
        }
        return dict(sorted(((cause, lost) for cause, lost in grown.items() if lost > 0.0), key=lambda item: -item[1]))
