"""Figures, moments and durations for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.model import Unit
from gpumon.shown import percent, shown, shown_change, shown_clock, shown_duration, shown_seconds, shown_time

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "unit", "is_rate", "text"),
    [
        (None, Unit.BYTES, False, "-"),
        (1_980e6, Unit.HERTZ, False, "1,980 MHz"),
        (1_185e6, Unit.HERTZ, False, "1,185 MHz"),
        (84.0, Unit.CELSIUS, False, "84 °C"),
        (312.4e6, Unit.BYTES, True, "312 MB/s"),
        (151_500_000_000.0, Unit.BYTES, False, "152 GB"),
        (0.0, Unit.BYTES, True, "0 B/s"),
        (0.0072, Unit.SECONDS, False, "7.2 ms"),
        (12.0, Unit.SECONDS, False, "12 s"),
        (3e-9, Unit.SECONDS, False, "0.003 µs"),
        (0.778, Unit.SECONDS, True, "77.8 %"),
        (0.123, Unit.RATIO, False, "12.3 %"),
        (407.1, Unit.JOULES, True, "407 W"),
        (5.2e7, Unit.JOULES, False, "52 MJ"),
        (512.345, Unit.WATTS, False, "512 W"),
        (97.6, Unit.NONE, True, "97.6/s"),
        (-3.0, Unit.NONE, False, "-3"),
        (131_072.0, Unit.NONE, False, "131,072"),
        (9_999.0, Unit.NONE, False, "9,999"),
        (1_310_720.0, Unit.NONE, False, "1.31 M"),
        (1e300, Unit.NONE, False, "1e+291 G"),
        (1.8e9, Unit.TIMESTAMP, False, "2027-01-15 08:00:00 UTC"),
        (2.5, "furlongs", False, "2.5"),
    ],
)
def test_values_for_people(value: float | None, unit: str, is_rate: bool, text: str) -> None:
    assert shown(value, unit, is_rate=is_rate) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9996, Unit.SECONDS, "1 s"),
        (0.9994, Unit.SECONDS, "999 ms"),
        (999.7e6, Unit.BYTES, "1 GB"),
        (999_700.0, Unit.NONE, "1 M"),
        (-0.9996, Unit.SECONDS, "-1 s"),
    ],
)
def test_what_rounds_up_to_a_larger_unit_is_told_in_it(value: float, unit: Unit, text: str) -> None:
    assert shown(value, unit) == text


@given(FINITE, st.sampled_from(list(Unit)), st.booleans())
def test_every_value_can_be_shown(value: float, unit: Unit, is_rate: bool) -> None:
    assert 0 < len(shown(value, unit, is_rate=is_rate)) < 330


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.8, "0.8 s"),
        (42.4, "42 s"),
        (200.0, "3 min 20 s"),
        (1800.0, "30 min"),
        (7500.0, "2 h 5 min"),
        (7200.0, "2 h"),
        (7260.0, "2 h 1 min"),
        (9.999, "10 s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert shown_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0072, "7.2 ms"), (42.12, "42.1 s"), (99.9, "99.9 s"), (108.4, "108 s"), (310.0, "5 min 10 s")],
)
def test_seconds_have_three_digits_until_they_are_many(seconds: float | None, text: str) -> None:
    assert shown_seconds(seconds) == text


@given(FINITE)
def test_every_duration_can_be_shown(seconds: float) -> None:
    assert shown_seconds(seconds)
    assert shown_duration(seconds)


def test_a_time_out_of_the_calendar_is_a_number() -> None:
    assert shown_time(1e18) == "1000000000000000000"
    assert shown_time(0.0) == "1970-01-01 00:00:00 UTC"
    assert shown_clock(1e300) == "1e+300"
    assert shown_clock(61.0) == "00:01:01"


@pytest.mark.parametrize(
    ("share", "told"), [(0.0, "0 %"), (0.001, "<1 %"), (0.005, "<1 %"), (0.006, "1 %"), (0.93, "93 %"), (1.0, "100 %")]
)
def test_shares_are_percent(share: float, told: str) -> None:
    assert percent(share) == told


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0, "0 %"),
        (-0.004, "0 %"),
        (-1.0, "-100 %"),
        (4.67, "+467 %"),
        (8.99, "+899 %"),
        (9.0, "x 10"),
        (57.3, "x 58.3"),
        (1653.27, "x 1,650"),
        (1e9, "x 1 G"),
        (float("inf"), "x inf G"),
    ],
)
def test_a_change_of_ten_times_and_more_is_told_in_times(ratio: float, text: str) -> None:
    assert shown_change(ratio) == text
