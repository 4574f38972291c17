"""Cases that were measured on real nodes, as scenarios: the right incident opens, with the measured figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon.config import CadenceConfig, Config, StateConfig
from gpumon.detect.detector import Evidence
from gpumon.detect.incident import Incident
from gpumon.sim.scenario import load_scenario
from gpumon.simulated import SimulatedNode

SCENARIOS = Path(__file__).parent / "scenarios"

pytestmark = pytest.mark.slow


def found(name: str, kind: str) -> Incident:
    """The one incident of a kind at the end of a scenario."""
    scenario = load_scenario(SCENARIOS / f"{name}.yaml")
    config = Config(cadence=CadenceConfig(fast_s=0.5), state=StateConfig(folder=None))
    node = SimulatedNode(scenario, scenario.seed, config)
    node.advance(scenario.duration_s)
    [incident] = [each for each in node.incidents() if each.kind == kind]
    return incident


def figure(incident: Incident, name: str) -> Evidence:
    [evidence] = [each for each in incident.evidence if each.name == name]
    return evidence


def about(value: float, share: float = 0.1) -> object:
    return pytest.approx(value, rel=share)


def test_thermal_throttling_costs_clock_latency_and_throughput_as_measured() -> None:
    # SM clock 1410 -> 1005 MHz at 89-91 degrees, latency 7.2 -> 11.8 ms, throughput -26 %.
    incident = found("measured_thermal", "thermal_throttle")
    clock, latency, rate = (figure(incident, name) for name in ("sm_clock", "inter_token_latency", "tokens_per_second"))
    assert (clock.baseline, clock.observed) == (1410e6, 1005e6)
    assert 89.0 <= figure(incident, "temperature_peak").observed <= 91.0
    assert (latency.baseline, latency.observed) == (about(7.2e-3, 0.05), about(11.8e-3, 0.05))
    assert rate.baseline is not None
    assert rate.observed / rate.baseline - 1 == pytest.approx(-0.26, abs=0.04)


def test_page_faults_at_a_context_jump_burst_and_recover_as_measured() -> None:
    # 12.3 -> 97.6 faults/s, bursts 0.8 -> 3.2 s, recovery 0.14 -> 0.89 s, when the context goes from 4k to 16k.
    incident = found("measured_page_faults", "page_fault_burst")
    faults, burst, recovery, context = (
        figure(incident, name)
        for name in ("major_faults_per_second", "burst_duration", "burst_recovery", "context_tokens")
    )
    assert (faults.baseline, faults.observed) == (about(12.3), about(97.6, 0.12))
    assert (burst.baseline, burst.observed) == (about(0.8, 0.2), about(3.2))
    # Below the half second between two looks, so both are estimates.
    assert (recovery.baseline, recovery.observed) == (about(0.14, 0.3), about(0.89, 0.3))
    assert (context.baseline, context.observed) == (about(4096), about(16_384))


def test_a_shift_of_the_p99_between_tokens_is_told_as_measured() -> None:
    # P99 45 -> 255 ms.
    shift = figure(found("measured_p99_shift", "latency_shift"), "inter_token_p99")
    assert (shift.baseline, shift.observed) == (about(0.045), about(0.255))


def test_the_cliff_between_two_lengths_of_context_is_told_as_measured() -> None:
    # P95 3.2 -> 10.2 s from 64k to 128k, with DRAM at 98 % and SM at 53 %.
    incident = found("measured_context_cliff", "context_cliff")
    response = figure(incident, "response_time_p95")
    assert (response.baseline, response.observed) == (about(3.2, 0.12), about(10.2))
    assert figure(incident, "dram_active").observed == pytest.approx(0.98, abs=0.02)
    assert figure(incident, "sm_active").observed == pytest.approx(0.53, abs=0.03)
    assert "64k → 128k" in incident.summary


def test_one_rank_that_makes_seven_wait_is_named_and_its_victims_are_not() -> None:
    # At least 65 % of their time in the collective is waiting.
    incident = found("measured_straggler", "straggler")
    assert figure(incident, "wait_share").observed >= 0.65
    assert incident.entity.gpu == "5"
