"""Accept and Accept-Encoding headers, as clients send them and as nobody should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.export.negotiate import choose
from gpumon.export.text import Format

TEXT = "text/plain; version=0.0.4; charset=utf-8"
TEXT_1 = "text/plain; version=1.0.0; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ESCAPING = "; escaping=underscores"

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_2_NATIVE = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        (BROWSER, TEXT),
        (PROMETHEUS_2_42, OPENMETRICS),
        (PROMETHEUS_2_NATIVE, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS + ESCAPING),
        ("text/plain", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("text/plain; version=1.0.0; escaping=allow-utf-8, text/plain;version=0.0.4;q=0.3", TEXT_1 + ESCAPING),
        ("application/openmetrics-text", OPENMETRICS),
        ('Application/OpenMetrics-Text ; Version="1.0.0" ; Q=0.9', OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text;version=2.0.0,text/plain;version=0.0.4;q=0.1", TEXT),
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", TEXT),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.4", OPENMETRICS),
        ("application/openmetrics-text,text/plain", OPENMETRICS),
        ("text/plain,application/openmetrics-text", TEXT),
        ("application/*", OPENMETRICS),
        ("text/*;q=0.1,application/*;q=0.2", OPENMETRICS),
        ("*/*;q=0.9,text/plain;q=0.1", OPENMETRICS),
        ("text/plain;q=0,*/*", OPENMETRICS),
        ("application/openmetrics-text;q=0", TEXT),
        ("text/plain;q=0", TEXT),
        ("image/png", TEXT),
        ("application/openmetrics-text;q=abc", TEXT),
        ("application/openmetrics-text;q=7", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
        (";;,,=,;q=", TEXT),
    ],
)
def test_content_type(accept: str | None, content_type: str) -> None:
    choice = choose(accept, None)
    assert choice.content_type == content_type
    assert (choice.form is Format.OPENMETRICS) == content_type.startswith("application")


@pytest.mark.parametrize(
    ("accept_encoding", "compressed"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("deflate", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("gzip;q=0.5, identity;q=1", False),
        ("gzip;q=0.5, identity;q=0.5", True),
        ("identity;q=0, gzip;q=0.1", True),
        ("gzip;q=", False),
        ("gzip;q=-1", False),
        ("gzipped", False),
    ],
)
def test_compression(accept_encoding: str | None, compressed: bool) -> None:
    assert choose(None, accept_encoding).compressed is compressed


def test_names_that_openmetrics_forbids_are_text_whatever_is_asked() -> None:
    assert choose(PROMETHEUS_2_42, "gzip", text_only=True).content_type == TEXT
    assert choose(PROMETHEUS_3, None, text_only=True).content_type == TEXT_1 + ESCAPING
    assert choose("application/openmetrics-text", None, text_only=True).form is Format.TEXT


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_header_gets_an_answer(accept: str, accept_encoding: str) -> None:
    choice = choose(accept, accept_encoding)
    assert choice.content_type.split(" escaping")[0].rstrip(";") in (TEXT, TEXT_1, OPENMETRICS)
