"""The store's last minutes as the API says them: points of several series on common times, and growth of counters.

The store keeps ``store.history_points`` of a series (240, which is four minutes of what is published once a second).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.model import Metric
from gpumon.store import View
from gpumon.web.said import Series

HISTORY_MAX_S: Final = 240.0
POINTS_MAX: Final = 480
"""Of a series of an answer; the newest stay."""
MINUTE_S: Final = 60.0
_FEW_S: Final = 2.0
_DIGITS: Final = 5
_LARGE: Final = 1e5

Points = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Steady seconds, strictly ascending, and values."""


def growth(points: Points) -> tuple[float, float] | None:
    """By how much a counter grew over the points, and the seconds of it; None with fewer than two, or after a reset."""
    times, values = points
    if len(times) < 2 or values[-1] < values[0]:
        return None
    return float(values[-1] - values[0]), float(times[-1] - times[0])


def rate(view: View, metric: Metric, labels: tuple[str, ...], over_s: float = MINUTE_S) -> float | None:
    """A counter's growth per second over the last seconds; None where it is not known, or was for less than two."""
    grown = growth(view.window(metric, labels, view.at_s - over_s))
    return grown[0] / grown[1] if grown is not None and grown[1] >= _FEW_S else None


def rates(points: Points) -> Points:
    """Growth of a counter per second, at the end of each interval; a reset has none."""
    times, values = points
    if len(times) < 2:
        return np.empty(0), np.empty(0)
    grown = np.diff(values) / np.diff(times)
    return times[1:][grown >= 0], grown[grown >= 0]


def series(signals: Mapping[str, Points], to_unix: Callable[[float], float], step_s: float) -> Series:
    """Signals on the union of their times; null where a signal has no point at a time. Those without any are left out.

    step_s: between two points where none is missing.
    """
    there = {name: points for name, points in signals.items() if len(points[0])}
    if not there:
        return Series(step_seconds=step_s, at=[], signals={})
    at_s = np.unique(np.concatenate([times for times, _ in there.values()]))[-POINTS_MAX:]
    said: dict[str, list[float | None]] = {}
    for name, (times, values) in there.items():
        if len(times) == len(at_s) and (times == at_s).all():  # what is published together, as most is
            said[name] = numbers(values)
            continue
        kept = times >= at_s[0]
        placed = np.full(len(at_s), np.nan)
        placed[np.searchsorted(at_s, times[kept])] = values[kept]
        said[name] = numbers(placed)
    offset_s = to_unix(0.0)
    return Series(step_seconds=step_s, at=[round(each, 3) for each in (at_s + offset_s).tolist()], signals=said)


def numbers(values: NDArray[np.float64]) -> list[float | None]:
    """As an answer has them: null where not known, five digits after the point of small ones, none of large ones."""
    finite = np.isfinite(values)
    shown = np.round(values, _DIGITS)
    large = np.abs(shown) >= _LARGE
    if large.any():
        shown[large] = np.round(shown[large])
    told: list[float | None] = shown.tolist()
    if not finite.all():
        for place in np.flatnonzero(~finite).tolist():
            told[place] = None
    return told
