"""Cases that were measured on real machines, and that a scenario must be able to tell again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpumon.sim.scenario import load_scenario
from gpumon.sim.state import LOOK_BACK_S, Rate
from gpumon.sim.world import World
from tests.sim.runs import STARTED_S, Run, gaps, grown, mean_gap, quantile, run

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"


def world_of(name: str) -> World:
    return World(load_scenario(SCENARIOS / f"{name}.yaml"), started_at_s=STARTED_S)


@cache
def thermal() -> Run:
    return run(world_of("measured_thermal"), 175.0)


def test_thermal_throttling_lowers_the_clock_from_1410_to_1005_mhz_at_89_to_91_degrees() -> None:
    world = world_of("measured_thermal")
    assert {world.gpu(0, STARTED_S + second).clock_mhz for second in range(60)} == {1410}
    moments = [world.gpu(0, STARTED_S + second) for second in range(80, 140)]
    assert {moment.clock_mhz for moment in moments} == {1005}
    assert all(89.0 <= moment.temperature_c <= 91.0 for moment in moments)
    assert all(moment.reasons == 0x20 for moment in moments)
    assert all(moment.rate(Rate.THERMAL) == 1.0 for moment in moments)


def test_thermal_throttling_brings_the_gap_from_7_2_to_11_8_ms() -> None:
    before, after = thermal().between(15, 60), thermal().between(85, 140)
    assert 1000 * mean_gap(before) == pytest.approx(7.2, rel=0.05)
    assert 1000 * mean_gap(after) == pytest.approx(11.8, rel=0.05)


def test_thermal_throttling_costs_26_percent_of_the_throughput() -> None:
    before, after = thermal().tokens(20, 60) / 40, thermal().tokens(85, 138) / 53
    assert after / before - 1 == pytest.approx(-0.26, abs=0.03)


def test_page_faults_grow_from_12_3_to_97_6_a_second_and_last_as_long_as_the_contexts_are() -> None:
    world = world_of("measured_page_faults")
    worker = next(task for task in world.tasks(STARTED_S) if task.gpu == 0)

    def burst(begins_s: float, seconds: float) -> tuple[float, list[float]]:
        """Faults per second in a stretch, and per 100 ms in the time after it."""
        count = [
            world.task_times(worker, STARTED_S + begins_s + tenth / 10).major_faults
            for tenth in range(int(seconds * 10) + 21)
        ]
        inside = int(seconds * 10)
        return (count[inside] - count[0]) / seconds, [
            b - a for a, b in zip(count[inside:], count[inside + 1 :], strict=False)
        ]

    short, after_short = burst(80.0, 0.8)
    long, after_long = burst(160.0, 3.2)
    assert short == pytest.approx(12.3, abs=3)  # whole faults in 0.8 s
    assert long == pytest.approx(97.6, rel=0.12)
    assert sum(after_short[3:]) <= 1
    assert sum(after_long[:9]) > 10
    assert sum(after_long[12:]) <= 1


@cache
def cliff() -> Run:
    return run(world_of("measured_context_cliff"), 295.0)


def test_128k_contexts_take_the_95th_percentile_of_the_response_from_3_2_to_10_2_s() -> None:
    def response(since_s: float, until_s: float) -> float:
        rows = [row for row in cliff().requests if since_s <= row.start_s - STARTED_S < until_s]
        return quantile([row.end_s - row.start_s for row in rows], 0.95)

    assert response(20, 115) == pytest.approx(3.2, rel=0.1)
    assert response(140, 260) == pytest.approx(10.2, rel=0.15)


def test_128k_contexts_keep_dram_98_percent_and_the_sms_53_percent_busy() -> None:
    world = world_of("measured_context_cliff")
    world.gpu(0, STARTED_S + 200.0 + LOOK_BACK_S)
    assert grown(world, 0, Rate.DRAM, 202.0, 228.0) == pytest.approx(0.98, abs=0.02)
    assert grown(world, 0, Rate.SM, 202.0, 228.0) == pytest.approx(0.53, abs=0.02)


def test_one_rank_of_eight_makes_the_seven_others_wait() -> None:
    found = run(world_of("measured_straggler"), 110.0)

    def waits(since_s: float, until_s: float) -> list[float]:
        """Share of its time in the collective that each rank waits for the last to come."""
        steps = [step for step in found.collectives if since_s <= step.end_s - STARTED_S < until_s]
        waited, inside = [0.0] * 8, [0.0] * 8
        for step in steps:
            for rank, start_s in enumerate(step.start_s):
                waited[rank] += max(step.start_s) - start_s
                inside[rank] += step.end_s - start_s
        return [part / whole for part, whole in zip(waited, inside, strict=True)]

    assert max(waits(10, 50)) < 0.2
    shares = waits(52, 98)
    assert all(share >= 0.65 for rank, share in enumerate(shares) if rank != 5)
    assert shares[5] < 0.01
    assert quantile(gaps(found.between(52, 100)), 0.5) > 2 * quantile(gaps(found.between(10, 50)), 0.5)
