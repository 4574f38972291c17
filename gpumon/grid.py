"""Rows of a report on a terminal of any width: a table where it fits, else a paragraph a row that names its cells.

Nothing is cut off and no word is broken: a column of figures is as wide as its figures, a column of texts at least as
wide as its longest word. Where that is wider than the terminal the first cell begins a paragraph, with the others below
it, as ``slow: 0.508; others: 1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP: Final = 2
"""Columns between two cells."""
_INDENT: Final = 2


class _Column(NamedTuple):
    title: str
    is_text: bool
    least: int
    """Columns that it must have to be worth reading, where its texts are as long."""


class Grid:
    """A renderable of rich. Cells are texts that nothing is taken for markup in."""

    def __init__(self, *titles: str, right: int = 1) -> None:
        """right: the columns from this one on are of figures, and aligned so."""
        self._columns = [_Column(title, number < right, 0) for number, title in enumerate(titles)]
        self._rows: list[tuple[Text, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_texts(self, title: str, least: int) -> None:
        """A further column, of texts. least: columns."""
        self._columns.append(_Column(title, is_text=True, least=least))

    def add_figures(self, titles: Iterable[str]) -> None:
        """Further columns, of figures."""
        self._columns += [_Column(title, is_text=False, least=0) for title in titles]

    def add_row(self, *cells: Text) -> None:
        """One cell for each column."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if widths is not None:
            yield self._table(widths)
        else:
            for row in self._rows:
                yield from self._paragraph(row, options.max_width)

    def _widths(self, width: int) -> list[int] | None:
        """Of the columns; None where they do not fit."""
        least, most = [], []
        for number, column in enumerate(self._columns):
            cells = [row[number].plain for row in self._rows]
            longest = max(map(cell_len, [column.title, *cells]))
            whole = _longest_word([column.title, *cells]) if column.is_text else max(map(cell_len, cells), default=0)
            least.append(min(longest, max(whole, _longest_word([column.title]), column.least)))
            most.append(longest)
        left = width - _GAP * (len(self._columns) - 1) - sum(least)
        if left < 0:
            return None
        # Who needs least gets all of it, and leaves the rest to the others.
        wanting = sorted(range(len(least)), key=lambda number: most[number] - least[number])
        for position, number in enumerate(wanting):
            more = min(most[number] - least[number], left // (len(wanting) - position))
            least[number] += more
            left -= more
        return least

    def _table(self, widths: Sequence[int]) -> Table:
        made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column, width in zip(self._columns, widths, strict=True):
            made.add_column(
                Text(column.title), width=width, justify="left" if column.is_text else "right", overflow="fold"
            )
        for row in self._rows:
            made.add_row(*row)
        return made

    def _paragraph(self, row: Sequence[Text], width: int) -> Iterable[RenderableType]:
        first, *others = zip(self._columns, row, strict=True)
        yield first[1] if first[0].is_text else Text.assemble(f"{first[0].title} ", first[1])
        line = Text()
        for column, cell in others:
            if not cell.plain:
                continue
            part = Text.assemble(f"{column.title}: ", cell)
            if line.plain and line.cell_len + 2 + part.cell_len > width - _INDENT:
                yield _indented(line.append(";"))
                line = Text()
            line.append_text(Text("; ") if line.plain else Text()).append_text(part)
        if line.plain:
            yield _indented(line)


def _longest_word(texts: Iterable[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _indented(line: Text) -> Padding:
    return Padding(line, (0, 0, 0, _INDENT), expand=False)
