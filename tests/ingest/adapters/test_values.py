"""Numbers, durations and texts in every spelling that senders use, and in some that nobody should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.ingest.adapters.values import Gate, count, integers, is_absent, number, seconds, text, words
from gpumon.ingest.records import Value

ANYTHING: st.SearchStrategy[Value] = st.one_of(
    st.text(max_size=40),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.lists(st.one_of(st.text(max_size=5), st.integers(), st.floats(), st.booleans()), max_size=4).map(tuple),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(lambda told: np.array(told, np.int64)),
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, 2.0),
        (2.5, 2.5),
        ("2", 2.0),
        (" 2.5e-3 ", 0.0025),
        ("Some(1)", 1.0),
        ("-3", -3.0),
        (".5", 0.5),
        (True, None),
        ("", None),
        ("18.25ms", None),
        ("0x10", None),
        ("1_000", None),
        ("\u0661", None),
        ((1,), None),
        (None, None),
    ],
)
def test_numbers(value: Value | None, expected: float | None) -> None:
    assert number(value) == expected


@pytest.mark.parametrize("value", ["NaN", "inf", "-Infinity", float("nan")])
def test_numbers_that_are_none_are_not_finite(value: Value) -> None:
    told = number(value)
    assert told is not None
    assert not math.isfinite(told)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("18.25ms", 0.01825),
        ("1.2s", 1.2),
        ("123.4µs", 0.0001234),
        ("123.4μs", 0.0001234),  # the other micro sign
        ("900ns", 9e-7),
        ("Some(3ms)", 0.003),
        (2, 2.0),
        ("2", 2.0),
        ("-3ms", None),
        ("3 ms", None),
        ("3m", None),
    ],
)
def test_durations(value: Value, expected: float | None) -> None:
    assert seconds(value) == (None if expected is None else pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize("value", [None, "", " ", -1, -1.0, "-1", "None", "null"])
def test_not_measured(value: Value | None) -> None:
    assert is_absent(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(64, 64), (64.0, 64), ("64", 64), (64.5, None), (-1, None), (float("inf"), None), (True, None), (2**60, None)],
)
def test_counts(value: Value, expected: int | None) -> None:
    assert count(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (("stop", "length"), ("stop", "length")),
        ('["stop"]', ("stop",)),
        ("stop", ("stop",)),
        ("[", ()),
        ("[" * 5000, ()),
        ("[1, null]", ()),
        (7, ()),
        (None, ()),
    ],
)
def test_lists_of_words(value: Value | None, expected: tuple[str, ...]) -> None:
    assert words(value) == expected


@given(ANYTHING)
def test_anything_is_read_or_refused(value: Value) -> None:
    told = count(value)
    assert told is None or 0 <= told <= 2**53
    assert len(text(value)) <= 128
    assert isinstance(words(value), tuple)
    array = integers(value)
    assert array is None or array.dtype == np.int64
    gate = Gate()
    latency = gate.latency({"a": value}, "a", 10.0)
    assert latency is None or 0 <= latency <= 10.1
    assert (latency is not None) + is_absent(value) + gate.refused.total() == 1
