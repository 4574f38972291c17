"""Seeded noise without state: the same number for the same place in every process and at every call.

Python's own ``hash`` of text and ``random`` are not used: the first differs between processes, the second
remembers where it was.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: consecutive keys land far apart


def bits(*keys: int) -> int:
    """64 well mixed bits of some whole numbers (the finaliser of splitmix64, once per key)."""
    state = 0
    for key in keys:
        state = (state + key * _GOLDEN + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def unit(*keys: int) -> float:
    """A number in [0, 1), even."""
    return (bits(*keys) >> 11) * 2.0**-53


def units(last: NDArray[np.uint64], *keys: int) -> NDArray[np.float64]:
    """``unit(*keys, each)`` for each of many last keys, all below 2**64."""
    state = (last + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(bits(*keys))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def signed(*keys: int) -> float:
    """A number in [-1, 1), even."""
    return 2.0 * unit(*keys) - 1.0


def digits(length: int, *keys: int) -> str:
    """``length`` hexadecimal digits: for UUIDs and container ids."""
    words = (f"{bits(*keys, i):016x}" for i in range((length + 15) // 16))
    return "".join(words)[:length]


def ticks(seconds: float, period_s: float, *keys: int) -> int:
    """Things that happened in ``seconds`` when one happens each period, at a moment of its own choosing.

    Never falls as ``seconds`` grows.
    """
    period = int(seconds // period_s)
    return period + (seconds / period_s - period >= unit(*keys, period))
