from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.sim.story import STORY_S, Event, Kind, events
from gpumon.sim.timeline import Moment
from gpumon.sim.workload import IDLE_CLOCK_MHZ, LIMIT_W, MAX_CLOCK_MHZ, REASON_POWER_CAP, REASON_THERMAL, Rate
from tests.sim.nodes import SEED, world

GPUS = st.integers(0, 7)
TIMES = st.floats(-900, 40_000)
RATIOS = (Rate.BUSY, Rate.SM, Rate.OCCUPANCY, Rate.TENSOR, Rate.DRAM, Rate.CAPPED, Rate.THROTTLED)


def at(gpu: int, story_s: float) -> Moment:
    return world().timelines[gpu].at(story_s)


@given(GPUS, TIMES, st.floats(0, 700), st.sampled_from(Rate))
def test_totals_never_fall(gpu: int, story_s: float, step_s: float, rate: Rate) -> None:
    before, after = at(gpu, story_s).total(rate), at(gpu, story_s + step_s).total(rate)
    # Within a few roundings: in so short a time nothing moves.
    assert after >= before - 1e-12 * world().timelines[gpu].wholes[rate]


@pytest.mark.parametrize(("gpu", "rate"), [(0, Rate.CAPPED), (3, Rate.THROTTLED), (7, Rate.PCIE_TX), (7, Rate.BUSY)])
def test_a_counter_at_rest_stands_still_over_years_of_stories(gpu: int, rate: Rate) -> None:
    quiet = {0: (STORY_S - 1e-4, STORY_S), 3: (95.0, STORY_S + 55), 7: (STORY_S - 20, STORY_S + 5)}[gpu]
    for cycle in range(0, 500_000, 997):
        first, last = (at(gpu, cycle * STORY_S + moment) for moment in quiet)
        if gpu == 0 and first.reasons | last.reasons:
            pytest.fail("the story begins or ends at the power cap: choose another moment")
        assert last.total(rate) == first.total(rate)


@settings(max_examples=60)
@given(GPUS, st.floats(-300, 3000), st.floats(0.05, 3.0))
def test_totals_are_the_integrals_of_the_gauges(gpu: int, story_s: float, length_s: float) -> None:
    steps = 2000
    step_s = length_s / steps
    moments = [at(gpu, story_s + (i + 0.5) * step_s) for i in range(steps)]
    first, last = at(gpu, story_s), at(gpu, story_s + length_s)
    for rate in Rate:
        summed = sum(moment.rate(rate) for moment in moments) * step_s
        # The levels jump between segments: the sum is off by up to half a step at each jump.
        jump = max(moment.rate(rate) for moment in moments) * step_s * 12
        assert last.total(rate) - first.total(rate) == pytest.approx(summed, rel=1e-3, abs=jump + 1e-9)


@given(GPUS, TIMES)
def test_every_gauge_is_possible(gpu: int, story_s: float) -> None:
    moment = at(gpu, story_s)
    for rate in RATIOS:
        assert 0.0 <= moment.rate(rate) <= 1.0
    assert 68 <= moment.rate(Rate.POWER) <= LIMIT_W
    assert 28 <= moment.temperature_c < 89
    assert IDLE_CLOCK_MHZ <= moment.clock_mhz <= MAX_CLOCK_MHZ
    assert moment.clock_mhz % 15 == 0
    assert 0 <= moment.rate(Rate.NVLINK) <= 478e9
    assert 0 <= moment.rate(Rate.PCIE_RX) <= 63e9


@given(GPUS, TIMES)
def test_temperature_has_no_step(gpu: int, story_s: float) -> None:
    assert abs(at(gpu, story_s + 0.01).temperature_c - at(gpu, story_s).temperature_c) < 0.1


def test_noise_differs_in_every_repetition_while_whole_stories_add_up_alike() -> None:
    first = [at(2, 20 + i / 10).rate(Rate.SM) for i in range(50)]
    second = [at(2, STORY_S + 20 + i / 10).rate(Rate.SM) for i in range(50)]
    assert first != second
    energy = [at(2, cycle * STORY_S).total(Rate.POWER) for cycle in range(4)]
    assert energy[1] - energy[0] == pytest.approx(energy[3] - energy[2], rel=1e-12)


