"""Pearson's r of signals with latencies at every lag, and which of them are strong and not by chance. Numbers only.

r of a pair at a lag is exactly that of the samples in which both are known at that lag, as if these alone were handed
to ``np.corrcoef``: what is missing (NaN, infinite) is left out pair by pair and lag by lag, nothing is filled in. There
is none where fewer than ``LEAST`` samples are left, nor where one of the two does not move within them. Of the lags,
the best is the one with the greatest absolute r, the shorter one of equals.

Chance. Signals that change slowly agree by chance: n samples of them are worth fewer. n_eff = n (1 - a b) / (1 + a b),
with a and b the correlation of each with itself one sample before (Bartlett 1935, Quenouille 1947), n at most. Where r
is 0, Fisher's atanh(r) sqrt(n_eff - 3) is normal, which gives p of both sides. As the greatest of many is looked for, p
is multiplied by their number (Bonferroni): every lag of every pair that has an r.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST: Final = 30
"""Samples of a pair at a lag from which there is an r."""
STRONG_R: Final = 0.7
STRONG_N_EFF: Final = 10.0
STRONG_P: Final = 0.01

_STILL: Final = 1e-12
"""Variance within the samples of a pair, over that of the whole series, up to which it does not move."""
_LOST: Final = 1e-9
"""Variance over the mean square up to which too few digits are left of it: a double has sixteen."""
_SAME: Final = 1e-9
"""Absolute r that differ by less are equal: sums are rounded, and the order of adding is the library's affair."""
_MOST_R: Final = 1.0 - 1e-12
"""Has a finite Fisher transform."""
_MOST_AUTOCORRELATION: Final = 0.9999


class Lagged(NamedTuple):
    """Of each pair, at its best lag: arrays of shape (k, m)."""

    r: Floats
    """-1 to 1; NaN where there is none."""
    lag: NDArray[np.intp]
    """Samples by which y follows x; negative: x follows y. 0 where there is no r."""
    n: NDArray[np.intp]
    """Samples it rests on; 0 where there is no r."""
    n_eff: Floats
    """How many independent samples these are worth, at most n; 0 where there is no r."""
    p: Floats
    """How probable such an r is by chance, among all that were looked at; 1 where there is no r."""
    strong: NDArray[np.bool_]
    """|r| > 0.7, n_eff >= 10 and p < 0.01."""


def correlate(x: NDArray[np.floating], y: NDArray[np.floating], max_lag: int, *, least: int = LEAST) -> Lagged:
    """Correlate each row of x with each row of y at every lag from -max_lag to max_lag.

    x: shape (k, n), y: shape (m, n), of the same times. What is not finite is missing. least: samples, 3 at least.
    Raises ValueError where the lengths differ, ``max_lag`` is negative or ``least`` too small.
    """
    lags, r, counts = lagged(x, y, max_lag, least=least)
    rounded = np.round(np.where(np.isnan(r), -1.0, np.abs(r)) / _SAME)
    best = rounded.argmax(axis=0)[None]  # the first of equals: lags come in the order of their length
    r_best = np.take_along_axis(r, best, 0)[0]
    known = ~np.isnan(r_best)
    n = np.where(known, np.take_along_axis(counts, best, 0)[0], 0)
    overlap = autocorrelations(x)[:, None] * autocorrelations(y)[None]
    n_eff = np.minimum(n, n * (1.0 - overlap) / (1.0 + overlap))
    p = np.minimum(1.0, _chance(r_best, n_eff) * np.count_nonzero(~np.isnan(r)))
    strong = known & (np.abs(r_best) > STRONG_R) & (n_eff >= STRONG_N_EFF) & (p < STRONG_P)
    return Lagged(r_best, np.where(known, lags[best[0]], 0), n.astype(np.intp), n_eff, p, strong)


