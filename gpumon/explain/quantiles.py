"""Medians and quantiles of short arrays: what numpy gives, without the ten and more microseconds that it thinks first.

A step of detection asks for some hundreds of them, of a few dozen values each. The values must be numbers: a NaN is
taken for the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def median(values: NDArray[np.float64]) -> float:
    """Of at least one value; of an even number the middle of the middle two, as ``np.median``."""
    ordered, count = np.sort(values), len(values)
    return float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def quantiles(values: NDArray[np.float64], shares: Sequence[float]) -> list[float]:
    """Of at least one value, at each of these shares (0 to 1), between two values on the line, as ``np.quantile``."""
    ordered, most = np.sort(values), len(values) - 1
    found = []
    for share in shares:
        low = int(most * share)
        part = most * share - low
        below, above = float(ordered[low]), float(ordered[min(low + 1, most)])
        apart = above - below
        # From the nearer end, as numpy does: the same to the last digit.
        found.append(below + apart * part if part < 0.5 else above - apart * (1 - part))
    return found


def medians(values: NDArray[np.float64], sizes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Of successive parts of so many values each, at least one; all of them sorted at once.

    For that they are moved apart, which costs the last digits: 13 are left of a thousand parts.
    """
    apart = 2.0 * (float(values.max()) - float(values.min()))
    moved = apart * np.arange(len(sizes))
    ordered = np.sort(values + np.repeat(moved, sizes))
    firsts = np.cumsum(sizes) - sizes
    return np.asarray((ordered[firsts + (sizes - 1) // 2] + ordered[firsts + sizes // 2]) / 2 - moved)
