"""Judging windows: what is a shift, when it ends, and what is none, one window after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpumon.detect.shifts import DRIFT, GONE_S, Shift, Track, Window

BIN_S = 5.0


class Judge:
    """Feeds windows of five seconds, each done as soon as it is over."""

    def __init__(self, *, fewest: int = 2, settled_s: float = 900.0) -> None:
        self.track = Track(rise=1.15, deviations=3.0, least=12, fewest=fewest, may_rise=True)
        self.at_s = 1000.0
        self.ended: list[Shift] = []
        self._settled_s = settled_s

    def is_open(self) -> bool:
        return self.track.shift is not None

    def feed(self, values_s: Sequence[float], *, load: float = 2.0, thick: float = 1.0) -> list[float]:
        """Since when a shift has been open, of every window after which one was."""
        found = []
        for value_s in values_s:
            window = Window(self.at_s, value_s, value_s * thick, load)
            self.at_s += BIN_S
            ended = self.track.judge([window], [], self.at_s, settled_s=self._settled_s)
            self.ended += [ended] if ended is not None else []
            found += [self.track.shift.since_s] if self.track.shift is not None else []
        return found


QUIET = [0.045, 0.046, 0.044] * 20


def test_a_level_that_jumps_is_a_shift_from_its_first_window_on() -> None:
    judge = Judge()
    assert judge.feed(QUIET) == []
    assert judge.feed([0.255, 0.250]) == [1300.0]
    assert judge.track.shift is not None
    assert judge.track.shift.before_s == pytest.approx(0.045)
    assert judge.track.shift.now_s == pytest.approx(0.2525)


@pytest.mark.parametrize(("value_s", "windows"), [(0.2, 2), (0.075, 2), (0.068, 4), (0.06, 8), (0.053, 8)])
def test_the_smaller_the_jump_the_longer_it_must_last(value_s: float, windows: int) -> None:
    judge = Judge()
    judge.feed(QUIET)
    assert judge.feed([value_s] * (windows - 1)) == []
    assert judge.feed([value_s])


def test_a_signal_of_few_requests_takes_a_window_more() -> None:
    judge = Judge(fewest=3)
    judge.feed(QUIET)
    assert judge.feed([0.2] * 2) == []
    assert judge.feed([0.2])


def test_a_rise_within_the_spread_is_none() -> None:
    judge = Judge()
    judge.feed([0.03, 0.06] * 30)
    assert judge.feed([0.07] * 50) == []


def test_less_than_fifteen_per_cent_is_none() -> None:
    judge = Judge()
    judge.feed([0.045] * 60)
    assert judge.feed([0.051] * 50) == []


def test_three_windows_each_over_the_one_before_are_a_shift_at_once() -> None:
    judge = Judge()
    judge.feed(QUIET)
    assert judge.feed([0.052, 0.061, 0.072]) == [1300.0]


def test_a_rise_to_where_it_has_been_before_is_none() -> None:
    judge = Judge()
    judge.feed([*QUIET, 0.1, *QUIET])
    assert judge.feed([0.052, 0.061, 0.072]) == []


def test_a_quantile_moves_only_with_twice_as_many_observations() -> None:
    judge = Judge()
    judge.feed(QUIET)
    assert judge.feed([0.3] * 20, thick=0.045 / 0.3) == []


def test_bursts_that_come_now_and_then_are_known() -> None:
    judge = Judge()
    for _ in range(5):
        assert judge.feed([0.045] * 11 + [0.2] * 2 + [0.045] * 11) == []
    assert judge.feed([0.2] * 5) == []
    assert judge.feed([0.2] * 3)


def test_more_load_than_before_has_to_last_three_times_as_long() -> None:
    judge = Judge()
    judge.feed(QUIET)
    assert judge.feed([0.2] * 5, load=6.0) == []
    assert judge.feed([0.2], load=6.0)


def test_a_slow_wave_is_none() -> None:
    judge = Judge()
    up = [0.045 * 1.004**i for i in range(150)]  # to 1.8 times in twelve minutes
    assert judge.feed([*([0.045] * 60), *up, *reversed(up)]) == []


def test_a_level_that_crept_up_becomes_normal() -> None:
    judge = Judge()
    assert judge.feed([*[0.045] * 60, *(0.045 * 1.005**i for i in range(100)), *[0.074] * (2 * DRIFT)]) == []
    assert judge.feed([0.3, 0.3])
    assert judge.track.shift is not None
    assert judge.track.shift.before_s == pytest.approx(0.07, rel=0.1)


def test_a_shift_ends_when_two_windows_are_back() -> None:
    judge = Judge()
    judge.feed([*QUIET, *[0.255] * 6])
    assert judge.feed([0.046])
    assert judge.feed([0.255])
    judge.feed([0.046])
    assert judge.feed([0.045]) == []
    (shift,) = judge.ended
    assert shift.since_s == 1300.0


def test_the_windows_of_a_shift_are_nothing_to_compare_with() -> None:
    judge = Judge()
    judge.feed([*QUIET, *[0.255] * 60, *QUIET])
    assert len(judge.ended) == 1
    assert judge.feed([0.255, 0.250])
    assert judge.track.shift is not None
    assert judge.track.shift.before_s == pytest.approx(0.045)


def test_a_level_that_lasts_is_the_new_normal() -> None:
    judge = Judge(settled_s=300.0)
    judge.feed([*QUIET, *[0.255] * 100])
    assert len(judge.ended) == 1
    assert not judge.is_open()
    assert judge.feed([0.6] * 3)
    assert judge.track.shift is not None
    assert judge.track.shift.before_s == pytest.approx(0.255)


def test_a_shift_without_windows_ends() -> None:
    judge = Judge()
    judge.feed([*QUIET, *[0.255] * 6])
    assert judge.track.judge([], [], judge.at_s + GONE_S - 10.0, settled_s=900.0) is None
    assert judge.track.judge([], [], judge.at_s + GONE_S, settled_s=900.0) is not None
    assert judge.track.shift is None


def test_windows_that_may_still_change_are_looked_at_too() -> None:
    judge = Judge()
    judge.feed(QUIET)
    young = [Window(judge.at_s + i * BIN_S, 0.255, 0.255, 2.0) for i in range(2)]
    judge.track.judge([], young[:1], judge.at_s, settled_s=900.0)
    assert not judge.is_open()
    judge.track.judge([], young, judge.at_s, settled_s=900.0)
    assert judge.is_open()
    back = [window._replace(value_s=0.045) for window in young]
    assert judge.track.judge([], back, judge.at_s, settled_s=900.0) is not None
    assert not judge.is_open()


def test_too_few_windows_are_nothing_to_compare_with() -> None:
    judge = Judge()
    judge.feed(QUIET[:11])
    assert judge.feed([0.5]) == []
    assert Judge().feed([]) == []


def test_memory_is_bounded() -> None:
    judge = Judge()
    judge.feed([0.045, 0.05, 0.055] * 500)
    assert len(judge.track._history) == 360
    judge = Judge(settled_s=1e9)
    judge.feed([*QUIET, *[0.5] * 1000])
    assert judge.track.shift is not None
    assert len(judge.track.shift.done) == 180