def lagged(
    x: NDArray[np.floating], y: NDArray[np.floating], max_lag: int, *, least: int = LEAST
) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp]]:
    """r of every pair at every lag: the lags (0, 1, -1, 2, …), r and numbers of samples, both of shape (lags, k, m).

    At lag s, x at a time goes with y at s samples later. r is NaN where there is none. As ``correlate`` otherwise.
    """
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"x has {x.shape[1]} samples and y {y.shape[1]}")
    if max_lag < 0 or least < 3:
        raise ValueError("max_lag must be 0 or more, least 3 or more")
    steps = [0, *(sign * step for step in range(1, max_lag + 1) for sign in (1, -1))]
    x0, x_masks, x_mask_of = _prepared(x)
    y0, y_masks, y_mask_of = _prepared(y)
    k, m, u, v, n = len(x0), len(y0), len(x_masks), len(y_masks), x.shape[1]
    x2 = x0 * x0
    right = np.concatenate([y0 * y0, y0, y_masks])
    # Sums over the samples of a pair that both know: sums of x alone differ only by the mask of y, and the other way
    # round, so they are taken once for each mask that occurs, which for complete series is one.
    of_x, of_x2, of_mask = (
        np.empty((len(steps), k, m + v)),
        np.empty((len(steps), k, v)),
        np.zeros((len(steps), u, 2 * m + v)),
    )
    for position, lag in enumerate(steps):
        early, late = slice(0, max(0, n - abs(lag))), slice(min(n, abs(lag)), n)
        here, there = (early, late) if lag >= 0 else (late, early)
        columns = right[:, there].T
        np.matmul(x0[:, here], columns[:, m:], out=of_x[position])
        np.matmul(x2[:, here], columns[:, 2 * m :], out=of_x2[position])
        np.matmul(x_masks[:, here], columns, out=of_mask[position])
    of_mask = of_mask[:, x_mask_of]
    counts = of_mask[:, :, 2 * m :][:, :, y_mask_of]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 / counts
        x_mean, y_mean = of_x[:, :, m:][:, :, y_mask_of] * share, of_mask[:, :, m : 2 * m] * share
        x_square, y_square = of_x2[:, :, y_mask_of] * share, of_mask[:, :, :m] * share
        x_variance, y_variance = x_square - x_mean**2, y_square - y_mean**2
        r = (of_x[:, :, :m] * share - x_mean * y_mean) / np.sqrt(x_variance * y_variance)
        moves = (x_variance > np.maximum(_STILL, _LOST * x_square)) & (
            y_variance > np.maximum(_STILL, _LOST * y_square)
        )
    r[~moves | (counts < least)] = np.nan
    return np.array(steps, dtype=np.intp), np.clip(r, -1.0, 1.0), np.rint(counts).astype(np.intp)


def autocorrelations(rows: NDArray[np.floating]) -> Floats:
    """Of each row, the correlation of a known sample with the known one before it; 0 where it is not known."""
    values, masks, mask_of = _prepared(rows)
    known = masks[mask_of] > 0
    numbers = np.where(known, np.arange(rows.shape[1]), -1)
    before = np.maximum.accumulate(numbers, axis=1)[:, :-1]
    later = values[:, 1:] * (before >= 0)  # 0 where not known, as all of these are
    products = (later * np.take_along_axis(values, np.maximum(before, 0), 1)).sum(axis=1)
    squares = (values * values).sum(axis=1)
    found: Floats = np.divide(products, squares, out=np.zeros(len(values)), where=squares > 0)
    return np.clip(found, -_MOST_AUTOCORRELATION, _MOST_AUTOCORRELATION)


def _prepared(rows: NDArray[np.floating]) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Rows of mean 0 and variance 1 with 0 for what is missing or does not move; the masks that occur, 1 for what is
    known; of each row, the position of its mask.
    """
    values = rows.astype(np.float64)
    known = np.isfinite(values)
    values[~known] = 0.0
    largest = np.abs(values).max(axis=1, initial=0.0)
    values /= np.where(largest > 0, largest, 1.0)[:, None]
    counts = np.maximum(known.sum(axis=1), 1)[:, None]
    values -= values.sum(axis=1, keepdims=True) / counts
    values *= known
    deviation = np.sqrt((values * values).sum(axis=1, keepdims=True) / counts)
    values /= np.where(deviation > _STILL, deviation, np.inf)  # of digits alone: does not move
    positions: dict[bytes, int] = {}
    first: list[int] = []
    mask_of = np.empty(len(rows), dtype=np.intp)
    for number, packed in enumerate(np.packbits(known, axis=1)):
        mask_of[number] = position = positions.setdefault(packed.tobytes(), len(positions))
        if position == len(first):
            first.append(number)
    return values, known[first].astype(np.float64), mask_of


def _chance(r: Floats, n_eff: Floats) -> Floats:
    """Probability of at least this absolute r where there is no correlation, one pair at one lag; 1 for NaN."""
    deviations = np.arctanh(np.minimum(np.abs(np.nan_to_num(r)), _MOST_R)) * np.sqrt(np.maximum(n_eff - 3.0, 0.0))
    return np.array([math.erfc(z / math.sqrt(2.0)) for z in deviations.ravel().tolist()]).reshape(r.shape)
