"""How a diagnosis says things: moments, seconds, names, and what is left out of a list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpumon.explain.diagnosis.model import IncidentBrief
from gpumon.record.comparison import shown, shown_duration
from gpumon.terminal import figure, heading, printable

ROWS: Final = 12
"""Shown of a list, unless everything is."""
_MANY: Final = 9.0
_OF_CPUS: Final = frozenset(("cpu", "runqueue_wait"))
"""Signals in CPU seconds per second."""
Lines = list[Text | Padding | Table]
_Row = TypeVar("_Row")


def begin(title: str, more: str = "") -> Lines:
    """An empty line and a heading. more: dim, in brackets."""
    text = heading(title)
    text.append(f" ({more})" if more else "", style="not bold dim")
    return [Text(), text]


def some(rows: Sequence[_Row], everything: bool, most: int = ROWS) -> Sequence[_Row]:
    """The first ones, or all."""
    return rows if everything else rows[:most]


def rest(told: Sequence[object], rows: Sequence[object]) -> Lines:
    """A line on what is left out; none where nothing is."""
    if len(told) >= len(rows):
        return []
    return [Text(f"{len(told)} of {len(rows)}; --all shows the rest.", style="dim")]


def engine(server: str, model: str) -> str:
    """``vllm/llama-70b``."""
    return f"{printable(server, 16)}/{printable(model, 40)}" if model else printable(server, 16)


def signed(value: float | None) -> str:
    """A correlation: ``-0.83``; a dash where it is not known."""
    return f"{value:+.2f}" if value is not None else "-"


def change(ratio: float | None) -> str:
    """How much more or less: ``-29 %``, ``x 48`` from ten times on; a dash where it is not known."""
    if ratio is None:
        return "-"
    if ratio >= _MANY:
        return f"x {shown(1.0 + ratio, '')}"
    percent = f"{100 * ratio:+,.0f}"
    return "0 %" if percent in ("+0", "-0") else f"{percent} %"


def seconds(value: float | None) -> str:
    """``7.2 ms``, ``42.1 s``, ``3 min 20 s``; a dash where it is not known."""
    return shown_duration(value) if value is not None and value >= 100.0 else shown(value, "seconds")


def measured(signal: str, value: float | None, unit: str) -> str:
    """A signal's value with its unit; of seconds of CPUs in a second, which may be many, with that."""
    told = figure(value, unit)
    return f"{told} CPU s/s" if value is not None and signal in _OF_CPUS else told


def lasted(incident: IncidentBrief) -> str:
    """``lasted 73 s``, ``still open after 108 s``."""
    told = shown_duration(max(0.0, incident.lasted_seconds))
    return f"still open after {told}" if incident.is_open else f"lasted {told}"


def clock(unix_s: float) -> str:
    """Time of day in UTC; the bare number where it is out of the calendar."""
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.6g}"
