"""Arithmetic that the parts of a diagnosis share: correlation, slope, effect, quantile.

None, or NaN in an array, is what too little data gives. Nothing here warns or raises on values that are not finite:
they are left out.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LEAST: Final = 20
"""Fewest requests, or cells of time, for a correlation: below it 0.44 comes by chance in one of twenty."""
FLAT: Final = 1e-5
"""Of the mean: a standard deviation below it is rounding of 32-bit floats."""
BLOCK: Final = 8
"""Columns."""
EFFECT_MOST: Final = 10.0
"""What differs without varying at all has no greater effect than this."""

Floats = NDArray[np.float64]


def known(value: float) -> float | None:
    """A float for JSON; None for what is not finite."""
    return float(value) if math.isfinite(value) else None


def mean(values: Floats) -> float | None:
    """Of those that are finite; None where none is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def quantile(values: Floats, share: float) -> float | None:
    """The value of rank ceil(share n), from 1, of those that are finite."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    rank = min(max(math.ceil(share * len(finite) - 1e-9), 1), len(finite)) - 1
    return float(np.partition(finite, rank)[rank])


def correlations(table: NDArray[Any], values: Floats, *, least: int = LEAST) -> tuple[Floats, NDArray[np.intp]]:
    """Pearson's r of each column with the values, over the rows in which both are finite, and the number of those.

    table: (rows, columns). r is NaN of too few rows, and where either does not vary.
    """
    parts = [_correlated(table[:, block], values, least) for block in _blocks(table)]
    return np.concatenate([r for r, _ in parts]), np.concatenate([counts for _, counts in parts])


def line(x: Floats, y: Floats, *, least: int = LEAST) -> tuple[float | None, float | None, int]:
    """Pearson's r, the slope of y over x by least squares, and the number of pairs that are finite."""
    r, counts = correlations(x[:, None], y, least=least)
    if not math.isfinite(r[0]):
        return None, None, int(counts[0])
    both = np.isfinite(x) & np.isfinite(y)
    slope = float(r[0] * y[both].std() / x[both].std())
    return float(r[0]), known(slope), int(counts[0])


def effects(some: NDArray[Any], others: NDArray[Any], *, least: int = 3) -> Floats:
    """Difference of the columns' means in pooled standard deviations (Cohen's d), within ±EFFECT_MOST.

    NaN where either has fewer than ``least`` finite values.
    """
    means, variances, counts = zip(*(_moments(part) for part in (some, others)), strict=True)
    difference = means[0] - means[1]
    spread = np.sqrt((variances[0] * counts[0] + variances[1] * counts[1]) / np.maximum(counts[0] + counts[1], 1))
    least_spread = FLAT * np.maximum(np.abs(means[0]), np.abs(means[1]))
    found = np.zeros(len(difference))
    differs = np.abs(difference) > least_spread
    found[differs] = difference[differs] / np.maximum(spread[differs], np.maximum(least_spread[differs], 1e-300))
    found = np.clip(found, -EFFECT_MOST, EFFECT_MOST)
    found[(counts[0] < least) | (counts[1] < least)] = np.nan
    return found


def means(table: NDArray[Any]) -> Floats:
    """Of each column's finite values; NaN where there are none."""
    found, _, counts = _moments(table)
    return np.where(counts > 0, found, np.nan)


def _correlated(table: NDArray[Any], values: Floats, least: int) -> tuple[Floats, NDArray[np.intp]]:
    both = np.isfinite(table) & np.isfinite(values)[:, None]
    counts = both.sum(axis=0)
    size = np.maximum(counts, 1)
    x = np.where(both, table, 0.0).astype(np.float64)
    y = np.where(both, np.where(np.isfinite(values), values, 0.0)[:, None], 0.0)
    x_mean, y_mean = x.sum(axis=0) / size, y.sum(axis=0) / size
    x, y = np.where(both, x - x_mean, 0.0), np.where(both, y - y_mean, 0.0)
    x_norm, y_norm = np.sqrt((x * x).sum(axis=0)), np.sqrt((y * y).sum(axis=0))
    varies = (x_norm > FLAT * np.abs(x_mean) * np.sqrt(size)) & (y_norm > FLAT * np.abs(y_mean) * np.sqrt(size))
    told = varies & (counts >= least)
    r = np.full(table.shape[1], np.nan)
    r[told] = np.clip((x * y).sum(axis=0)[told] / x_norm[told] / y_norm[told], -1.0, 1.0)
    return r, counts


def _moments(table: NDArray[Any]) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Mean, variance and number of each column's finite values; 0 where there are none."""
    parts = [_moments_of(table[:, block]) for block in _blocks(table)]
    middles, variances, counts = zip(*parts, strict=True)
    return np.concatenate(middles), np.concatenate(variances), np.concatenate(counts)


def _blocks(table: NDArray[Any]) -> list[slice]:
    """Columns that are worked on together: what bounds the memory. One block at least, if of no columns."""
    return [slice(first, first + BLOCK) for first in range(0, max(table.shape[1], 1), BLOCK)]


def _moments_of(table: NDArray[Any]) -> tuple[Floats, Floats, NDArray[np.intp]]:
    finite = np.isfinite(table)
    counts = finite.sum(axis=0)
    size = np.maximum(counts, 1)
    filled = np.where(finite, table, 0.0).astype(np.float64)
    middle = filled.sum(axis=0) / size
    apart = np.where(finite, filled - middle, 0.0)
    return middle, (apart * apart).sum(axis=0) / size, counts
