"""The parser of metrics pages: the format's lines, everything that is none, and hostile bytes."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.sources.server_page import MAX_LINE, MAX_LINES, Page, Parser, Series

PARSER = Parser({"vllm:running", "vllm:tokens_total"})


def only(page: str | bytes) -> Series:
    """The one series of a page that is all well."""
    parsed = PARSER.parse(page if isinstance(page, bytes) else page.encode())
    assert parsed._replace(families={}) == Page({}, 0, 0, 0)
    ((series,),) = parsed.families.values()
    return series


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("vllm:running 4", {}, 4.0),
        ("vllm:running{} 4", {}, 4.0),
        ("vllm:running\t4", {}, 4.0),
        ("vllm:running 4.0 1795953600000", {}, 4.0),
        ('vllm:running{model_name="m"} 1.6384e+07', {"model_name": "m"}, 16_384_000.0),
        ('vllm:running{model_name="m",} .5', {"model_name": "m"}, 0.5),
        ('vllm:running{ a="1" , b="2" } -0', {"a": "1", "b": "2"}, 0.0),
        ('vllm:running{a="x} 9 {y"} +1E3\r', {"a": "x} 9 {y"}, 1000.0),
        (r'vllm:running{a="q\"b\\n\n\t"} 1', {"a": 'q"b\\n\n\\t'}, 1.0),
        ('vllm:running{a=""} 1', {"a": ""}, 1.0),
        ('vllm:running{a="模型"} 1', {"a": "模型"}, 1.0),
        ('vllm:tokens_total{a="b"} 5 # {trace_id="0af7"} 1 1795953600.5', {"a": "b"}, 5.0),
        ('vllm:tokens_total{a="b"} 5 1795953600.5 # {trace_id="0af7"} 1', {"a": "b"}, 5.0),
    ],
)
def test_a_line_of_the_format(line: str, labels: dict[str, str], value: float) -> None:
    assert only(f"# TYPE vllm:running gauge\n{line}\nvllm:other 1\n") == Series(labels, value)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:running",
        "vllm:running{",
        "vllm:running 1_000",
        "vllm:running 0x10",
        "vllm:running one",
        "vllm:running ٣",
        "vllm:running 1 2 3",
        "vllm:running 1 later",
        "vllm:running{a=b} 1",
        "vllm:running{a='b'} 1",
        'vllm:running{a="b} 1',
        'vllm:running{a="b"',
        'vllm:running{a="b"}1',
        'vllm:running{a="b" c="d"} 1',
        'vllm:running{a="b",,c="d"} 1',
        "vllm:running{,} 1",
        'vllm:running{="b"} 1',
        'vllm:running{1a="b"} 1',
        'vllm:running{a="b",a="c"} 1',
        'vllm:running{"a.b"="c"} 1',
        'vllm:running{a="' + "x" * MAX_LINE + '"} 1',
    ],
)
def test_a_wanted_line_that_is_not_in_the_format_is_counted_and_skipped(line: str) -> None:
    page = PARSER.parse(f"vllm:running 1\n{line}\nvllm:tokens_total 2\n".encode())
    assert page == Page({"vllm:running": [Series({}, 1.0)], "vllm:tokens_total": [Series({}, 2.0)]}, 1, 0, 0)


def test_bytes_that_are_no_text_spoil_their_line_only() -> None:
    page = PARSER.parse(b'vllm:running{a="\xff"} 1\nvllm:running 2\n')
    assert page == Page({"vllm:running": [Series({}, 2.0)]}, 1, 0, 0)


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "Inf", "1e999"])
def test_what_is_not_finite_is_dropped_and_counted(value: str) -> None:
    assert PARSER.parse(f"vllm:running {value}\n".encode()) == Page({}, 0, 1, 0)


@pytest.mark.parametrize(
    "line",
    ["vllm:running_total 1", "vllm:runnin 1", " vllm:running 1", "#vllm:running 1", "xvllm:running 1", "", "\x00"],
)
def test_other_lines_are_not_looked_at(line: str) -> None:
    assert PARSER.parse(line.encode()) == Page({}, 0, 0, 0)


def test_lines_past_the_most_are_left_out_and_counted() -> None:
    page = PARSER.parse(b'vllm:running{a="b"} 1\n' * (MAX_LINES + 5) + b"vllm:other 1\n")
    assert len(page.families["vllm:running"]) == MAX_LINES
    assert page.dropped == 5


@pytest.mark.parametrize(
    "tail",
    ["{" + " " * 16_000, '{a="b"' + " " * 16_000, '{a="' + "\\" * 16_000, '{a="b",' * 2000, " " + "1" * 16_000 + "x"],
)
def test_no_line_takes_long(tail: str) -> None:
    """Each of these is longer than any real line; where a pattern goes over it again and again, they take minutes."""
    began_s = time.process_time()
    page = PARSER.parse(("vllm:running" + tail + "\n").encode() * 256)
    assert page.malformed == 256
    assert time.process_time() - began_s < 10


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_to_finite_values(tail: bytes) -> None:
    page = PARSER.parse(b"vllm:running" + tail)
    assert all(math.isfinite(each.value) for series in page.families.values() for each in series)


NAMES = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_]{0,8}\Z")
VALUES = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(NAMES, st.text(st.characters(codec="utf-8"), max_size=20), max_size=5), VALUES)
def test_what_was_written_by_the_rules_is_read_back(labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    inside = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    assert only(f"vllm:running{{{inside}}} {value!r}\n") == Series(labels, value)
