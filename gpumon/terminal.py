"""What the reports on a terminal share: its width and colours, bars, and texts from outside made harmless.

Plain 80 columns in a pipe; on a terminal as wide as that, at most WIDTH_MAX. Nothing from outside is markup, for it is
never parsed as such, and control sequences are replaced.
"""

from __future__ import annotations

import math
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from gpumon.catalogue import CAUSES, TITLES
from gpumon.explain.causes import LOAD, TABLE, UNEXPLAINED
from gpumon.shown import shown

PLAIN_WIDTH: Final = 80
WIDTH_MAX: Final = 110
NAME_MAX: Final = 60
"""Characters shown of a name from outside."""
LONG: Final = 400
"""Likewise of a sentence."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_FAULT_COLOURS: Final = ("red", "magenta", "yellow", "bright_red", "bright_magenta", "bright_yellow")
_LOAD_COLOURS: Final = ("cyan", "blue", "bright_cyan", "bright_blue", "green")


def console_for(stream: TextIO) -> Console:
    """Colours for a terminal, no control sequence for anything else."""
    if not stream.isatty():
        return Console(
            file=stream,
            width=PLAIN_WIDTH,
            color_system=None,
            force_terminal=False,
            highlight=False,
            markup=False,
            emoji=False,
        )
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH_MAX)
    return console


def printable(text: str, most: int = NAME_MAX) -> str:
    """A text from outside on one line, cut: names may hold anything, control sequences too."""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def title_of(cause: str) -> str:
    """A cause, or a kind of incident, in a few words; one that this gpumon does not know by its name."""
    return TITLES.get(cause) or printable(cause)


def colour_of(cause: str) -> str:
    """Always the same for a cause: faults are warm, load is cold, what is not known is grey."""
    if cause == UNEXPLAINED or cause not in TABLE:
        return "bright_black"
    is_load = cause in LOAD
    kin = [each for each in CAUSES if (each in LOAD) == is_load]
    colours = _LOAD_COLOURS if is_load else _FAULT_COLOURS
    return colours[kin.index(cause) % len(colours)]


def bar(share: float, width: int) -> str:
    """Of ``width`` characters for 1, in eighths; never nothing where there is something."""
    eighths = max(1 if share > 0.0 else 0, min(8 * width, math.floor(8 * width * share + 0.5)))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def figure(value: float | None, unit: str) -> str:
    """A value of a dimension: ``91 °C``, ``40/s``; ``97 %`` of a ratio, and of seconds in a second, as bounds are."""
    if unit == "s/s":
        return shown(value, "ratio")
    base, per_second = unit.removesuffix("/s"), unit.endswith("/s")
    if value is not None and per_second and base != "bytes":
        return f"{shown(value, '')}/s"
    return shown(value, base, is_rate=per_second)


def heading(text: str) -> Text:
    """Of a part of a report."""
    return Text(text, style="bold")
