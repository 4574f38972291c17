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
from datetime import UTC, datetime
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


# --- for people -----------------------------------------------------------------------------------------------------

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "B": ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "Hz": ((1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz")),
    "W": ((1e6, "MW"), (1e3, "kW"), (1.0, "W"), (1e-3, "mW")),
    "J": ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
}
_PLAIN = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_PLAIN_LEAST = 1e4
"""A smaller bare number is written out."""


def shown(value: float | None, unit: str, *, is_rate: bool = False) -> str:
    """A value for people: ``1,980 MHz``, ``84 °C``, ``312 MB/s``, ``7.2 ms``; a dash where there is none."""
    if value is None:
        return "-"
    if unit == Unit.RATIO or (unit == Unit.SECONDS and is_rate):
        return f"{_digits(100 * value)} %"  # seconds per second are a share
    if unit == Unit.CELSIUS:
        return f"{_digits(value)} °C{'/s' if is_rate else ''}"
    if unit == Unit.TIMESTAMP:
        return shown_time(value)
    if unit == Unit.JOULES and is_rate:
        return _scaled(value, "W")
    base = {Unit.BYTES: "B", Unit.HERTZ: "Hz", Unit.WATTS: "W", Unit.JOULES: "J", Unit.SECONDS: "s"}
    text = _scaled(value, base[Unit(unit)]) if unit in base else _bare(value)
    return text + ("/s" if is_rate else "")


def shown_time(unix_s: float) -> str:
    """``2026-11-29 17:10:47 UTC``; the bare number where it is out of the calendar."""
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.0f}"


def shown_duration(seconds: float) -> str:
    """``0.8 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{_digits(seconds)} s" if seconds else "0 s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _scaled(value: float, base: str) -> str:
    if value == 0:
        return f"0 {base}"
    scales = _SCALES[base]
    factor, name = next((scale for scale in scales if abs(value) >= scale[0]), scales[-1])
    return f"{_digits(value / factor)} {name}"


def _bare(value: float) -> str:
    if abs(value) < _PLAIN_LEAST:
        return _digits(value)
    factor, name = next(scale for scale in _PLAIN if abs(value) >= scale[0])
    return f"{_digits(value / factor)} {name}"


def _digits(value: float) -> str:
    """Three digits, or all of those before the point."""
    if value == 0 or abs(value) < 5e-7:
        return "0"
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
