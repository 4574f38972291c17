"""``gpumon.record.comparison``."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.model import Metric
from gpumon.record.comparison import Change, Period, Subject, compare, periods
from gpumon.record.flight_reader import Series
from tests.record.flights import GPU

WHEN = periods(100.0, 130.0, 150.0)


def series(metric: Metric, points: dict[float, float], labels: tuple[str, ...] = GPU) -> Series:
    """By time and value."""
    return Series(
        metric.name,
        metric.kind.value,
        metric.unit.value,
        tuple(zip(metric.labels, labels, strict=True)),
        np.array(list(points)),
        np.array(list(points.values())),
    )


def seconds(before: float, during: float, after: float) -> dict[float, float]:
    """A value each second, from 60 to 150."""
    return {float(at): before if at < 100 else during if at <= 130 else after for at in range(60, 151)}


def one(metric: Metric, points: dict[float, float]) -> Change:
    (change,) = compare([series(metric, points)], WHEN)
    return change


def test_the_times_before_during_and_after() -> None:
    before, during, after = WHEN
    assert before == Period(-200.0, math.nextafter(100.0, 0.0))
    assert during == Period(100.0, 130.0)
    assert after == Period(math.nextafter(130.0, 200.0), 150.0)


def test_an_incident_that_is_open_lasts_to_the_end_and_has_no_after() -> None:
    assert periods(100.0, None, 150.0)[1:] == (Period(100.0, 150.0), None)


def test_a_recording_that_ended_before_the_effect_did() -> None:
    assert periods(100.0, 180.0, 150.0)[1:] == (Period(100.0, 150.0), None)
    assert periods(100.0, None, 90.0)[1:] == (Period(100.0, 100.0), None)


def test_gauges_are_compared_by_their_means() -> None:
    change = one(catalogue.GPU_SM_ACTIVE, seconds(0.5, 0.25, 0.4))
    assert (change.before, change.during, change.is_rate) == (0.5, 0.25, False)
    assert change.after == pytest.approx(0.4)
    assert change.change == -0.5
    assert change.score == -50.0


def test_counters_are_compared_by_their_rates() -> None:
    total, points = 1e13, {}
    for at in range(60, 151):
        points[float(at)] = total
        total += 500.0 if at + 1 < 100 or at + 1 > 130 else 250.0
    change = one(catalogue.GPU_ENERGY, points)
    assert (change.before, change.during, change.after, change.is_rate) == (500.0, 250.0, 500.0, True)


def test_a_counter_that_began_anew_has_no_negative_rate() -> None:
    points = {float(at): 10.0 * at for at in range(60, 100)} | {float(at): 10.0 * (at - 99) for at in range(100, 151)}
    change = one(catalogue.GPU_PCIE_REPLAYS, points)
    assert (change.before, change.during, change.after) == (10.0, 10.0, 10.0)


def test_a_slow_counter_counts_the_growth_that_ends_in_a_period() -> None:
    change = one(catalogue.GPU_PCIE_REPLAYS, {96.0: 0.0, 101.0: 50.0, 131.0: 50.0, 136.0: 60.0})
    assert (change.before, change.during) == (None, 10.0)
    assert change.after == pytest.approx(10.0 / 35.0)


def test_noise_counts_for_less_than_a_move_out_of_it() -> None:
    quiet = series(catalogue.GPU_SM_ACTIVE, seconds(0.5, 0.6, 0.5))
    noisy = series(
        catalogue.GPU_DRAM_ACTIVE,
        {at: value + 0.2 * (-1) ** int(at) for at, value in seconds(0.5, 0.6, 0.5).items()},
    )
    first, second = compare([noisy, quiet], WHEN)
    assert (first.name, second.name) == (catalogue.GPU_SM_ACTIVE.name, catalogue.GPU_DRAM_ACTIVE.name)
    assert first.score == pytest.approx(0.1 / 0.006)
    assert second.score is not None
    assert abs(second.score) < 1.0


def test_an_outlier_before_does_not_hide_a_move() -> None:
    points = seconds(70.0, 90.0, 70.0) | {80.0: 1000.0}
    change = one(catalogue.GPU_TEMPERATURE_MARGIN, points)
    assert change.score == pytest.approx(20.0 / 0.9)


def test_what_stood_still_at_nought_and_moves_is_at_the_top_with_a_bounded_score() -> None:
    moved = series(catalogue.GPU_ROW_REMAP_PENDING, seconds(0.0, 1.0, 1.0))
    still = series(catalogue.GPU_ROW_REMAP_FAILED, seconds(0.0, 0.0, 0.0))
    first, second = compare([still, moved], WHEN)
    assert (first.name, first.score, first.change) == (catalogue.GPU_ROW_REMAP_PENDING.name, 20.0, None)
    assert (second.score, second.change) == (0.0, None)


def test_next_to_nothing_is_no_move() -> None:
    """Pressure of a cgroup from 0 to 0.02 % is behind a clock that fell by a third."""
    pressure = series(catalogue.GPU_DRAM_ACTIVE, seconds(0.0, 0.0002, 0.0))
    clock = series(catalogue.GPU_CLOCK, seconds(1980e6, 1300e6, 1980e6), (*GPU, "sm"))
    first, second = compare([pressure, clock], WHEN)
    assert first.name == catalogue.GPU_CLOCK.name
    assert second.score is not None
    assert 0.0 < second.score < 0.1


def test_what_moved_of_the_incidents_own_gpu_or_process_is_first() -> None:
    other = series(catalogue.GPU_POWER, seconds(100.0, 500.0, 100.0), ("4", "GPU-4", "average"))
    own = series(catalogue.GPU_POWER, seconds(500.0, 300.0, 500.0), (*GPU, "average"))
    still = series(catalogue.GPU_SM_ACTIVE, seconds(0.5, 0.5, 0.5))
    assert compare([other, own, still], WHEN)[0].labels == other.labels
    for subject in (Subject(uuid=GPU[1]), Subject(gpu=GPU[0])):
        found = compare([other, own, still], WHEN, subject)
        assert [change.labels for change in found] == [own.labels, other.labels, still.labels]


def test_the_extremes_during_are_told_of_gauges_alone() -> None:
    change = one(catalogue.GPU_SM_ACTIVE, seconds(0.5, 0.25, 0.4) | {110.0: 0.1, 111.0: 0.9})
    assert (change.least, change.most) == (0.1, 0.9)
    assert one(catalogue.GPU_ENERGY, seconds(0.0, 5.0, 9.0)).most is None


def test_what_came_or_went_is_last_and_what_was_never_there_is_not() -> None:
    came = series(catalogue.GPU_SM_ACTIVE, {110.0: 0.5})
    went = series(catalogue.GPU_DRAM_ACTIVE, {90.0: 0.5})
    later = series(catalogue.GPU_TENSOR_ACTIVE, {140.0: 0.5})
    stayed = series(catalogue.GPU_FP16_ACTIVE, seconds(0.5, 0.5, 0.5))
    first, second, third = compare([came, went, later, stayed], WHEN)
    assert first.name == catalogue.GPU_FP16_ACTIVE.name
    assert {second.name: (second.before, second.during), third.name: (third.before, third.during)} == {
        catalogue.GPU_SM_ACTIVE.name: (None, 0.5),
        catalogue.GPU_DRAM_ACTIVE.name: (0.5, None),
    }
    assert (second.score, third.change) == (None, None)


def test_the_incident_itself_and_moments_in_time_are_no_signals() -> None:
    active = series(catalogue.INCIDENT_ACTIVE, seconds(0.0, 1.0, 0.0), ("xid", *GPU))
    moment = series(catalogue.GPU_LAST_SAMPLE, seconds(1e9, 2e9, 3e9))
    assert compare([active, moment], WHEN) == []


POINTS = st.dictionaries(
    st.floats(0.0, 200.0), st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12
)


@given(POINTS, st.sampled_from([catalogue.GPU_SM_ACTIVE, catalogue.GPU_ENERGY]))
def test_figures_are_finite_or_not_there(points: dict[float, float], metric: Metric) -> None:
    for change in compare([series(metric, dict(sorted(points.items())))], WHEN):
        for figure in (change.before, change.during, change.after, change.change, change.score):
            assert figure is None or math.isfinite(figure)
