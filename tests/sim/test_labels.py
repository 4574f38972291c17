"""The key to a simulation: what must be found, what may be, and of whom."""

from __future__ import annotations

from gpumon import catalogue
from gpumon.sim.faults import KINDS
from gpumon.sim.labels import AFTER_S, ALSO, EARLY_S, REQUIRED, explaining, labels, strikes
from gpumon.sim.scenario import Scenario, parse_scenario


def told(*faults: str, repeat: bool = False) -> Scenario:
    return parse_scenario(
        f"""
name: two servers
duration_s: 100
repeat: {str(repeat).lower()}
node: {{gpus: 4}}
servers:
  - {{name: a, model: first, gpus: [0, 1], parameters_b: 8}}
  - {{name: b, model: second, gpus: [2, 3], parameters_b: 8}}
load:
  - {{server: a, arrivals: {{per_s: 1}}, tenants: {{acme: 1}}}}
  - {{server: b, arrivals: {{per_s: 1}}, tenants: {{acme: 1, globex: 1}}}}
faults: [{", ".join(faults)}]
"""
    )


HEAT = "{kind: thermal_throttle, at_s: 20, for_s: 30, gpu: 2}"


def test_every_fault_has_labels_of_kinds_that_there_are() -> None:
    assert set(REQUIRED) == set(ALSO) == set(KINDS)
    assert {kind for kinds in REQUIRED.values() for kind in kinds} <= set(catalogue.INCIDENT_KINDS)
    assert {kind for kinds in ALSO.values() for kind in kinds} <= set(catalogue.INCIDENT_KINDS)


def test_a_label_begins_and_ends_with_its_fault() -> None:
    [label] = labels(told(HEAT), 100)
    assert (label.kind, label.begins_s, label.ends_s) == ("thermal_throttle", 20, 50)
    assert labels(told(HEAT), 20) == []


def test_a_story_that_repeats_has_its_labels_each_time() -> None:
    assert [label.begins_s for label in labels(told(HEAT, repeat=True), 300)] == [20, 120, 220]


def test_what_opens_during_a_fault_or_soon_after_is_explained_by_it_and_what_was_open_before_is_not() -> None:
    scenario = told(HEAT)

    def explains(kind: str, opened_s: float) -> bool:
        return explaining(scenario, kind, opened_s) == list(scenario.faults)

    assert explains("thermal_throttle", 25)
    assert explains("thermal_throttle", 20 - EARLY_S)
    assert explains("latency_shift", 50 + AFTER_S)
    assert not explains("latency_shift", 50 + AFTER_S + 0.1)
    assert not explains("latency_shift", 18)
    assert not explains("xid", 25)


def test_a_fault_strikes_gpus_and_models() -> None:
    def struck(fault: str) -> tuple[set[str], set[str]]:
        scenario = told(fault)
        gpus, models = strikes(scenario, scenario.faults[0])
        return set(gpus), set(models)

    assert struck(HEAT) == ({"2"}, {"second"})
    assert struck("{kind: numa_remote, at_s: 1, for_s: 9, server: a}") == ({"0", "1"}, {"first"})
    assert struck("{kind: tenant_flood, at_s: 1, for_s: 9, tenant: globex}") == ({"2", "3"}, {"second"})
    assert struck("{kind: driver_mismatch, at_s: 1, for_s: 9}") == (set(), set())
