"""Columns of one value a second: every second once, levels as long as they are believed, the last ten minutes."""

from __future__ import annotations

import functools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.explain.second_track import SECONDS, SecondTrack

NAN = math.nan
RATE, LEVEL = 0, 1


class Track:
    """A rate and a level."""

    def __init__(self, at_s: float = 100.0, hold_s: float = 2.5) -> None:
        self.track = SecondTrack(np.array([False, True]), at_s)
        self.hold_s = hold_s

    def rate(self, value: float, since_s: float, at_s: float, now_s: float | None = None) -> None:
        self._fill([value, NAN], [since_s, NAN], [at_s, NAN], at_s if now_s is None else now_s)

    def level(self, value: float, at_s: float, now_s: float | None = None) -> None:
        self._fill([NAN, value], [NAN, at_s], [NAN, at_s], at_s if now_s is None else now_s)

    def nothing(self, now_s: float) -> None:
        self._fill([NAN] * 2, [NAN] * 2, [NAN] * 2, now_s)

    def _fill(self, values: list[float], since: list[float], at: list[float], now_s: float) -> None:
        hold_s = np.full(2, self.hold_s)
        self.track.fill(np.array(values), np.array(since), np.array(at), hold_s, now_s)

    def known(self, column: int) -> dict[int, float]:
        seconds, values = self.track.series()
        return {int(s): float(v) for s, v in zip(seconds, values[column], strict=True) if v == v}


def test_a_rate_fills_the_seconds_whose_middle_it_covers() -> None:
    track = Track()
    track.rate(1.0, 99.9, 102.2)
    track.rate(2.0, 102.2, 103.6)
    track.rate(3.0, 103.6, 109.0)
    assert track.known(RATE) == {100: 1.0, 101: 1.0, 102: 2.0, 103: 2.0, **dict.fromkeys(range(104, 109), 3.0)}


@given(st.lists(st.floats(0.05, 7.0), min_size=1, max_size=60), st.floats(0.0, 0.999))
def test_successive_rates_fill_every_second_once_and_keep_the_total(steps: list[float], begin: float) -> None:
    track, at_s = Track(100.0), 100.0 + begin
    for number, step in enumerate(steps):
        track.rate(float(number), at_s, at_s + step)
        at_s += step
    filled = track.known(RATE)
    middles = [second for second in range(100, int(at_s) + 1) if 100.0 + begin < second + 0.5 <= at_s]
    assert sorted(filled) == [second for second in middles if second > int(at_s) - SECONDS]


def test_a_second_that_is_filled_stays_as_it_is() -> None:
    track = Track()
    track.rate(1.0, 100.0, 103.0)
    track.rate(9.0, 101.0, 104.0, now_s=104.0)
    assert track.known(RATE) == {100: 1.0, 101: 1.0, 102: 1.0, 103: 9.0}


def test_a_level_holds_until_the_next_but_not_for_longer_than_it_is_believed() -> None:
    track = Track(hold_s=5.0)
    track.level(1.0, 100.3)
    track.nothing(101.3)
    track.nothing(102.3)
    track.level(2.0, 103.3)
    for now in range(104, 115):
        track.nothing(now + 0.3)
    # Whole seconds up to 108.3 alone.
    assert track.known(LEVEL) == {100: 1.0, 101: 1.0, 102: 1.0, **dict.fromkeys(range(103, 108), 2.0)}


def test_a_level_of_this_second_is_not_forestalled_by_the_one_before() -> None:
    track = Track(hold_s=5.0)
    track.level(1.0, 100.9, now_s=101.0)
    track.nothing(102.0)
    track.nothing(103.0)
    track.level(2.0, 102.9, now_s=104.0)
    assert track.known(LEVEL) == {100: 1.0, 101: 1.0, 102: 2.0}
    track.level(7.0, 102.95, now_s=105.0)
    assert track.known(LEVEL)[102] == 2.0, "one a second"
    track.nothing(106.0)
    assert track.known(LEVEL)[104] == 7.0, "the newest goes on"
    assert 105 not in track.known(LEVEL)


def test_levels_missed_between_two_late_steps_leave_a_hole() -> None:
    track = Track(hold_s=2.5)
    track.level(1.0, 100.0)
    track.level(2.0, 110.0)
    assert track.known(LEVEL) == {100: 1.0, 101: 1.0, 110: 2.0}


def test_nothing_is_filled_before_the_beginning_nor_kept_beyond_ten_minutes() -> None:
    track = Track(100.0)
    track.rate(1.0, 50.0, 101.0)
    assert track.known(RATE) == {100: 1.0}
    track.rate(2.0, 101.0, 100.0 + SECONDS + 50)
    seconds, values = track.track.series()
    assert len(seconds) == SECONDS == values.shape[1]
    assert (np.diff(seconds) == 1).all()
    assert seconds[-1] == 100 + SECONDS + 50
    assert sorted(track.known(RATE)) == list(range(151, 100 + SECONDS + 50))


def test_a_jump_of_hours_leaves_nothing_of_before() -> None:
    track = Track(100.0)
    track.rate(1.0, 100.0, 105.0)
    track.level(3.0, 105.0)
    track.nothing(90_000.0)
    assert (track.known(RATE), track.known(LEVEL)) == ({}, {})
    track.rate(4.0, 90_000.0, 90_001.0)
    assert track.known(RATE) == {90_000: 4.0}


def test_means_are_over_the_known_seconds_that_are_touched() -> None:
    track = Track(hold_s=1.0)
    for second in range(100, 110):
        track.rate(float(second), second, second + 1)
    track.level(5.0, 109.0, now_s=110.0)
    means = track.track.means(102.9, 104.1)
    assert means.dtype == np.float32
    np.testing.assert_array_equal(means, np.array([103.0, np.nan]))
    np.testing.assert_array_equal(track.track.means(108.5, 1e6), np.array([108.5, 5.0]))
    np.testing.assert_array_equal(track.track.means(10.0, 90.0), np.array([np.nan, np.nan]))
    np.testing.assert_array_equal(track.track.means(105.0, 104.0), np.array([np.nan, np.nan]))


@functools.cache
def waves(every: int) -> Track:
    """Known in one second of so many. Only looked at."""
    track = Track(0.0)
    for second in range(0, 1300, every):
        track.rate(math.sin(second), second, second + 1)
    return track


@given(st.integers(1, 3), st.integers(0, 1400), st.integers(0, 700))
def test_means_are_those_of_the_series(every: int, start: int, length: int) -> None:
    track = waves(every)
    seconds, values = track.track.series()
    inside = (seconds >= start) & (seconds <= start + length)
    known: NDArray[np.float32] = values[RATE][inside]
    known = known[~np.isnan(known)]
    mean = track.track.means(start, start + length)[RATE]
    assert np.isnan(mean) if not len(known) else abs(mean - known.mean(dtype=float)) < 1e-6


def test_series_are_copies() -> None:
    track = Track()
    track.rate(1.0, 100.0, 101.0)
    track.track.series()[1][:] = 7.0
    assert track.known(RATE) == {100: 1.0}
