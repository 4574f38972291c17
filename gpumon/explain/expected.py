"""How long a decode step of a group usually takes, with so many requests in the batch and so much context in all.

A rolling robust quantile: the median of the newest 64 looks for each size of batch (four sizes to a doubling), of gaps
that no incident touches and no prompt of another request was computed in. A look is the median of all such gaps of one
step of detection, so 64 are at least a minute and usually several. Between the sizes known it is interpolated, below
them the straight line through all goes on. Above them it goes on as over the last two doublings: by so much a request,
or, where that fits them better, by so much a doubling, as with experts that more and more requests share. The context
of the whole batch adds to it in proportion, since every step reads all of the KV cache; by how much is fitted within
sizes, where nothing else differs.

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
_LAST: Final = 4.0
"""Of the largest size, from where on sizes tell what a larger one takes: two doublings."""
_HARDLY: Final = 0.98
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


class _Fit(NamedTuple):
    """How long a step takes. By size of batch, ascending:"""

    sizes: NDArray[np.float64]
    values_s: NDArray[np.float64]
    """Without what context adds."""
    context_s: float
    """Of a token of context."""
    rise_s: float
    """Of a request, over all sizes."""
    above_s: float
    """Of a further request, or of a further doubling."""
    doubles: bool
    """Which."""
    low_s: float
    """No size takes less."""
    longest: float
    """Tokens of context: hardly a batch that is known had more."""


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
        self._fit: _Fit | None = None

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
        fit = self._fit
        found = np.interp(running, fit.sizes, fit.values_s)
        found += fit.above_s * np.maximum(_scale(running, fit.doubles) - _scale(fit.sizes[-1], fit.doubles), 0.0)
        found = np.maximum(found - fit.rise_s * np.maximum(fit.sizes[0] - running, 0.0), fit.low_s)
        return np.asarray(np.maximum(found + fit.context_s * context, 0.25 * self._least), dtype=np.float64)

    def largest(self) -> tuple[float, float]:
        """Requests in the largest batch that is known, and tokens of the longest context of a batch."""
        if self._fit is None:
            self._fit = self._fitted()
        return float(self._fit.sizes[-1]), self._fit.longest

    def _fitted(self) -> _Fit:
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
        rise, _ = _line(sizes, values, weights)
        last = sizes >= sizes[-1] / _LAST
        lines = [_line(_scale(sizes[last], doubles), values[last], weights[last]) for doubles in (False, True)]
        doubles = lines[True][1] < lines[False][1]
        if len(sizes) > 1:
            values = _smoothed(values, weights)
        (longest,) = quantiles(np.concatenate([row[:, 1] for row in rows]), [_HARDLY])
        return _Fit(sizes, values, slope, rise, lines[doubles][0], doubles, 0.5 * float(values.min()), float(longest))

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
        return self._table.expected(running, context)

    def guesses(
        self, running: NDArray[np.float64], context: NDArray[np.float64], gaps_s: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """By how much such steps may be longer than ``gaps`` says because so large a batch was never seen, and because
        so much context was not: up to in proportion."""
        most_running, most_context = self._table.largest()
        over_s = [
            gaps_s * np.maximum(values / max(most, 1.0) - 1.0, 0.0)
            for values, most in ((running, most_running), (context, most_context))
        ]
        return over_s[0], over_s[1]

    @property
    def _table(self) -> _Table:
        return self._calm if self._calm.total >= LEAST else self._touched


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


def _scale(sizes: NDArray[np.float64] | float, doubles: bool) -> NDArray[np.float64]:
    """Sizes as places on a line: themselves, or in doublings."""
    return np.asarray(np.log2(np.maximum(sizes, 1.0)) if doubles else sizes)


def _line(
    places: NDArray[np.float64], values: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Rise of the straight line through values, none that falls; and the sum of the squares by which they are off."""
    places, values = places - np.average(places, weights=weights), values - np.average(values, weights=weights)
    spread = float((weights * places**2).sum())
    rise = max(0.0, float((weights * places * values).sum()) / spread) if spread else 0.0
    return rise, float((weights * (values - rise * places) ** 2).sum())


def _smoothed(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """A size with few looks leans on its neighbours."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    heavy = np.concatenate([weights[:1], weights, weights[-1:]])
    beside = (padded[:-2] * heavy[:-2] + padded[2:] * heavy[2:]) / (heavy[:-2] + heavy[2:])
    own = weights / _FIRM
    return np.asarray(own * values + (1 - own) * beside, dtype=np.float64)
