"""HTML of reports: texts escaped, headings, lists and tables. Everything from outside passes through ``escaped``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from gpumon.terminal import LONG, NAME_MAX, printable


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Cell = str | Html
"""Of a table: a plain text is escaped."""


def begin(title: str, more: str = "") -> str:
    """A heading. more: small, after it."""
    told = f" <small>{escaped(more, LONG)}</small>" if more else ""
    return f"<h2>{escaped(title, LONG)}{told}</h2>"


def items(texts: Iterable[str], *, numbered: bool = False) -> str:
    """A list."""
    kind = "ol" if numbered else "ul"
    return f"<{kind}>{''.join(f'<li>{escaped(text, LONG)}</li>' for text in texts)}</{kind}>"


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    left: Sequence[int] = (0,),
    marked: Iterable[int] = (),
) -> str:
    """left: columns of texts. marked: rows that stand out."""
    kinds = [' class="t"' if number in left else "" for number in range(len(titles))]
    head = "".join(f'<th scope="col"{kind}>{escaped(title)}</th>' for title, kind in zip(titles, kinds, strict=True))
    body = ""
    marks = {*marked}
    for number, row in enumerate(rows):
        cells = "".join(f"<td{kind}>{_cell(cell)}</td>" for cell, kind in zip(row, kinds, strict=False))
        mark = ' class="mark"' if number in marks else ""
        body += f"<tr{mark}>{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, Html) else escaped(cell, LONG)


def judged(verdict: str) -> Html:
    """A verdict, or another word of a closed list, in its colour."""
    return Html(f'<span class="{verdict}">{verdict}</span>')


def escaped(text: str, most: int = NAME_MAX) -> str:
    """A text from outside, cut: no markup, no control characters."""
    return html.escape(printable(text, most))
