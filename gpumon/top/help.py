"""What `?` shows in ``gpumon top``: its keys, and what the words of its tables mean. 24 lines have room for it."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from gpumon.top.gpus import ORDERS
from gpumon.top.table import cut, wrapped

_KEYS: Final = (
    ("q, Ctrl-C", "ends it"),
    ("p, space", "stops the picture, and goes on"),
    ("s", f"sorts the GPUs by the next of: {', '.join(order.name for order in ORDERS)}"),
    ("↑ ↓, k j", "scrolls by a line where not all of it fits; PgUp, PgDn: by a screen"),
    ("?, h", "shows this; any key but q goes back"),
)
_WORDS: Final = (
    ("3!", "GPU 3 has an incident that is open"),
    ("limited by", "what holds its clocks down now or did in the last minute; then what it was bound by"),
    ("TTFT, gap", "time to the first token, and from one to the next: 99 of 100 were shorter"),
    ("open, wait", "requests that were begun or wait; those in the server's queue"),
    ("late s/s", "what tokens were late by, all requests together, in seconds each second"),
)
_INDENT: Final = 12


def help_lines(width: int) -> list[Text]:
    """Every line fits the width."""
    return [*_section("Keys", _KEYS, width), Text(), *_section("Words", _WORDS, width)]


def _section(title: str, rows: tuple[tuple[str, str], ...], width: int) -> list[Text]:
    lines = [Text(title[:width], style="bold")]
    for name, meaning in rows:
        first, *others = wrapped(meaning, width, " " * _INDENT)
        lines += [cut(Text(f"{name:<{_INDENT}}{first.plain.strip()}"), width), *others]
    return lines
