"""How long a decode step of a group usually takes, with so many requests in the batch and so much context in all.

A rolling robust quantile: the median of the newest 64 looks for each size of batch (four sizes to a doubling), of gaps
that no incident touches and no prompt of another request was computed in. A look is the median of all such gaps of one
step of detection, so 64 are at least a minute and usually several. Between the sizes known it is interpolated, beyond
them the straight line through all goes on. The context of the whole batch adds to it in proportion, since every step
reads all of the KV cache; by how much is fitted within sizes, where nothing else differs.

Cold start: nothing is expected before ``LEAST`` looks. Where incidents were there from the beginning, gaps that they
touch have to do: their quarter, not their median, after three times as many looks. Memory: 3,072 looks of a group at
most, and as many of times that incidents touch: 0.15 MB.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.quantiles import median, quantiles

LOOKS: Final = 64
LEAST: Final = 10
_PER_DOUBLING: Final = 4
_SIZES: Final = 4 * 12 + 1  # up to 4,096 requests
_LEAST_OF_SIZE: Final = 3
_FIRM: Final = 12
"""Looks of a size that are as good as many."""
_SHY: Final = 1e7
"""Squared tokens of context that the slope must be seen over to be believed by half."""


class Look(NamedTuple):
    """Of one step of detection and size of batch."""

    running: float
    context: float
    """Tokens of the whole batch."""
    gap_s: float


class _Size(NamedTuple):
    """What is worked out once of the looks of a size, as long as no other comes."""

    running: float
    """Median."""
    contexts: NDArray[np.float64]
    """Over the median, as the gaps."""
    gaps_s: NDArray[np.float64]
    least_s: float


class _Table:
    """Rings of looks by size of batch."""

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._looks = np.zeros((_SIZES, LOOKS, 3))
        self._counts = np.zeros(_SIZES, dtype=np.intp)
        self.total = 0
        self._least = 0.0
        """The shortest look."""
        self._known: dict[int, _Size] = {}
        self._fit: tuple[NDArray[np.float64], NDArray[np.float64], float, tuple[float, float]] | None = None

    def add(self, look: Look) -> None:
        size = size_of(look.running)
        self._looks[size, self._counts[size] % LOOKS] = look
        self._counts[size] += 1
        self.total += 1
        self._fit = None
        self._known.pop(size, None)

    def expected(self, running: NDArray[np.float64], context: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._fit is None:
            self._fit = self._fitted()
        sizes, values, slope, (low, rise) = self._fit
        found = np.interp(running, sizes, values)
        if rise > 0:
            beyond = np.maximum(running - sizes[-1], 0.0) - np.maximum(sizes[0] - running, 0.0)
            found = np.maximum(found + rise * beyond, low)
        return np.asarray(np.maximum(found + slope * context, 0.25 * self._least), dtype=np.float64)

    def _fitted(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float, tuple[float, float]]:
        """Sizes, medians without what context adds, seconds per token of context; least value, and slope beyond."""
        counts = np.minimum(self._counts, LOOKS)
        self._least = min([self._size(size).least_s for size in np.flatnonzero(counts).tolist()])
        firm = counts >= min(_LEAST_OF_SIZE, counts.max())
        if counts[firm].sum() < 0.8 * counts.sum():
            firm = counts > 0
        chosen = np.flatnonzero(firm).tolist()
        rows, known = [self._looks[size, : counts[size]] for size in chosen], [self._size(size) for size in chosen]
        slope = _slope(known)
        sizes = np.array([each.running for each in known])
        values = np.array([quantiles(row[:, 2] - slope * row[:, 1], [self._quantile])[0] for row in rows])
        weights = np.array([min(len(row), _FIRM) for row in rows], dtype=np.float64)
        order = np.argsort(sizes)
        sizes, values, weights = sizes[order], values[order], weights[order]
        rise = 0.0
        if len(sizes) > 1:
            middle, mean = np.average(sizes, weights=weights), np.average(values, weights=weights)
            spread = float((weights * (sizes - middle) ** 2).sum())
            rise = max(0.0, float((weights * (sizes - middle) * (values - mean)).sum()) / spread) if spread else 0.0
            values = _smoothed(values, weights)
        return sizes, values, slope, (0.5 * float(values.min()), rise)

    def _size(self, size: int) -> _Size:
        known = self._known.get(size)
        if known is None:
            looks = self._looks[size, : min(self._counts[size], LOOKS)]
            running, contexts, gaps_s = looks.T
            known = self._known[size] = _Size(
                median(running), contexts - median(contexts), gaps_s - median(gaps_s), float(gaps_s.min())
            )
        return known


class Expected:
    """Of one group. Not thread-safe."""

    def __init__(self) -> None:
        self._calm = _Table(0.5)
        self._touched = _Table(0.25)

    @property
    def is_known(self) -> bool:
        """Whether anything is expected yet."""
        return self._calm.total >= LEAST or self._touched.total >= 3 * LEAST

    def learn(self, look: Look, *, calm: bool) -> None:
        """A look. calm: no incident touches it."""
        (self._calm if calm else self._touched).add(look)

    def gaps(self, running: NDArray[np.float64], context: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds, of n steps with so many requests (>= 1) and so many tokens of context in all; if it is known."""
        table = self._calm if self._calm.total >= LEAST else self._touched
        return table.expected(running, context)


def sizes_of(running: NDArray[np.float64]) -> NDArray[np.intp]:
    """Positions of sizes of batches."""
    sizes = np.rint(_PER_DOUBLING * np.log2(np.maximum(running, 1.0))).astype(np.intp)
    return np.asarray(np.minimum(sizes, _SIZES - 1))


def size_of(running: float) -> int:
    """The same of one."""
    return min(round(_PER_DOUBLING * math.log2(max(running, 1.0))), _SIZES - 1)


def _slope(sizes: list[_Size]) -> float:
    """Seconds per token of context, from differences within sizes; shrunk to 0 where there is little to see it by."""
    contexts = np.concatenate([size.contexts for size in sizes])
    gaps = np.concatenate([size.gaps_s for size in sizes])
    far = 3 * median(np.abs(gaps))  # a look that something unknown slowed must not tilt the line
    gaps = np.clip(gaps, -far, far)
    return max(0.0, float(contexts @ gaps) / (float(contexts @ contexts) + _SHY))


def _smoothed(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """A size with few looks leans on its neighbours."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    heavy = np.concatenate([weights[:1], weights, weights[-1:]])
    beside = (padded[:-2] * heavy[:-2] + padded[2:] * heavy[2:]) / (heavy[:-2] + heavy[2:])
    own = weights / _FIRM
    return np.asarray(own * values + (1 - own) * beside, dtype=np.float64)
