"""Numbers, escapes and heads, byte for byte."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString

from gpumon.export.text import Format, Page, escape_label, head, number, series


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (999_999.0, "999999.0"),
        (1e6, "1e+06"),
        (-1e6, "-1000000.0"),
        (1_234_567.0, "1.234567e+06"),
        (85_899_345_920.0, "8.589934592e+10"),
        (1234567.25, "1.23456725e+06"),
        (9_007_199_254_740_993.0, "9.007199254740992e+15"),
        (1e16, "1e+16"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
        (1e-05, "1e-05"),
    ],
)
def test_numbers_are_written_as_by_prometheus_client(value: float, written: str) -> None:
    assert number(value) == written == floatToGoString(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70).map(float))
def test_every_number_is_written_as_by_prometheus_client_and_reads_back(value: float) -> None:
    assert number(value) == floatToGoString(value)
    assert float(number(value)) == value


def test_label_values_escape_backslash_quote_and_newline_only() -> None:
    assert escape_label('a\\b"c\nd\te{}ü') == 'a\\\\b\\"c\\nd\te{}ü'


def test_a_series_without_labels_has_no_braces() -> None:
    assert series("up", ()) == "up "
    assert series("up", [("a", "1"), ("b", "")]) == 'up{a="1",b=""} '


def test_help_escapes_quotes_in_openmetrics_only() -> None:
    written = head("x_total", "x", "counter", "", 'Say "a\\b"\nc.')
    assert written.text == b'# HELP x_total Say "a\\\\b"\\nc.\n# TYPE x_total counter\n'
    assert written.openmetrics == b'# HELP x Say \\"a\\\\b\\"\\nc.\n# TYPE x counter\n'


def test_an_info_is_a_gauge_in_text_and_an_info_in_openmetrics() -> None:
    written = head("x_info", "x", "info", "", "X.")
    assert written.text == b"# HELP x_info X.\n# TYPE x_info gauge\n"
    assert written.openmetrics == b"# HELP x X.\n# TYPE x info\n"


def test_the_unit_is_told_in_openmetrics_only() -> None:
    written = head("x_seconds", "x_seconds", "gauge", "seconds", "X.")
    assert b"UNIT" not in written.text
    assert written.openmetrics.endswith(b"# UNIT x_seconds seconds\n")


def test_an_empty_page_is_valid_in_both_formats() -> None:
    page = Page([])
    assert page.body(Format.TEXT) == b""
    assert page.body(Format.OPENMETRICS) == b"# EOF\n"


def test_compressed_forms_hold_the_same_and_are_the_same_bytes_every_time() -> None:
    families = [(head("x", "x", "gauge", "", "X."), [b"x 1.0\n"])]
    one, other = Page(families), Page(families)
    for form in Format:
        assert gzip.decompress(one.body(form, compressed=True)) == one.body(form)
        assert one.body(form, compressed=True) == other.body(form, compressed=True)


def test_a_form_is_ready_once_it_was_asked_for_and_made_once() -> None:
    page = Page([])
    assert page.ready(Format.TEXT, compressed=True) is None
    body = page.body(Format.TEXT, compressed=True)
    assert page.ready(Format.TEXT, compressed=True) is body is page.body(Format.TEXT, compressed=True)
    assert page.ready(Format.OPENMETRICS, compressed=False) is None
