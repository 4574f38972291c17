"""Figures, moments and durations as people read them: one way of writing them, whoever tells.

Values are in base units, as ``model.Unit`` names them; a unit that is not among them adds nothing to the figure.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from gpumon.model import Unit

_SCALES: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    "B": ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "Hz": ((1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz")),
    "W": ((1e6, "MW"), (1e3, "kW"), (1.0, "W"), (1e-3, "mW")),
    "J": ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
}
_BASES: Final[dict[str, str]] = {
    Unit.BYTES: "B",
    Unit.HERTZ: "Hz",
    Unit.WATTS: "W",
    Unit.JOULES: "J",
    Unit.SECONDS: "s",
}
_PLAIN: Final = ((1e9, "G"), (1e6, "M"))
"""A smaller bare number is written out: 131,072 tokens."""
_ROUNDS: Final = 0.9995
"""Of a larger unit: 999.6 ms are 1 s."""
_MANY: Final = 9.0
"""Change, less 1, from which on it is told in times: nobody reads +165,327 %."""
_LONG_S: Final = 100.0
"""From here on seconds are told in minutes and hours."""


def shown(value: float | None, unit: str, *, is_rate: bool = False) -> str:
    """``1,980 MHz``, ``84 °C``, ``312 MB/s``, ``7.2 ms``; a dash where there is none."""
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
    text = _scaled(value, _BASES[unit]) if unit in _BASES else _bare(value)
    return text + ("/s" if is_rate else "")


def shown_seconds(value: float | None) -> str:
    """Of a duration: ``7.2 ms``, ``42.1 s``, ``3 min 20 s``; a dash where it is not known."""
    return shown_duration(value) if value is not None and value >= _LONG_S else shown(value, Unit.SECONDS)


def shown_duration(seconds: float) -> str:
    """In whole seconds, from ten of them on: ``0.8 s``, ``42 s``, ``3 min 20 s``, ``30 min``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{_digits(seconds)} s" if seconds else "0 s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    large, small, names = (whole // 60, whole % 60, ("min", "s"))
    if whole >= 7200:
        large, small, names = (whole // 3600, whole % 3600 // 60, ("h", "min"))
    return f"{large} {names[0]} {small} {names[1]}" if small else f"{large} {names[0]}"


def shown_time(unix_s: float) -> str:
    """``2026-11-29 17:10:47 UTC``; the bare number where it is out of the calendar."""
    return _moment(unix_s, "%Y-%m-%d %H:%M:%S UTC", ".0f")


def shown_clock(unix_s: float) -> str:
    """Time of day in UTC, ``17:10:47``; the bare number where it is out of the calendar."""
    return _moment(unix_s, "%H:%M:%S", ".6g")


def percent(share: float) -> str:
    """``93 %``; ``<1 %`` for what is little and not nothing."""
    whole = f"{100 * share:.0f}"
    return "<1 %" if whole == "0" and share > 0.0 else f"{whole} %"


def shown_change(ratio: float) -> str:
    """How much more or less it is than before, less 1: ``-29 %``, ``+467 %``; ``x 58`` from ten times on, in three
    digits: of ``x 1,650`` nobody wants to know the units."""
    if ratio >= _MANY:
        times = 1.0 + ratio
        return f"x {shown(float(f'{times:.3g}'), '')}"
    percents = f"{100 * ratio:+,.0f}"
    return "0 %" if percents in ("+0", "-0") else f"{percents} %"


def _moment(unix_s: float, form: str, bare: str) -> str:
    try:
        return format(datetime.fromtimestamp(unix_s, UTC), form)
    except (ValueError, OverflowError, OSError):
        return format(unix_s, bare)


def _scaled(value: float, base: str) -> str:
    if value == 0:
        return f"0 {base}"
    scales = _SCALES[base]
    factor, name = next((scale for scale in scales if abs(value) >= _ROUNDS * scale[0]), scales[-1])
    return f"{_digits(value / factor)} {name}"


def _bare(value: float) -> str:
    factor, name = next((scale for scale in _PLAIN if abs(value) >= _ROUNDS * scale[0]), (1.0, ""))
    return f"{_digits(value / factor)} {name}".rstrip()


def _digits(value: float) -> str:
    """Three digits, or all of those before the point."""
    if value == 0 or abs(value) < 5e-7:
        return "0"
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
