"""Bursts in sampled counters: their sizes, durations and recoveries come out of the samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gpumon.detect.bursts import duration_s, find_bursts, rate_in, rates, recovery_s

PERIOD_S = 0.5


def sampled(
    plateau_s: float, fall_s: float, per_s: float, *, every_s: float, for_s: float, seed: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A counter of random events, sampled each half second: a plateau, then a straight fall, again and again."""
    rng = np.random.default_rng(seed)
    at_s = np.arange(0, for_s, 0.001)
    into_s = (at_s - 3.0 - rng.uniform(0, PERIOD_S)) % every_s
    rate = per_s * np.clip(1 - np.maximum(into_s - plateau_s, 0) / fall_s, 0, 1)
    totals = np.cumsum(rng.poisson(rate * 0.001), dtype=np.float64)
    return at_s[::500], totals[::500]


def moments(points: int) -> NDArray[np.float64]:
    """Times of samples from 0 on."""
    return np.linspace(0.0, (points - 1) * PERIOD_S, points)


@pytest.mark.parametrize(
    ("plateau_s", "fall_s", "per_s", "within_s"),
    [(0.8, 0.14, 154.0, 0.1), (3.2, 0.89, 240.0, 0.25), (3.2, 0.89, 3000.0, 0.12), (1.5, 0.5, 3000.0, 0.15)],
)
def test_durations_recoveries_and_means_of_recurring_bursts(
    plateau_s: float, fall_s: float, per_s: float, within_s: float
) -> None:
    every_s = 9.97  # so that bursts begin anywhere between two samples
    found = find_bursts(rates(*sampled(plateau_s, fall_s, per_s, every_s=every_s, for_s=125)), quiet=0.0, level=10.0)
    whole = [burst for burst in found if burst.is_over]
    assert len(whole) >= 12
    assert duration_s(whole) == pytest.approx(plateau_s, rel=0.08)
    assert recovery_s(whole) == pytest.approx(fall_s, abs=within_s)
    assert rate_in(whole) == pytest.approx(per_s, rel=0.06)
    assert whole[1].start_s - whole[0].start_s == pytest.approx(every_s, abs=0.3)


def test_a_fall_within_a_sample_reads_as_a_quarter_of_it() -> None:
    totals = np.array([0, 0, 0, 100, 200, 300, 300, 300.0])
    (burst,) = find_bursts(rates(moments(8), totals), 0.0, 10.0)
    assert burst.is_over
    assert burst.start_s == 1.0
    assert burst.end_s == 2.5
    assert burst.size == 300
    assert recovery_s([burst]) == PERIOD_S / 4
    assert duration_s([burst]) == pytest.approx(1.5 - PERIOD_S / 8)
    assert rate_in([burst]) == pytest.approx(200.0)


def test_large_bursts_count_for_more() -> None:
    totals = np.array([0, 0, 10, 10, 10, 510, 1010, 1010.0])
    small, large = find_bursts(rates(moments(8), totals), 0.0, 1.0)
    assert duration_s([small, large]) == pytest.approx((10 * 0.5 + 1000 * 1.0) / 1010 - PERIOD_S / 8)


def test_what_is_quiet_is_not_counted_in_a_burst() -> None:
    totals = np.array([0, 5, 10, 115, 220, 225, 230.0])
    (burst,) = find_bursts(rates(moments(7), totals), quiet=10.0, level=20.0)
    assert burst.size == pytest.approx(200)
    assert burst.peak == pytest.approx(200)


def test_a_burst_that_goes_on_has_no_recovery() -> None:
    totals = np.array([0, 0, 100, 200.0])
    (burst,) = find_bursts(rates(moments(4), totals), 0.0, 10.0)
    assert not burst.is_over
    assert burst.fall_var == 0.0
    assert recovery_s([]) is None
    assert duration_s([burst]) == pytest.approx(1.0)


def test_a_counter_that_began_anew_is_no_burst() -> None:
    seen = rates(np.array([0.0, 0.5, 1.0, 1.5]), np.array([1e6, 1e6, 3.0, 4.0]))
    assert seen.ends_s.tolist() == [0.5, 1.5]
    assert find_bursts(seen, 0.0, 10.0) == []


@pytest.mark.parametrize("points", [0, 1])
def test_nothing_comes_of_nothing(points: int) -> None:
    assert find_bursts(rates(np.zeros(points), np.zeros(points)), 0.0, 1.0) == []


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=60), st.floats(0.01, 1e3))
def test_figures_are_finite_and_nothing_is_lost(amounts: list[int], level: float) -> None:
    totals = np.cumsum(np.array(amounts, dtype=np.float64), dtype=np.float64)
    seen = rates(moments(len(totals)), totals)
    bursts = find_bursts(seen, 0.0, level)
    for burst in bursts:
        assert np.isfinite(burst[:-1]).all()
        assert burst.start_s < burst.end_s
        assert burst.lasted_s > 0
        assert rate_in([burst]) > 0
        assert duration_s([burst]) >= 0
    high = seen.per_s > level
    assert sum(burst.size for burst in bursts) == pytest.approx(float((seen.per_s * seen.seconds)[high].sum()))
