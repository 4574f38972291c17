from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.sim.boards import MODELS
from gpumon.sim.effects import GpuEffects
from gpumon.sim.physics import (
    REASON_HW_SLOWDOWN,
    REASON_HW_THERMAL,
    REASON_IDLE,
    REASON_POWER_BRAKE,
    REASON_POWER_CAP,
    REASON_THERMAL,
    TICK_S,
    Gpu,
    GpuTick,
    Moment,
    Work,
)
from gpumon.sim.state import Rate

DECODE = Work(busy=0.95, sm=0.6, tensor=0.1, dram=0.9, pcie_tx=2e7, pcie_rx=1e5, nvlink=2e10)
PREFILL = Work(busy=0.98, sm=0.96, tensor=0.7, dram=0.5, pcie_tx=1e6, pcie_rx=1e8, nvlink=1e11)
RATIOS = (Rate.BUSY, Rate.SM, Rate.OCCUPANCY, Rate.TENSOR, Rate.DRAM)
WORKS = st.builds(
    Work,
    busy=st.floats(0, 1),
    sm=st.floats(0, 0.99),
    tensor=st.floats(0, 0.9),
    dram=st.floats(0, 0.985),
    pcie_tx=st.floats(0, 6e10),
    pcie_rx=st.floats(0, 6e10),
    nvlink=st.floats(0, 4e11),
)
EFFECTS = st.builds(
    GpuEffects,
    heat=st.sampled_from([0.0, 0.3, 0.7]),
    cap_lost=st.sampled_from([0.0, 0.4]),
    brake=st.sampled_from([0.0, 0.5]),
    bandwidth_taken=st.sampled_from([0.0, 0.6]),
    time_taken=st.sampled_from([0.0, 0.4]),
    link_taken=st.sampled_from([0.0, 0.9]),
)


def ticks(work: Work, effects: GpuEffects, count: int, gpu: Gpu | None = None, model: str = "h200") -> list[GpuTick]:
    gpu = gpu or Gpu(MODELS[model], 1, 0)
    return [gpu.tick(number, effects, work) for number in range(count)]


def moment(tick: GpuTick, begun_s: float, number: int = 5) -> Moment:
    return Moment(tick, begun_s, (1, 0, number))


@settings(max_examples=40)
@given(st.lists(st.tuples(WORKS, EFFECTS), min_size=2, max_size=8), st.sampled_from(Rate))
def test_totals_are_the_integrals_of_the_gauges(rows: list[tuple[Work, GpuEffects]], rate: Rate) -> None:
    gpu = Gpu(MODELS["h200"], 1, 0)
    made = [gpu.tick(number, effects, work) for number, (work, effects) in enumerate(rows)]
    for number, (tick, after) in enumerate(pairwise(made)):
        steps = 200
        summed = math.fsum(moment(tick, (i + 0.5) * TICK_S / steps, number).rate(rate) for i in range(steps))
        grown = moment(after, 0.0, number + 1).total(rate) - moment(tick, 0.0, number).total(rate)
        rounding = 1e-14 * after.sums[rate]
        assert grown == pytest.approx(summed * TICK_S / steps, rel=1e-4, abs=1e-5 * tick.levels[rate] + rounding)


@settings(max_examples=60)
@given(WORKS, EFFECTS, st.sampled_from(Rate), st.lists(st.floats(0, TICK_S), min_size=2, max_size=20))
def test_totals_never_fall(work: Work, effects: GpuEffects, rate: Rate, begun: list[float]) -> None:
    tick, after = ticks(work, effects, 2)
    totals = [moment(tick, at_s).total(rate) for at_s in sorted(begun)]
    step = 1e-12 * abs(totals[0])  # in no time, a rounding
    assert all(later >= sooner - step for sooner, later in pairwise(totals))
    assert 0 <= totals[-1] <= moment(after, 0.0).total(rate)


@settings(max_examples=60)
@given(WORKS, EFFECTS, st.integers(1, 300), st.floats(0, TICK_S))
def test_every_gauge_is_possible(work: Work, effects: GpuEffects, count: int, begun_s: float) -> None:
    model = MODELS["h200"]
    now = moment(ticks(work, effects, count)[-1], begun_s, count)
    assert all(0 <= now.rate(rate) <= 1 for rate in RATIOS)
    assert 0.9 * model.idle_w <= now.rate(Rate.POWER) <= model.limit_w * (1 - effects.cap_lost) * 1.001
    assert 20 <= now.temperature_c <= model.slowdown_c + 2.5
    assert now.clock_mhz % model.clock_step_mhz == 0
    assert 0 < now.clock_mhz <= model.max_clock_mhz
    assert 0 <= now.rate(Rate.PCIE_RX) <= 2 * model.pcie_bytes_s
    assert all(math.isfinite(now.rate(rate)) and math.isfinite(now.total(rate)) for rate in Rate)


def test_the_noise_of_a_gauge_differs_from_tick_to_tick() -> None:
    tick = ticks(DECODE, GpuEffects(), 1)[0]
    values = {moment(tick, 0.03, number).rate(Rate.SM) for number in range(50)}
    assert len(values) == 50
    assert max(values) - min(values) > 0.02


@pytest.mark.parametrize("work", [DECODE, PREFILL], ids=["decode", "prefill"])
@pytest.mark.parametrize("model", MODELS)
def test_ordinary_work_is_never_throttled(model: str, work: Work) -> None:
    for tick in ticks(work, GpuEffects(), 600, model=model):
        assert tick.reasons == 0
        assert tick.clock_mhz == MODELS[model].max_clock_mhz
        assert tick.newer_c < MODELS[model].slowdown_c - 15


