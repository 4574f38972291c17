"""HTML of reports: what is from outside stays text."""

from __future__ import annotations

import html
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from gpumon.markup import Html, begin, escaped, items, judged, table
from gpumon.terminal import printable


class Read(HTMLParser):
    """The elements of a text, and what is written in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.said.append(data)


@given(st.text())
def test_any_text_is_text(text: str) -> None:
    assert html.unescape(escaped(text)) == printable(text)
    assert not {"<", ">", '"'} & {*escaped(text)}


@given(st.text(min_size=1, max_size=50))
def test_any_text_in_a_heading_a_list_or_a_table_makes_no_element(text: str) -> None:
    assert Read(begin(text, text)).tags == ["h2", "small"]
    assert Read(items([text, text])).tags == ["ul", "li", "li"]
    assert Read(table([text], [[text]])).tags == ["div", "table", "thead", "tr", "th", "tbody", "tr", "td"]


def test_what_is_markup_already_is_not_escaped_again() -> None:
    assert "<td><b>x</b></td>" in table(["a", "b"], [["<b>", Html("<b>x</b>")]])
    assert '<td class="t">&lt;b&gt;</td>' in table(["a", "b"], [["<b>", Html("<b>x</b>")]])
    assert judged("bad") == '<span class="bad">bad</span>'


def test_marked_rows_stand_out() -> None:
    told = table(["a"], [["one"], ["two"]], marked=[1])
    assert '<tr><td class="t">one</td></tr><tr class="mark"><td class="t">two</td></tr>' in told
