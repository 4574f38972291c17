"""Rows of a report at any width."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpumon.grid import Grid


def shown(grid: Grid, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False).print(grid)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def matrix() -> Grid:
    grid = Grid("Dimension", "healthy", "slow", "others", "verdict", right=2)
    for row in (
        ("SM clock over its maximum", "> 0.7", "0.508", "1", "bad"),
        ("GPU temperature", "< 85 °C", "91 °C", "74 °C", "suspect"),
        ("NVLink, both ways", "", "-", "-", "unknown"),
    ):
        grid.add_row(*map(Text, row))
    return grid


def test_where_it_fits_it_is_a_table() -> None:
    assert shown(matrix(), 60) == [
        "Dimension                  healthy   slow  others  verdict",
        "SM clock over its maximum  > 0.7    0.508       1      bad",
        "GPU temperature            < 85 °C  91 °C   74 °C  suspect",
        "NVLink, both ways                       -       -  unknown",
    ]


def test_texts_wrap_between_words_where_it_is_too_wide() -> None:
    assert shown(matrix(), 50) == [
        "Dimension          healthy   slow  others  verdict",
        "SM clock over its  > 0.7    0.508       1      bad",
        "maximum",
        "GPU temperature    < 85 °C  91 °C   74 °C  suspect",
        "NVLink, both ways               -       -  unknown",
    ]


def test_where_words_would_break_every_row_is_a_paragraph_without_its_empty_cells() -> None:
    assert shown(matrix(), 36) == [
        "SM clock over its maximum",
        "  healthy: > 0.7; slow: 0.508;",
        "  others: 1; verdict: bad",
        "GPU temperature",
        "  healthy: < 85 °C; slow: 91 °C;",
        "  others: 74 °C; verdict: suspect",
        "NVLink, both ways",
        "  slow: -; others: -;",
        "  verdict: unknown",
    ]


def test_titles_of_figures_wrap_before_the_table_is_given_up() -> None:
    grid = Grid("Queries", "first token P50", "its jitter P99")
    grid.add_row(Text("rare"), Text("350 ms"), Text("900 ms"))
    assert shown(grid, 30) == [
        "                           its",
        "              first     jitter",
        "Queries   token P50        P99",
        "rare         350 ms     900 ms",
    ]


def test_a_first_cell_that_is_a_figure_has_its_title() -> None:
    grid = Grid("At", "took", right=0)
    grid.add_texts("what held meanwhile", least=24)
    grid.add_row(Text("0.980 s"), Text("420 ms"), Text("GPU too hot 88 %, unexplained 12 % (SM clock 1,005 MHz)"))
    assert shown(grid, 42) == [
        "     At    took  what held meanwhile",
        "0.980 s  420 ms  GPU too hot 88 %,",
        "                 unexplained 12 % (SM",
        "                 clock 1,005 MHz)",
    ]
    assert shown(grid, 40) == [
        "At 0.980 s",
        "  took: 420 ms;",
        "  what held meanwhile: GPU too hot 88 %,",
        "  unexplained 12 % (SM clock 1,005 MHz)",
    ]


def test_nothing_is_taken_for_markup() -> None:
    grid = Grid("[red]title[/red]", "[b]figure")
    grid.add_row(Text("[red]"), Text(":smile:"))
    assert shown(grid, 80) == ["[red]title[/red]  [b]figure", "[red]               :smile:"]


def test_without_rows_there_is_the_head_alone() -> None:
    assert shown(Grid("Signal", "before"), 40) == ["Signal  before"]
    assert shown(Grid("Signal", "before"), 5) == []


WORDS = st.lists(st.text("abcß→%", min_size=1, max_size=12), min_size=0, max_size=5).map(" ".join)


@given(st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), min_size=1, max_size=4), st.integers(14, 80))
def test_no_word_is_broken_and_no_line_too_long_at_any_width(rows: list[tuple[str, ...]], width: int) -> None:
    grid = Grid("Signal", "before", "during", right=1)
    grid.add_texts("mostly by", least=10)
    for row in rows:
        grid.add_row(*map(Text, row))
    told = shown(grid, width)
    assert all(cell_len(line) <= width for line in told)
    words = " ".join(told).replace(";", " ").split()
    for row in rows:
        for word in " ".join(row).split():
            assert word in words