def test_power_follows_activity_and_heat_follows_power_with_a_lag() -> None:
    gpu = Gpu(MODELS["h200"], 1, 0)
    cool = ticks(Work(), GpuEffects(), 600, gpu)[-1]
    assert cool.levels[Rate.POWER] < 80
    assert cool.newer_c < 33
    warm = ticks(PREFILL, GpuEffects(), 600, gpu)
    assert warm[0].levels[Rate.POWER] > 550
    assert warm[50].newer_c - warm[0].older_c == pytest.approx(0.43 * (warm[-1].newer_c - warm[0].older_c), rel=0.1)
    assert warm[-1].newer_c == pytest.approx(52, abs=5)
    assert all(abs(tick.newer_c - tick.older_c) < 0.5 for tick in warm)


def test_an_idle_gpu_clocks_down_and_is_not_throttled() -> None:
    model, made = MODELS["h200"], ticks(Work(), GpuEffects(), 40)
    assert made[2].clock_mhz == model.max_clock_mhz
    assert made[-1].clock_mhz == model.idle_clock_mhz
    assert made[-1].reasons == REASON_IDLE
    assert not any(made[-1].levels[rate] for rate in (Rate.POWER_CAPPED, Rate.THERMAL, Rate.HW_THERMAL))


def test_degraded_cooling_heats_the_die_to_its_limit_and_lowered_clocks_hold_it_there() -> None:
    gpu = Gpu(MODELS["a100"], 1, 0)
    ticks(DECODE, GpuEffects(), 300, gpu)
    hot = ticks(DECODE, GpuEffects(heat=0.287), 600, gpu)
    first = next(number for number, tick in enumerate(hot) if tick.reasons)
    assert 50 < first < 150  # seconds, not at once
    assert hot[first].newer_c == pytest.approx(89, abs=0.6)
    clocks = [tick.clock_mhz for tick in hot[first:]]
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[5] > 1005 == clocks[25] == clocks[-1]
    assert all(89 <= tick.newer_c <= 91 for tick in hot[first + 50 :])
    assert gpu.pace == pytest.approx(0.713)
    cooled = ticks(DECODE, GpuEffects(), 100, gpu)
    assert [tick.reasons for tick in cooled[-80:]] == [0] * 80
    assert gpu.pace == 1.0


@pytest.mark.parametrize(
    ("strength", "reasons", "rate"),
    [
        (0.3, REASON_THERMAL, Rate.THERMAL),
        (0.6, REASON_HW_THERMAL | REASON_HW_SLOWDOWN, Rate.HW_THERMAL),
    ],
)
def test_a_strong_slowdown_for_heat_is_the_hardwares_own(strength: float, reasons: int, rate: Rate) -> None:
    last = ticks(DECODE, GpuEffects(heat=strength), 400)[-1]
    assert last.reasons == reasons
    assert [last.levels[each] for each in (Rate.THERMAL, Rate.HW_THERMAL)] == [
        float(each is rate) for each in (Rate.THERMAL, Rate.HW_THERMAL)
    ]


def test_a_lowered_power_cap_lowers_the_clock_until_the_work_fits() -> None:
    gpu = Gpu(MODELS["h200"], 1, 0)
    last = ticks(DECODE, GpuEffects(cap_lost=0.5), 100, gpu)[-1]
    assert last.reasons == REASON_POWER_CAP
    assert last.levels[Rate.POWER_CAPPED] == 1.0
    assert 330 < last.levels[Rate.POWER] < 350
    assert last.clock_mhz < 1700
    assert gpu.cause == "power_throttle"


def test_a_gpu_says_why_it_is_slow() -> None:
    gpu = Gpu(MODELS["h200"], 1, 0)
    for effects, cause in ((GpuEffects(heat=0.3), "thermal_throttle"), (GpuEffects(), None)):
        ticks(DECODE, effects, 400, gpu)
        assert gpu.cause == cause


def test_light_work_fits_under_a_lowered_cap() -> None:
    last = ticks(DECODE._replace(dram=0.1, sm=0.1), GpuEffects(cap_lost=0.5), 100)[-1]
    assert last.reasons == 0


def test_a_power_brake_halves_the_clock_at_once() -> None:
    gpu = Gpu(MODELS["h200"], 1, 0)
    first = ticks(DECODE, GpuEffects(brake=0.5), 1, gpu)[0]
    assert first.reasons == REASON_POWER_BRAKE | REASON_HW_SLOWDOWN
    assert first.clock_mhz == 990
    assert first.levels[Rate.POWER_BRAKE] == 1.0
    assert gpu.cause == "hw_slowdown"


def test_another_client_of_the_memory_keeps_dram_busy_and_the_sms_not() -> None:
    alone = ticks(DECODE._replace(dram=0.5), GpuEffects(), 1)[0]
    shared = ticks(DECODE._replace(dram=0.5), GpuEffects(bandwidth_taken=0.4), 1)[0]
    assert shared.levels[Rate.DRAM] == pytest.approx(alone.levels[Rate.DRAM] + 0.4)
    assert shared.levels[Rate.SM] == alone.levels[Rate.SM]


def test_another_process_keeps_an_idle_gpu_busy() -> None:
    last = ticks(Work(), GpuEffects(time_taken=0.4), 50)[-1]
    assert last.reasons == 0
    assert last.levels[Rate.SM] > 0.3
    assert last.clock_mhz == 1980


def test_a_transfer_fills_what_is_left_of_the_link() -> None:
    last = ticks(Work(), GpuEffects(link_taken=0.9, link_share=0.25), 1)[-1]
    assert last.levels[Rate.PCIE_RX] == pytest.approx(0.9 * 0.25 * MODELS["h200"].pcie_bytes_s)
