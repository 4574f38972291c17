"""Which signals go with slow tokens: of every group, each dimension with each latency, at its best lag.

Two matrices a group, made anew every ten seconds: of the last ten minutes at one value a second, lags of up to five
seconds; and of the last complete minute in tenths of a second, lags of up to half a second, of what the fast rows of
its GPUs and its token times tell. How strong pairs are told from chance is in ``correlation``; the number looked at
there is that of one matrix. Only strong pairs of the first kind are exported, the strongest ones.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CORRELATION, CORRELATION_LAG, CORRELATION_PAIRS
from gpumon.explain.correlation import correlate
from gpumon.explain.dimensions import DIMENSIONS, Dimensions
from gpumon.explain.fast_signals import NAMES, FastSignals
from gpumon.explain.group import Group
from gpumon.explain.latency_tracks import FAST_S, FAST_SIGNALS, SIGNALS, LatencyTracks
from gpumon.model import Sample
from gpumon.requests.tenants import OTHER, clean
from gpumon.sampler.ring import Row

EVERY_S: Final = 10.0
SAMPLES: Final = 600
"""Ten minutes of seconds, a minute of tenths."""
LAGS: Final = 5
"""Seconds, or tenths."""
PER_STEP: Final = 4
"""Groups in one step: 2 ms each. The others wait for the next."""

Floats = NDArray[np.float64]


class Pair(NamedTuple):
    """Two signals of a group."""

    x: str
    y: str
    r: float
    lag_s: float
    """By how long y follows x; negative: x follows y."""
    n_eff: float
    p: float


class Matrix(NamedTuple):
    """Of one group. Arrays of shape (x, y), which cannot be written to."""

    group: Group
    is_fast: bool
    at_s: float
    """When it was made."""
    step_s: float
    """Between two samples."""
    x: tuple[str, ...]
    """Dimensions, or of a fast one ``fast_signals.NAMES``."""
    y: tuple[str, ...]
    """``latency_tracks.SIGNALS`` or ``FAST_SIGNALS``."""
    r: Floats
    """NaN where there is none: too little data, or nothing that moves."""
    lag_s: Floats
    n: NDArray[np.intp]
    """Samples."""
    n_eff: Floats
    p: Floats
    strong: NDArray[np.bool_]

    def pairs(self, *, strong_only: bool) -> list[Pair]:
        """Those with an r, or only strong ones, the strongest first."""
        chosen = np.argwhere(self.strong if strong_only else ~np.isnan(self.r)).tolist()
        found = [
            Pair(self.x[i], self.y[j], *(float(of[i, j]) for of in (self.r, self.lag_s, self.n_eff, self.p)))
            for i, j in chosen
        ]
        return sorted(found, key=lambda pair: (-abs(pair.r), pair.x, pair.y))


class Correlations:
    """``step`` from one thread, the rest from any."""

    def __init__(self, dimensions: Dimensions, latency_tracks: LatencyTracks) -> None:
        self._dimensions = dimensions
        self._latencies = latency_tracks
        self._fast = FastSignals()
        self._made_s: dict[Group, float] = {}
        """When each group's matrices were made; in ``step`` only."""
        self._lock = threading.Lock()
        self._matrices: dict[Group, tuple[Matrix, ...]] = {}
        self._samples: tuple[Sample, ...] = ()

    def add_rows(self, uuid: str, rows: Sequence[Row]) -> None:
        """Fast rows of one GPU, oldest first."""
        self._fast.add(uuid, rows)

    def fast_series(self, uuids: Sequence[str], first: int, last: int) -> Floats:
        """What GPUs did, in tenths of a second: as ``FastSignals.series``."""
        return self._fast.series(uuids, first, last)

    def step(self, at_s: float) -> None:
        """Make those matrices anew that are due. at_s: steady seconds now."""
        groups = self._dimensions.groups()
        self._made_s = {group: self._made_s.get(group, -np.inf) for group in groups}
        due = [group for group in groups if at_s - self._made_s[group] >= EVERY_S]
        made = {}
        for group in sorted(due, key=self._made_s.__getitem__)[:PER_STEP]:
            self._made_s[group] = at_s
            made[group] = (*self._slow_matrix(group, at_s), *self._fast_matrix(group, at_s))
        if made or not self._matrices.keys() <= set(groups):
            matrices = {group: made.get(group, self._matrices.get(group, ())) for group in groups}
            samples = tuple(_samples([matrix for of in matrices.values() for matrix in of]))
            with self._lock:
                self._matrices, self._samples = matrices, samples

    def matrices(self) -> list[Matrix]:
        """The newest, by group in the order in which they were first seen; none of a group without latencies."""
        with self._lock:
            return [matrix for of in self._matrices.values() for matrix in of]

    def samples(self) -> list[Sample]:
        """Of the strongest pairs at one value a second: catalogue.CORRELATION and CORRELATION_LAG."""
        with self._lock:
            return [*self._samples]

    def _slow_matrix(self, group: Group, at_s: float) -> list[Matrix]:
        y_numbers, y = self._latencies.series(group)
        if not len(y_numbers):
            return []
        first, last = _window(int(y_numbers[-1]))
        x_numbers, x = self._dimensions.series(group)
        names = tuple(dimension.name for dimension in DIMENSIONS)
        x_placed = _placed(x_numbers, x.astype(np.float64), first, last)
        y_placed = _placed(y_numbers, y, first, last)
        return [_matrix(group, at_s, 1.0, names, SIGNALS, x_placed, y_placed, is_fast=False)]

    def _fast_matrix(self, group: Group, at_s: float) -> list[Matrix]:
        y_numbers, y = self._latencies.fast(group)
        if not len(y_numbers):
            return []
        first, last = _window(int(y_numbers[-1]))
        x = self._fast.series(group.gpus, first, last)
        if np.isnan(x).all():
            return []
        return [_matrix(group, at_s, FAST_S, NAMES, FAST_SIGNALS, x, _placed(y_numbers, y, first, last), is_fast=True)]


