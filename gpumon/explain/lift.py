"""How much slower a group is while a condition holds than while it does not: the lift of a cause.

For every second of the last five minutes: the time by which steps were late for the load that there was, over what was
expected. The lift compares the median second with the condition to the median second without: a few bad ones of another
cause, on either side, do not count. What adds time in which nothing goes on strikes now and then while it holds: of
that it is the mean second. A condition that holds all the time, or has held for a moment only, has none. One
that holds and costs nothing has a lift of 1, and is hardly a cause: this is what keeps a harmless power cap or a GPU at
its usual 90 % of bandwidth from being blamed for whatever happens.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import CAUSES
from gpumon.detect.time_cells import TimeCells
from gpumon.explain.board import CELL_S, Board
from gpumon.explain.causes import SLOWING
from gpumon.explain.group import Key
from gpumon.explain.quantiles import median

SECONDS: Final = 300
_HELD: Final = 0.5
_LEAST: Final = 3
_CLEAR: Final = 10
_BASE: Final = 0.02
"""Lateness over expected time that is taken for nothing."""
_FULL: Final = 2.0
_NONE: Final = 1.1
_LITTLE: Final = 0.1


class Slowness:
    """Of one group. Not thread-safe."""

    def __init__(self) -> None:
        self._late = np.zeros(SECONDS)
        self._expected = np.zeros(SECONDS)
        self._cells = TimeCells(1.0, SECONDS)
        self._cells.arrays += [self._late, self._expected]

    def add(self, moments_s: NDArray[np.float64], late_s: NDArray[np.float64], expected_s: NDArray[np.float64]) -> None:
        """Steps: when, how late (negative: early), and what was expected."""
        if not len(moments_s):
            return
        # A step of several seconds is late in all of them, not in its last one alone.
        long = np.flatnonzero(late_s + expected_s > 1.0)
        if len(long):
            parts = [_spread(*row) for row in zip(moments_s[long], late_s[long], expected_s[long], strict=True)]
            rest = np.ones(len(moments_s), dtype=bool)
            rest[long] = False
            columns = (moments_s[rest], late_s[rest], expected_s[rest])
            moments_s, late_s, expected_s = (
                np.concatenate([column, *part]) for column, part in zip(columns, zip(*parts, strict=True), strict=True)
            )
        places, current = self._cells.place(moments_s)
        if not current.all():
            places, late_s, expected_s = places[current], late_s[current], expected_s[current]
        self._late += np.bincount(places, late_s, SECONDS)
        self._expected += np.bincount(places, expected_s, SECONDS)

    def lifts(self, board: Board, keys: list[Key]) -> dict[int, float]:
        """By cause (index) that held for a part of the time."""
        if self._cells.newest < 0:
            return {}
        first = max(0, self._cells.newest - SECONDS + 1)
        per_second = round(1 / CELL_S)
        conditions = board.conditions(keys, first, self._cells.newest + 1 - CELL_S / 2)
        seconds = conditions.evidence.shape[1] // per_second
        if not conditions.causes or not seconds:
            return {}
        places = np.arange(first, first + seconds) % SECONDS
        late, expected = self._late[places], self._expected[places]
        busy = expected > 0
        ratios = np.divide(late, expected, out=np.zeros(seconds), where=busy)
        evidence = conditions.evidence[:, : seconds * per_second].reshape(len(conditions.causes), seconds, per_second)
        held = evidence.max(axis=2) >= _HELD
        clear = ~held.any(axis=0) & busy
        found = {}
        for row, cause in enumerate(conditions.causes):
            during = held[row] & busy
            # Without any condition, if there is enough of that: another fault is no measure of health.
            without = clear if clear.sum() >= _CLEAR else ~held[row] & busy
            if during.sum() < _LEAST or without.sum() < _LEAST:
                continue
            typical = (
                median(ratios[during]) if CAUSES[cause] in SLOWING else late[during].sum() / expected[during].sum()
            )
            high, low = max(float(typical), 0.0), max(median(ratios[without]), 0.0)
            found[cause] = (high + _BASE) / (low + _BASE)
        return found


def _spread(
    moment_s: float, late_s: float, expected_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A long step as one of each second."""
    count = min(SECONDS, math.ceil(late_s + expected_s))
    return (
        moment_s - np.arange(count, dtype=np.float64),
        np.full(count, late_s / count),
        np.full(count, expected_s / count),
    )


def weight(lift: float | None) -> float:
    """How much a claim counts: all of it from a lift of 2 on, or where the lift is not known; a tenth at 1."""
    if lift is None:
        return 1.0
    return float(np.interp(lift, [_NONE, _FULL], [_LITTLE, 1.0]))