def test_power_follows_activity() -> None:
    idle, busy = at(7, 160.0), at(7, 90.0)
    assert idle.rate(Rate.SM) == 0.0
    assert idle.rate(Rate.POWER) < 80
    assert busy.rate(Rate.POWER) > 380


def _mean(gpu: int, rate: Rate, start_s: float, end_s: float) -> float:
    return (at(gpu, end_s).total(rate) - at(gpu, start_s).total(rate)) / (end_s - start_s)


@pytest.mark.parametrize("cycle", [0, 3])
def test_gpu_3_is_throttled_by_heat_exactly_when_the_story_says(cycle: int) -> None:
    (row,) = events(Kind.THERMAL_THROTTLE)
    shift_s = cycle * STORY_S
    begun, over = row.start_s + shift_s, row.end_s + shift_s
    throttled = at(row.gpu, over).total(Rate.THROTTLED) - at(row.gpu, begun).total(Rate.THROTTLED)
    assert throttled == pytest.approx(30.0)
    assert _mean(row.gpu, Rate.THROTTLED, over, begun + STORY_S) == pytest.approx(0.0, abs=1e-9)
    for second in range(4, 30):
        moment = at(row.gpu, begun + second)
        assert moment.reasons & REASON_THERMAL
        assert 1380 <= moment.clock_mhz <= 1425
        assert moment.temperature_c >= 87.0
    assert at(row.gpu, begun - 0.01).clock_mhz >= 1965
    assert at(row.gpu, over + 0.01).clock_mhz >= 1965
    assert at(row.gpu, begun - 20).temperature_c < 60
    # Its tensor-parallel peers wait for it.
    assert _mean(1, Rate.NVLINK, begun + 5, over) < 0.85 * _mean(1, Rate.NVLINK, begun - 25, begun)


def test_only_gpu_0_reaches_the_power_cap_and_only_in_prefill() -> None:
    capped = [_mean(gpu, Rate.CAPPED, 0.0, STORY_S) for gpu in range(8)]
    assert 0.02 < capped[0] < 0.3
    assert capped[1:] == [0.0] * 7
    seen = 0
    for tenth in range(3000):
        moment = at(0, tenth / 10)
        if moment.reasons & REASON_POWER_CAP:
            seen += 1
            assert moment.rate(Rate.TENSOR) > 0.4
            assert moment.rate(Rate.POWER) > 690
            assert moment.clock_mhz < MAX_CLOCK_MHZ
    assert seen > 60


@pytest.mark.parametrize("row", events(Kind.BURST), ids=lambda row: f"{row.start_s:.0f}s")
def test_gpu_7_bursts_for_300_ms_out_of_idleness(row: Event) -> None:
    assert row.end_s - row.start_s == pytest.approx(0.3)
    assert _mean(row.gpu, Rate.SM, row.start_s, row.end_s) > 0.85
    assert _mean(row.gpu, Rate.BUSY, row.start_s - 5, row.start_s) == 0.0
    assert _mean(row.gpu, Rate.BUSY, row.end_s, row.end_s + 5) == 0.0


def test_prefill_and_decode_look_different() -> None:
    moments = [at(1, i / 20) for i in range(40 * 20)]
    prefill = [m for m in moments if m.rate(Rate.TENSOR) > 0.4]
    decode = [m for m in moments if m.rate(Rate.TENSOR) < 0.2]
    assert len(prefill) > 30
    assert len(decode) > 200
    assert all(m.rate(Rate.SM) > 0.8 and 0.3 < m.rate(Rate.DRAM) < 0.6 for m in prefill)
    assert all(0.4 < m.rate(Rate.SM) < 0.9 and 0.6 < m.rate(Rate.DRAM) < 1.0 for m in decode)


def test_page_faults_starve_the_gpus_of_that_server_and_no_other() -> None:
    row = events(Kind.PAGE_FAULTS)[0]
    for gpu in range(4):
        assert _mean(gpu, Rate.SM, row.start_s, row.end_s) < 0.4
    assert _mean(5, Rate.SM, row.start_s, row.end_s) > 0.5


def test_seed_changes_the_node() -> None:
    other = type(world().timelines[0])(SEED + 1, 0)
    assert [other.at(i).rate(Rate.SM) for i in range(20)] != [at(0, i).rate(Rate.SM) for i in range(20)]
