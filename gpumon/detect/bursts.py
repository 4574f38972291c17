"""Bursts in a counter that is sampled at intervals: where they are, how long they last, how long recovery takes.

A burst is taken to be a plateau at one rate and a fall back to the rate before. How much was counted in it is exact,
and so, for a given height, is how long it lasted with half of its fall. How long the fall takes follows from how far it
is spread over the samples: its variance, less the sixth of a squared sample period that a sudden fall shows on average.
With 100 events a sample that is right to a third over several bursts, with 1,000 to a tenth. A fall that passes through
one sample only cannot be told from a sudden one, and one that is shorter than half a sample period hardly: these are
given as a quarter of the period, which is the interpolation between none and a half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MEDIAN_OF: Final = 5
_HIGH: Final = 0.95
"""Share of the plateau from which a sample still belongs to it; or its own deviation below, if that is more."""


class Rates(NamedTuple):
    """What a counter did between its samples, as columns of one length; intervals in which it fell are left out."""

    ends_s: NDArray[np.float64]
    seconds: NDArray[np.float64]
    per_s: NDArray[np.float64]

    def only(self, chosen: NDArray[np.bool_]) -> Rates:
        """Some of them."""
        return Rates(self.ends_s[chosen], self.seconds[chosen], self.per_s[chosen])


class Burst(NamedTuple):
    """One burst."""

    start_s: float
    end_s: float
    """End of its last sample."""
    size: float
    """What was counted in it, over the quiet rate."""
    peak: float
    """Highest rate over the quiet one, per second."""
    lasted_s: float
    """Its plateau and half its fall."""
    fall_var: float
    """Variance of when the rate fell, seconds squared; may be negative. 0 until it is over."""
    sample_s: float
    """Time between two samples."""
    is_over: bool
    """A quiet sample has followed."""


def rates(times_s: NDArray[np.float64], totals: NDArray[np.float64]) -> Rates:
    """Of the points of a counter, oldest first."""
    seconds, grown = np.diff(times_s), np.diff(totals)
    good = (grown >= 0) & (seconds > 0)
    return Rates(times_s[1:][good], seconds[good], grown[good] / seconds[good])


def find_bursts(of: Rates, quiet: float, level: float) -> list[Burst]:
    """Runs of samples above ``level``, in the order of time. quiet: the rate from which they are counted, below it."""
    above = np.concatenate(([False], of.per_s > level, [False]))
    edges = np.flatnonzero(above[1:] != above[:-1])
    return [
        _measured(of, quiet, first, last, is_over=last < len(of.per_s))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]


def rate_in(bursts: Sequence[Burst]) -> float:
    """Per second while they last, over the quiet rate: that of their plateaus."""
    return sum(burst.size for burst in bursts) / sum(burst.lasted_s for burst in bursts)


def duration_s(bursts: Sequence[Burst]) -> float:
    """Mean length of the plateaus, each as important as its size."""
    fall_s = recovery_s([burst for burst in bursts if burst.is_over]) or 0.0
    return max(_mean([burst.lasted_s for burst in bursts], bursts) - fall_s / 2, 0.0)


def recovery_s(bursts: Sequence[Burst]) -> float | None:
    """Mean time from the end of the plateau until it is quiet again, of bursts that are over; None for none."""
    if not bursts:
        return None
    variance = _mean([burst.fall_var for burst in bursts], bursts)
    least_s = _mean([burst.sample_s for burst in bursts], bursts) / 4
    # A straight fall of length T has the variance T^2 / 12; one that decays is within 3 % of its end by that time.
    return max(float(np.sqrt(12 * max(variance, 0.0))), least_s)


def _mean(values: Sequence[float], bursts: Sequence[Burst]) -> float:
    return sum(v * burst.size for v, burst in zip(values, bursts, strict=True)) / sum(burst.size for burst in bursts)


def _measured(of: Rates, quiet: float, first: int, last: int, *, is_over: bool) -> Burst:
    """The burst in samples ``first`` to ``last`` - 1."""
    seconds = of.seconds[first:last]
    over = of.per_s[first:last] - quiet
    height, high = _plateau(over, float(seconds[-1]))
    size = float((over * seconds).sum())
    return Burst(
        start_s=float(of.ends_s[first] - seconds[0] * min(1.0, over[0] / height)),
        end_s=float(of.ends_s[last - 1]),
        size=size,
        peak=float(over.max()),
        lasted_s=size / height,
        fall_var=_fall_variance(over, height, high, float(seconds[-1])) if is_over else 0.0,
        sample_s=float(seconds[-1]),
        is_over=is_over,
    )


def _plateau(over: NDArray[np.float64], sample_s: float) -> tuple[float, float]:
    """Rate of the plateau, and from where on a sample belongs to it."""
    high = over[over > over.max() / 2]
    if len(high) < _MEDIAN_OF:
        # Of a short burst only the highest sample may lie wholly within; random events vary by their root.
        height = float(high.max())
        deviation = np.sqrt(height / sample_s)
    else:
        height = float(np.median(high))
        deviation = 1.4826 * float(np.median(np.abs(high - height)))
    return height, float(min(_HIGH * height, height - deviation))


def _fall_variance(over: NDArray[np.float64], height: float, high: float, sample_s: float) -> float:
    last_high = np.flatnonzero(over >= min(high, over.max()))[-1]
    if len(over) - last_high <= 2:
        return 0.0  # one sample between high and quiet: the same as of a sudden fall somewhere in it
    steps = -np.diff(np.concatenate(([height], np.minimum(over[last_high + 1 :], height), [0.0])))
    at_s = sample_s * np.arange(len(steps))
    middle_s = (steps * at_s).sum() / height
    return float((steps * (at_s - middle_s) ** 2).sum() / height - sample_s**2 / 6)
