"""An hour of what limited each GPU, and of its SM and DRAM activity: a point every five seconds, in memory that is
reserved once. Fed from the store's counters; only where the API is on.

The counters are the sampler's integrals, so a point is the mean over its five seconds, whatever the rate of looks.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.model import Distribution, Metric
from gpumon.store import View
from gpumon.web.lateness import Lateness

STEP_S: Final = 5.0
POINTS: Final = 720
"""An hour."""
GPUS: Final = 16
"""Of more, the one that has been silent longest gives way: 20 kB each."""
_STATES: Final = len(catalogue.BOUND_STATES)
_SM, _DRAM = _STATES, _STATES + 1
_COLUMNS: Final = _STATES + 2

Gpu = tuple[str, str]
"""Index and UUID."""


class Past(NamedTuple):
    """Of one GPU, by steps of time, oldest first: NaN where nothing was sampled."""

    gpu: str
    uuid: str
    shares: NDArray[np.float64]
    """(steps, states): of the time sampled."""
    sm_active: NDArray[np.float64]
    dram_active: NDArray[np.float64]


class _Ring:
    __slots__ = ("gpu", "last", "newest", "seconds")

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self.seconds = np.zeros((POINTS, _COLUMNS), dtype=np.float32)
        """By step: seconds by state, and the integrals of SM and DRAM activity."""
        self.last: NDArray[np.float64] | None = None
        """The counters as they were last."""
        self.newest = -1

    def advance(self, number: int) -> None:
        """Steps up to this one begin anew."""
        if number > self.newest:
            fresh = np.arange(max(self.newest + 1, number - POINTS + 1), number + 1) % POINTS
            self.seconds[fresh] = 0.0
            self.newest = number


class Activity:
    """``take`` from one thread, ``past`` from any: one lock, held shortly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings: dict[str, _Ring] = {}
        self._taken = -1
        self.lateness = Lateness()
        """Fed at the same times."""

    def take(self, view: View) -> None:
        """Look at the counters, if a step is over since the last look. To be called at least that often."""
        number = int(view.at_s // STEP_S)
        if number <= self._taken:
            return
        self._taken = number
        self.lateness.take(view)
        counters = _counters(view)
        with self._lock:
            for (gpu, uuid), now in counters.items():
                ring = self._rings.get(uuid) or self._make(gpu, uuid)
                # What grew until now did so in the step before this one.
                ring.advance(number - 1)
                if ring.last is not None:
                    grown = now - ring.last
                    if (grown >= 0.0).all():
                        ring.seconds[(number - 1) % POINTS] += grown
                ring.last = now
            for uuid, ring in self._rings.items():
                if uuid not in {of[1] for of in counters}:
                    ring.last = None

    def past(self, first: int, last: int, width: int, uuid: str | None = None) -> list[Past]:
        """Of each GPU, or of one, steps ``first`` to ``last`` in bundles of ``width``, which divides their number.

        Step n is [n, n + 1) times STEP_S of steady seconds.
        """
        numbers = np.arange(first, last + 1)
        found = []
        with self._lock:
            chosen = [(of, ring) for of, ring in self._rings.items() if uuid in (None, of)]
            for of, ring in chosen:
                kept = (numbers <= ring.newest) & (numbers > ring.newest - POINTS) & (numbers >= 0)
                seconds = np.where(kept[:, None], ring.seconds[numbers % POINTS], 0.0).astype(np.float64)
                found.append(_past(ring.gpu, of, seconds.reshape(-1, width, _COLUMNS).sum(axis=1)))
        return sorted(found, key=lambda each: (len(each.gpu), each.gpu, each.uuid))

    def _make(self, gpu: str, uuid: str) -> _Ring:
        if len(self._rings) >= GPUS:
            del self._rings[min(self._rings, key=lambda known: self._rings[known].newest)]
        ring = self._rings[uuid] = _Ring(gpu)
        return ring


def _past(gpu: str, uuid: str, seconds: NDArray[np.float64]) -> Past:
    sampled_s = seconds[:, :_STATES].sum(axis=1)
    sampled_s[sampled_s <= 0.0] = np.nan
    shares = seconds / sampled_s[:, None]
    return Past(gpu, uuid, shares[:, :_STATES], np.minimum(shares[:, _SM], 1.0), np.minimum(shares[:, _DRAM], 1.0))


def _counters(view: View) -> dict[Gpu, NDArray[np.float64]]:
    """Those of GPUs that have all of them."""
    found: dict[Gpu, NDArray[np.float64]] = {}
    for metric in (catalogue.GPU_BOUND_SECONDS, catalogue.GPU_SM_ACTIVE_SECONDS, catalogue.GPU_DRAM_ACTIVE_SECONDS):
        for sample in view.family(metric):
            column = _COLUMN_OF.get((metric, sample.labels[2:]))
            if column is not None and not isinstance(sample.value, Distribution):
                row = found.setdefault((sample.labels[0], sample.labels[1]), np.full(_COLUMNS, np.nan))
                row[column] = sample.value
    return {of: row for of, row in found.items() if not np.isnan(row).any()}


_COLUMN_OF: Final[dict[tuple[Metric, tuple[str, ...]], int]] = {
    **{(catalogue.GPU_BOUND_SECONDS, (state,)): column for column, state in enumerate(catalogue.BOUND_STATES)},
    (catalogue.GPU_SM_ACTIVE_SECONDS, ()): _SM,
    (catalogue.GPU_DRAM_ACTIVE_SECONDS, ()): _DRAM,
}
