"""How a diagnosis says things: moments, seconds, names, and what is left out of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from rich.padding import Padding
from rich.text import Text

from gpumon.explain.diagnosis.model import Change, Diagnosis, IncidentBrief
from gpumon.grid import Grid
from gpumon.model import Unit
from gpumon.shown import shown, shown_change, shown_duration, shown_time
from gpumon.terminal import figure, heading, printable

ROWS: Final = 12
"""Shown of a list, unless everything is."""
_SUMS: Final = {"cpu": "CPUs", "runqueue_wait": "threads"}
"""Signals in seconds per second that add up over threads: so many at a time."""
Lines = list[Text | Padding | Grid]
_Row = TypeVar("_Row")


def known_s(said: Diagnosis) -> float:
    """Seconds of the period of which something is known."""
    return max(0.0, said.until - (said.since if said.known_since is None else said.known_since))


def period(said: Diagnosis) -> str:
    """``30 min from 2026-11-29 17:10:47 UTC on``; and that it is less than was asked for, where no more is known."""
    known = shown_duration(known_s(said))
    if said.known_since is None:
        return f"{known} from {shown_time(said.since)} on"
    asked = shown_duration(max(0.0, said.until - said.since))
    return f"{known} from {shown_time(said.known_since)} on: of the {asked} asked for no more is known"


def counted(number: int, what: str) -> str:
    """``1 request``, ``1,234 requests``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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
    return "-" if ratio is None else shown_change(ratio)


def moved(each: Change) -> str:
    """What a signal did: of a temperature the difference, for its zero means nothing; of others ``change``."""
    if each.unit == Unit.CELSIUS and each.before is not None and each.during is not None:
        return f"{each.during - each.before:+.3g} °C"
    return change(each.change)


def measured(signal: str, value: float | None, unit: str) -> str:
    """A signal's value with its unit: ``97 %``, ``2.4 CPUs``."""
    return f"{shown(value, '')} {_SUMS[signal]}" if value is not None and signal in _SUMS else figure(value, unit)


def lasted(incident: IncidentBrief) -> str:
    """``lasted 73 s``, ``still open after 108 s``."""
    told = shown_duration(max(0.0, incident.lasted_seconds))
    return f"still open after {told}" if incident.is_open else f"lasted {told}"
