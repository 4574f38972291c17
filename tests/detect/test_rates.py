"""Rates of counters that are published more often than they are read."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.rates import Rate, RepeatedRates
from tests.detect.scenes import BEGIN_S, Stage

POD = ("1", "server", "llm", "vllm-0", "server")
METRIC = catalogue.PROCESS_CPU_THROTTLED


def run(stage: Stage, rates: RepeatedRates, seconds: int, amount: float, *, every_s: int = 5) -> list[Rate]:
    """Rates found while the counter is read anew every few seconds, each time grown by ``amount``."""
    found = []
    for _ in range(seconds):
        if (stage.at_s + 1 - BEGIN_S) % every_s == 0:
            stage.grow({(METRIC, POD): amount})
        found += list(rates.step(stage.step()).values())
    return found


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.put({(METRIC, POD): 100.0})
    return made


def test_a_counter_read_every_five_seconds_has_the_rate_between_two_readings(stage: Stage) -> None:
    found = run(stage, RepeatedRates(METRIC), 30, 2.0)
    assert [rate.per_s for rate in found[1:]] == [0.4] * 5
    assert found[1].since_s == BEGIN_S + 5


def test_one_that_is_read_at_every_step_has_a_rate_at_every_step(stage: Stage) -> None:
    found = run(stage, RepeatedRates(METRIC), 10, 3.0, every_s=1)
    assert [rate.per_s for rate in found] == [3.0] * 9  # the first reading is one to begin with


def test_a_counter_that_comes_to_rest_says_so_once(stage: Stage) -> None:
    rates = RepeatedRates(METRIC)
    run(stage, rates, 20, 2.0)
    assert [rate.per_s for rate in run(stage, rates, 60, 0.0)] == [0.0]


def test_a_jump_after_a_rest_is_not_spread_over_the_rest(stage: Stage) -> None:
    rates = RepeatedRates(METRIC)
    run(stage, rates, 20, 2.0)
    run(stage, rates, 99, 0.0)
    (found,) = run(stage, rates, 1, 2.0)
    assert found.per_s == pytest.approx(0.2)  # twice the period of five seconds at most


def test_a_counter_that_begins_anew_is_no_rate(stage: Stage) -> None:
    rates = RepeatedRates(METRIC)
    run(stage, rates, 20, 2.0)
    stage.put({(METRIC, POD): 0.0})
    assert run(stage, rates, 4, 0.0) == []
    assert [rate.per_s for rate in run(stage, rates, 10, 2.0)][1:] == [0.4]


def test_only_series_that_end_like_this_are_followed() -> None:
    stage = Stage()
    rates = RepeatedRates(catalogue.PROCESS_PRESSURE, "cpu", "some")
    series = [(*POD, resource, kind) for resource in ("cpu", "memory") for kind in ("some", "full")]
    for _ in range(3):
        stage.grow({(catalogue.PROCESS_PRESSURE, labels): 1.0 for labels in series})
        found = rates.step(stage.step())
    assert set(found) == {series[0]}


def test_series_that_are_gone_are_forgotten(stage: Stage) -> None:
    rates = RepeatedRates(METRIC)
    run(stage, rates, 20, 2.0)
    stage.drop(METRIC)
    assert rates.step(stage.step()) == {}
    assert rates._counters == {}
