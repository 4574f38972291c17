"""Rows of one line each on a screen of any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from gpumon.top.table import Column, table

COLUMNS = (
    Column("name", is_text=True, least=8),
    Column("watts"),
    Column("more", rank=2),
    Column("most", rank=1),
)


def lines(width: int, *rows: tuple[str, ...], columns: tuple[Column, ...] = COLUMNS) -> list[str]:
    return [line.plain for line in table(columns, [[Text(cell) for cell in row] for row in rows], width)]


def test_with_room_everything_is_there_figures_to_the_right() -> None:
    assert lines(80, ("a", "1", "2", "3"), ("bcd", "12345678", "", "4")) == [
        "name     watts  more  most",
        "a            1     2     3",
        "bcd   12345678           4",
    ]


def test_the_highest_rank_goes_first_and_rank_0_stays() -> None:
    row = ("a name", "1", "2", "3")
    assert lines(30, row)[0].split() == ["name", "watts", "more", "most"]
    assert lines(20, row)[0].split() == ["name", "watts", "most"]
    assert lines(14, row)[0].split() == ["name", "watts"]


def test_a_text_gives_way_before_a_figure_is_cut() -> None:
    columns = (Column("name", is_text=True, least=20), Column("watts"))
    assert lines(16, ("a very long name indeed", "375"), columns=columns) == ["name       watts", "a very lo…   375"]


@given(
    st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["C", "Z"]), max_size=40)] * 4), max_size=5),
    st.integers(1, 200),
)
def test_no_line_is_wider_than_the_screen_and_every_row_has_one(rows: list[tuple[str, ...]], width: int) -> None:
    told = lines(width, *rows)
    assert len(told) == len(rows) + 1
    assert all(cell_len(line) <= width for line in told)