def _window(newest: int) -> tuple[int, int]:
    """First and last sample: ``SAMPLES`` of them up to the newest, and room for the lags on both sides."""
    return newest - SAMPLES + 1 - LAGS, newest + LAGS


def _placed(numbers: NDArray[np.int64], rows: Floats, first: int, last: int) -> Floats:
    """The samples from first to last, of rows whose samples have these successive numbers; NaN for the others."""
    found = np.full((len(rows), last - first + 1), np.nan)
    if len(numbers):
        begin = int(numbers[0])
        low, high = max(first, begin), min(last, begin + len(numbers) - 1)
        if low <= high:
            found[:, low - first : high - first + 1] = rows[:, low - begin : high - begin + 1]
    return found


def _matrix(
    group: Group,
    at_s: float,
    step_s: float,
    names: tuple[str, ...],
    signals: tuple[str, ...],
    x: Floats,
    y: Floats,
    *,
    is_fast: bool,
) -> Matrix:
    found = correlate(x, y, LAGS)
    lag_s = np.round(found.lag.astype(np.float64) * step_s, 3)
    for array in (lag_s, *found):
        array.flags.writeable = False
    return Matrix(
        group, is_fast, at_s, step_s, names, signals, found.r, lag_s, found.n, found.n_eff, found.p, found.strong
    )


def _samples(matrices: Sequence[Matrix]) -> list[Sample]:
    """Replicas of a model have one series: that of the replica where the pair is strongest."""
    strongest: dict[tuple[str, str], Pair] = {}
    for matrix in matrices:
        if not matrix.is_fast:
            model = clean(matrix.group.model or matrix.group.server) or OTHER
            for pair in matrix.pairs(strong_only=True):
                labels = (pair.x, f"{model}:{pair.y}")
                known = strongest.get(labels)
                if known is None or abs(pair.r) > abs(known.r):
                    strongest[labels] = pair
    ordered = sorted(strongest.items(), key=lambda item: (-abs(item[1].r), item[0]))[:CORRELATION_PAIRS]
    return [
        *(Sample(CORRELATION, labels, pair.r) for labels, pair in ordered),
        *(Sample(CORRELATION_LAG, labels, pair.lag_s) for labels, pair in ordered),
    ]
