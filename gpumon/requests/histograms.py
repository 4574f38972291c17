"""Classic histograms of many series as one array: exact counts, exact sums, and the newest exemplar of each bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.model import Distribution, Exemplar, Metric
from gpumon.requests.logbuckets import ClassicBuckets

_NS = 1_000_000_000


class Observations:
    """Durations that are to be counted, as columns of one length."""

    __slots__ = ("buckets", "nanoseconds", "seconds", "weights")

    def __init__(
        self,
        seconds: NDArray[np.float64],
        nanoseconds: NDArray[np.int64],
        buckets: NDArray[np.intp],
        weights: NDArray[np.int64] | None = None,
    ) -> None:
        """seconds: the values; nanoseconds: what each adds to the sum, its weight included; buckets: of the classic
        histogram; weights: how often each was observed, at least once; None for once each.
        """
        self.seconds = seconds
        self.nanoseconds = nanoseconds
        self.buckets = buckets
        self.weights = weights

    def only(self, chosen: NDArray[np.bool_]) -> Observations:
        """Some of them."""
        weights = None if self.weights is None else self.weights[chosen]
        return Observations(self.seconds[chosen], self.nanoseconds[chosen], self.buckets[chosen], weights)


class Added(NamedTuple):
    """What one insertion added."""

    counts: NDArray[np.int64]
    sums_ns: NDArray[np.float64]
    flat: NDArray[np.intp]
    """Where each observation was counted, in the flat counts."""
    seconds: NDArray[np.float64]


Trace = tuple[str, float]
"""Trace id ("" for none) and steady time of a request."""


class Histograms:
    """Histograms of one family, one per cell. Not thread-safe."""

    def __init__(self, metric: Metric, cells: int) -> None:
        self.metric = metric
        self.classic = ClassicBuckets(metric.bounds)
        self._cells = cells
        self._size = self.classic.size
        self._counts = np.zeros((cells, self._size), dtype=np.int64)
        self._sums_ns = [0] * cells  # Python's integers: 64 bits of nanoseconds are 106 days of 1,000 open requests
        self._exemplars: dict[int, tuple[str, float, float]] = {}
        """Trace id, value and steady time by position in the flat counts."""
        self._made: dict[int, Distribution] = {}
        self._made_exemplars: dict[int, tuple[tuple[str, float, float], Exemplar]] = {}

    def insert(self, cells: NDArray[np.intp], given: Observations) -> Added:
        """Count observations in their cells; what that added, for ``merge``."""
        flat = cells * self._size
        flat += given.buckets
        shape = self._counts.shape
        counts = np.bincount(flat, given.weights, self._counts.size).astype(np.int64, copy=False).reshape(shape)
        sums_ns = np.bincount(cells, given.nanoseconds, self._cells).astype(np.float64, copy=False)
        added = Added(counts, sums_ns, flat, given.seconds)
        self._add(counts, added.sums_ns)
        return added

    def merge(self, added: Added) -> None:
        """Count what another family of the same bounds counted, each cell of which has several there."""
        parts = len(added.counts) // self._cells
        self._add(
            added.counts.reshape(self._cells, parts, self._size).sum(axis=1),
            added.sums_ns.reshape(self._cells, parts).sum(axis=1),
        )

    def note(self, added: Added, owners: NDArray[np.intp], traces: Sequence[Trace]) -> None:
        """Keep the newest exemplars of what this or such another family counted.

        owners: position in ``traces`` of each observation's.
        """
        parts = len(added.counts) // self._cells
        newest = np.full(added.counts.size, -1, dtype=np.intp)
        observations = np.arange(len(added.flat))
        traced = np.array([bool(trace_id) for trace_id, _ in traces])
        if not traced.all():
            observations = observations[traced[owners]]
        newest[added.flat[observations]] = observations  # of equal positions the last one stays
        newest = newest.reshape(self._cells, parts, self._size).max(axis=1).reshape(-1)
        for position in np.flatnonzero(newest >= 0).tolist():
            at = int(newest[position])
            trace_id, at_s = traces[int(owners[at])]
            self._exemplars[position] = (trace_id, float(added.seconds[at]), at_s)

    def _add(self, counts: NDArray[np.int64], sums_ns: NDArray[np.float64]) -> None:
        self._counts += counts
        for cell in np.flatnonzero(counts.any(axis=1)).tolist():
            self._sums_ns[cell] += int(sums_ns[cell])
            self._made.pop(cell, None)

    def clear(self, first: int, last: int) -> None:
        """Forget what the cells from ``first`` up to, and without, ``last`` counted."""
        self._counts[first:last] = 0
        for cell in range(first, last):
            self._sums_ns[cell] = 0
            self._made.pop(cell, None)
        for position in range(first * self._size, last * self._size):
            self._exemplars.pop(position, None)
            self._made_exemplars.pop(position, None)

    def distribution(self, cell: int, to_unix: Callable[[float], float]) -> Distribution:
        """What the cell counted; the same object until it counts again."""
        made = self._made.get(cell)
        if made is None:
            counts = tuple(self._counts[cell].tolist())
            made = Distribution(counts, self._sums_ns[cell] / _NS, self._exemplars_of(cell, to_unix))
            self._made[cell] = made
        return made

    def _exemplars_of(self, cell: int, to_unix: Callable[[float], float]) -> tuple[Exemplar | None, ...]:
        if not self._exemplars:
            return ()
        first = cell * self._size
        found: list[Exemplar | None] = []
        for position in range(first, first + self._size):
            noted = self._exemplars.get(position)
            if noted is None:
                found.append(None)
                continue
            made = self._made_exemplars.get(position)
            if made is None or made[0] is not noted:
                # Translated once: the time of an exemplar must not move with the wall clock afterwards.
                made = (noted, Exemplar(noted[0], noted[1], to_unix(noted[2])))
                self._made_exemplars[position] = made
            found.append(made[1])
        return tuple(found) if any(found) else ()
