"""Rows on a screen where each has one line: columns as wide as they need, the least important left out where the screen
is narrow, texts cut.

``gpumon.grid`` cuts nothing and lets rows grow instead, which is right for a report and wrong for a screen that is
looked at while it changes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.text import Text

FIGURE_MAX: Final = 24
"""Columns of a figure: longer ones come from no sound answer."""
TEXT_LEAST: Final = 8
"""Columns of a text where nothing else can be left out."""
_ROOMY: Final = 70
"""From so many columns on two spaces stand between cells, else one."""


class Column(NamedTuple):
    """One of a table."""

    title: str
    is_text: bool = False
    """Aligned to the left, and cut where it does not fit."""
    least: int = 0
    """Columns that a text must have to be worth reading, where it is as long."""
    rank: int = 0
    """The highest goes first where there is no room; 0 stays."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """The titles, and a line for each row; each cell is a line."""
    gap = 2 if width >= _ROOMY else 1
    kept = list(range(len(columns)))
    longest = [
        max([len(column.title), *(min(row[at].cell_len, _most(column)) for row in rows)])
        for at, column in enumerate(columns)
    ]
    least = [
        min(needs, max(column.least, len(column.title))) if column.is_text else needs
        for column, needs in zip(columns, longest, strict=True)
    ]
    while sum(least[at] + gap for at in kept) - gap > width and any(columns[at].rank for at in kept):
        kept.remove(max(kept, key=lambda at: columns[at].rank))
    left = width + gap - sum(least[at] + gap for at in kept)
    for at in kept:
        if left < 0 and columns[at].is_text:
            less = max(0, min(-left, least[at] - max(TEXT_LEAST, len(columns[at].title))))
            least[at] -= less
            left += less
    widths = dict(zip(kept, (least[at] for at in kept), strict=True))
    # Who needs least gets all of it, and leaves the rest to the others.
    wanting = sorted(kept, key=lambda at: longest[at] - least[at])
    for position, at in enumerate(wanting):
        more = max(0, min(longest[at] - least[at], left // (len(wanting) - position)))
        widths[at] += more
        left -= more
    titles = [Text(column.title, style="bold") for column in columns]
    return [_line(columns, row, widths, gap, width) for row in (titles, *rows)]


def _most(column: Column) -> int:
    return 1 << 16 if column.is_text else FIGURE_MAX


def _line(columns: Sequence[Column], row: Sequence[Text], widths: dict[int, int], gap: int, width: int) -> Text:
    line = Text()
    for at, wide in widths.items():
        cell = row[at].copy()
        cell.truncate(wide, overflow="ellipsis")
        padding = " " * (wide - cell.cell_len)
        line.append(" " * gap if line.plain else "")
        line = line.append_text(cell).append(padding) if columns[at].is_text else line.append(padding).append_text(cell)
    line.rstrip()
    return cut(line, width)


def cut(line: Text, width: int) -> Text:
    """The line on so many columns."""
    line.truncate(width, overflow="ellipsis")
    return line


def wrapped(text: str, width: int, indent: str = "", style: str = "") -> list[Text]:
    """A sentence on as many lines as it needs."""
    lines = textwrap.wrap(text, max(1, width - len(indent)), break_on_hyphens=False)
    return [cut(Text(f"{indent}{line}", style=style), width) for line in lines]
