"""Before, during and after an incident: what every signal did, those that moved most first.

Before is up to BEFORE_S before the effect began, during until it was last seen to hold (or the recording ended), after
from there to the end of the recording. Gauges are compared by their means; counters by their rates, of the growth from
each reading to the next one in that time; what falls began anew. How much a signal moved is a robust z-score: the
difference between during and the median before, in units of the spread before (1.4826 times the median absolute
deviation), or where that is less of a hundredth of the larger of the two, or of the least that matters in its unit:
so the move of a signal that stood still counts by its relative size, is at most 200, and is little where the signal is
next to nothing before and during. First come the signals of the incident's own GPU and process that moved by OWN_SCORE.

Left out: gpumon's own account of incidents, and moments in time, which always move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.catalogue import GROUPS
from gpumon.model import Kind, Unit
from gpumon.record.flight_reader import Series

BEFORE_S = 300.0
_LEAST_SPREAD = 0.01
"""Of the larger of the two values."""
_LEAST_MATTERS: dict[str, float] = {
    Unit.RATIO: 0.005,
    Unit.CELSIUS: 0.5,
    Unit.HERTZ: 5e6,
    Unit.WATTS: 2.0,
    Unit.BYTES: 1e6,
    Unit.NONE: 0.05,
}
"""Of a gauge; a state that flips counts for 20."""
_LEAST_RATE_MATTERS: dict[str, float] = {
    Unit.SECONDS: 0.005,
    Unit.JOULES: 2.0,
    Unit.BYTES: 1e6,
    Unit.NONE: 0.05,
}
"""Of a counter, per second: of seconds it is a share, of joules a power."""
OWN_SCORE = 3.0
_OWN = frozenset(metric.name for metric in GROUPS["incidents"])


class Period(NamedTuple):
    """From ``since_s`` to ``until_s``, both of them in it; steady seconds."""

    since_s: float
    until_s: float


class Periods(NamedTuple):
    """What is compared."""

    before: Period
    during: Period
    after: Period | None
    """None where the recording ends with the incident, or before it."""


class Change(NamedTuple):
    """One signal."""

    name: str
    labels: tuple[tuple[str, str], ...]
    unit: str
    is_rate: bool
    """Whether the values are per second."""
    before: float | None
    """None: no reading in that time."""
    during: float | None
    after: float | None
    change: float | None
    """During over before, less 1; None where there is no such ratio."""
    score: float | None
    """By how much it moved; None where one of the two is not known."""
    least: float | None = None
    """Smallest and largest reading during, of a gauge."""
    most: float | None = None


class Subject(NamedTuple):
    """Whose signals come first: labels that name the incident's GPU or process; empty ones name nothing."""

    uuid: str = ""
    gpu: str = ""
    pid: str = ""

    def has(self, labels: tuple[tuple[str, str], ...]) -> bool:
        """Whether a signal with these labels is its own."""
        found = dict(labels)
        if self.pid and found.get("pid") == self.pid:
            return True
        if self.uuid and "uuid" in found:
            return found["uuid"] == self.uuid
        return bool(self.gpu) and found.get("gpu") == self.gpu


NOBODY = Subject()


def periods(since_s: float, seen_s: float | None, ended_s: float) -> Periods:
    """seen_s: when it last held, None while it was open. ended_s: the end of the recording."""
    held_until_s = ended_s if seen_s is None else min(max(seen_s, since_s), ended_s)
    after = Period(math.nextafter(held_until_s, math.inf), ended_s) if held_until_s < ended_s else None
    before = Period(since_s - BEFORE_S, math.nextafter(since_s, -math.inf))
    return Periods(before, Period(since_s, max(held_until_s, since_s)), after)


def compare(series: Iterable[Series], when: Periods, subject: Subject = NOBODY) -> list[Change]:
    """One for each signal with a reading before or during: the subject's own that moved, then those that moved most."""
    with np.errstate(over="ignore", invalid="ignore"):  # values near the end of doubles: no figure then
        changes = [
            change
            for one in series
            if one.name not in _OWN and one.unit != Unit.TIMESTAMP
            if (change := _compared(one, when)) is not None
        ]
    return sorted(changes, key=lambda change: (not _is_own(change, subject), *_order(change)))


def _is_own(change: Change, subject: Subject) -> bool:
    return change.score is not None and abs(change.score) >= OWN_SCORE and subject.has(change.labels)


def _order(change: Change) -> tuple[float, float, str, tuple[tuple[str, str], ...]]:
    score = -1.0 if change.score is None else abs(change.score)
    return -score, -abs(change.change or 0.0), change.name, change.labels


def _compared(series: Series, when: Periods) -> Change | None:
    is_rate = series.kind == Kind.COUNTER
    before, base = _told(series, when.before, is_rate)
    during, held = _told(series, when.during, is_rate)
    after = _told(series, when.after, is_rate)[0] if when.after is not None else None
    if before is None and during is None:
        return None
    change = score = None
    if before is not None and during is not None:
        change = _finite(during / before - 1.0) if before else None
        least = (_LEAST_RATE_MATTERS if is_rate else _LEAST_MATTERS).get(series.unit, 0.0)
        score = _score(base, during, least)
    least_held = most_held = None
    if len(held) and not is_rate:
        least_held, most_held = _finite(float(held.min())), _finite(float(held.max()))
    told = (before, during, after, change, score, least_held, most_held)
    return Change(series.name, series.labels, series.unit, is_rate, *told)


def _told(series: Series, period: Period, is_rate: bool) -> tuple[float | None, NDArray[np.float64]]:
    """The mean, or the rate over the whole period, and the single values it is of."""
    first = np.searchsorted(series.times, period.since_s, "left")
    last = np.searchsorted(series.times, period.until_s, "right")
    if is_rate and last > first > 0:
        first -= 1
    times, values = series.times[first:last], series.values[first:last]
    if not is_rate:
        return (_finite(float(values.mean())) if len(values) else None), values
    passed, grown = np.diff(times), np.diff(values)
    grown = np.where(grown < 0, values[1:], grown)  # it fell: it began anew at 0
    grown, passed = grown[passed > 0], passed[passed > 0]
    if not len(passed):
        return None, passed
    return _finite(float(grown.sum() / passed.sum())), grown / passed


def _score(base: NDArray[np.float64], during: float, least: float) -> float | None:
    median = float(np.median(base))
    spread = 1.4826 * float(np.median(np.abs(base - median)))
    spread = max(spread, _LEAST_SPREAD * max(abs(median), abs(during)), least)
    return _finite((during - median) / spread) if spread > 0.0 else 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
