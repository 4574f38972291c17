"""Whether a latency has jumped and stays there: judges the windows of one quantile of one signal, one after the other.

What windows are compared with are those before, of the last half hour, apart from shifts: their median, their spread
(the larger of the robust one and that of the upper tail), how often they were above the limit that follows from both,
and for how long running. So what comes in bursts is known to do so. A jump is one over the minute before it, so that a
day's wave is none. A quantile moves far when the share of slow steps passes by what it leaves over, by chance: so twice
as many observations must have moved. Where there is more load than before, it takes three times as many windows, for
bursts pass.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

KEPT: Final = 360
"""Windows to compare with."""
NEAR: Final = 12
"""Windows before a jump that it must be one over."""
DRIFT: Final = 60
"""Windows above the limit that no jump began: things have changed, slowly."""
GONE_S: Final = 60.0
"""Without a window for so long, a shift is over."""
_LEAST_SPREAD: Final = 0.03
"""Of the median."""
_UPPER: Final = 1.2816
"""Standard deviations from the median of a normal distribution to its 90th percentile."""
_UNHEARD_OF: Final = 1.5
"""Times the highest window there was: the fewest windows will do."""
_LEAST_NEEDED: Final = 4
_MILD: Final = 1.5
"""Times the median: what is less may be the load, and has to last."""
_MILD_NEEDED: Final = 8
_MORE_LOAD: Final = 1.3
"""Times the load that nine of ten windows had."""
_BUSIER: Final = 3
"""Times as many windows."""
_RARE: Final = 1e-6
"""Chance of a false shift at a window: one in a fortnight, for a dozen quantiles on a node."""
_SHOWN: Final = 6
"""Windows whose median is the latency now."""


class Window(NamedTuple):
    """One quantile over a few seconds."""

    start_s: float
    """Beginning of its last bin: with many requests that is its only one."""
    value_s: float
    thick_s: float
    """The quantile that twice as many observations are above."""
    load: float
    """Requests that began to answer, per second."""


class Shift:
    """One that goes on, or has ended."""

    def __init__(self, since_s: float, before_s: float, back_s: float) -> None:
        """before_s: the latency before. back_s: at or below this a window is back."""
        self.since_s = since_s
        self.before_s = before_s
        self.back_s = back_s
        self.done: deque[Window] = deque(maxlen=KEPT // 2)
        self.young: Sequence[Window] = ()

    @property
    def windows(self) -> list[Window]:
        return [*self.done, *self.young]

    @property
    def now_s(self) -> float:
        """Of the newest windows, while it goes on; of the last ones of it, when it has ended."""
        return float(np.median([window.value_s for window in self.windows[-_SHOWN:]]))


@dataclass(frozen=True, slots=True)
class _Level:
    """What the windows before were like."""

    median_s: float
    limit_s: float
    thick_s: float
    """Above both a window is unlike them."""
    highest_s: float
    thickest_s: float
    """The highest of what twice as many observations were above."""
    longest: int
    """Windows running above the limit, at most, among them."""
    needed: int
    """Windows running above the limit that chance does not bring."""
    load: float
    """More than this is more than there was."""

    def is_unlike(self, window: Window) -> bool:
        return window.value_s > self.limit_s and window.thick_s > self.thick_s


class Track:
    """One quantile of one signal. Not thread-safe."""

    def __init__(self, *, rise: float, deviations: float, least: int, fewest: int, may_rise: bool) -> None:
        """rise: ratio. deviations: robust ones over the median. least: windows to compare with. fewest: windows that
        a shift takes where there has never been the like; else it takes more. may_rise: three windows each ``rise``
        times the one before are a shift, too, if they lead to where none has been.
        """
        self._rise = rise
        self._deviations = deviations
        self._least = least
        self._fewest = fewest
        self._may_rise = may_rise
        self._history: deque[Window] = deque(maxlen=KEPT)
        self._run: list[Window] = []
        """Done windows above the limit that may become a shift."""
        self._known: _Level | None = None
        """Of the history; None when it has to be found anew."""
        self.shift: Shift | None = None

    def judge(self, done: Sequence[Window], young: Sequence[Window], at_s: float, *, settled_s: float) -> Shift | None:
        """Take windows: those that are done now, each once, and those that may still change. The shift that ended.

        settled_s: a shift that has lasted so long is how things are.
        """
        for window in done:
            if self.shift is not None:
                self.shift.done.append(window)
            else:
                self._take(window)
        if self.shift is None:
            self._open(young)
            return None
        return self._close(self.shift, young, at_s, settled_s)

    def _take(self, window: Window) -> None:
        level = self._level()
        if level is not None and level.is_unlike(window) and len(self._run) < DRIFT:
            self._run.append(window)
        else:
            self._history += [*self._run, window]
            self._run.clear()
            self._known = None

    def _open(self, young: Sequence[Window]) -> None:
        level = self._level()
        newest = [*self._run, *young]
        above = _last_unlike(newest, level) if level is not None else 0
        if level is None or not above:
            return
        run = newest[len(newest) - above :]
        before = [*list(self._history)[-NEAR:], *newest[: len(newest) - above]][-NEAR:]
        middle_s = float(np.median([window.value_s for window in run]))
        before_s = float(np.median([window.value_s for window in before]))
        is_busy = sum(window.load > level.load for window in run) > above / 2
        thick_s = float(np.median([window.thick_s for window in run]))
        needed = self._needed(level, middle_s, thick_s, is_busy=is_busy)
        stays = middle_s > self._rise * before_s and above >= needed
        last = [*before, *run][-4:]
        rises = len(last) == 4 and all(new.value_s > self._rise * old.value_s for old, new in pairwise(last))
        is_new = last[-1].value_s > self._rise * level.highest_s and len(self._history) >= 4 * self._least
        rises = rises and is_new and above > 1 and self._may_rise and not is_busy
        if stays or rises:
            since_s = min(run[0].start_s, last[1].start_s) if rises else run[0].start_s
            self.shift = Shift(since_s, level.median_s, (level.median_s + level.limit_s) / 2)
            self.shift.done.extend(self._run)
            self.shift.young = young
            self._run.clear()

    def _needed(self, level: _Level, middle_s: float, thick_s: float, *, is_busy: bool) -> int:
        """Windows running above the limit that are a shift."""
        needed = max(level.needed, 2 * level.longest + 1, self._fewest + 1)
        if middle_s < _MILD * level.median_s:
            needed = max(needed, _MILD_NEEDED)
        if thick_s > _UNHEARD_OF * level.thickest_s:
            needed = self._fewest
        return needed * (_BUSIER if is_busy else 1)

    def _close(self, shift: Shift, young: Sequence[Window], at_s: float, settled_s: float) -> Shift | None:
        newest = [*shift.done, *young][-2:]
        is_back = len(newest) == 2 and max(window.value_s for window in newest) <= shift.back_s
        if is_back or at_s - (newest[-1].start_s if newest else shift.since_s) > GONE_S:
            self.shift = None
            return shift
        shift.young = young
        if at_s - shift.since_s < settled_s:
            return None
        self._history.clear()
        self._history += shift.done
        self._known = self.shift = None
        return shift

    def _level(self) -> _Level | None:
        """None of too few windows."""
        if self._known is None and len(self._history) >= max(self._least, 2):
            values = np.array([window.value_s for window in self._history])
            median_s = float(np.median(values))
            robust_s = 1.4826 * float(np.median(np.abs(values - median_s)))
            upper_s = (float(np.quantile(values, 0.9)) - median_s) / _UPPER
            spread_s = max(robust_s, upper_s, _LEAST_SPREAD * median_s)
            limit_s = max(self._rise * median_s, median_s + self._deviations * spread_s)
            thick = np.array([window.thick_s for window in self._history])
            thick_s = self._rise * float(np.median(thick))
            above = (values > limit_s) & (thick > thick_s)
            share = (float(above.sum()) + 0.5) / (len(above) + 1)
            load = float(np.quantile([window.load for window in self._history], 0.9))
            self._known = _Level(
                median_s=median_s,
                limit_s=limit_s,
                thick_s=thick_s,
                highest_s=float(values.max()),
                thickest_s=float(thick.max()),
                longest=_longest_run(above),
                needed=max(_LEAST_NEEDED, math.ceil(math.log(_RARE) / math.log(share))),
                load=_MORE_LOAD * load,
            )
        return self._known


def _last_unlike(windows: Sequence[Window], level: _Level) -> int:
    """How many of the newest ones running are unlike those before."""
    above = 0
    while above < len(windows) and level.is_unlike(windows[-1 - above]):
        above += 1
    return above


def _longest_run(above: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], above, [False]))))
    return int(np.diff(edges)[::2].max(initial=0))
