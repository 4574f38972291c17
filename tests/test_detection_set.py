"""A part of the labelled set, as ``benchmarks.detection`` judges all of it: what must be found is, and nothing else."""

from __future__ import annotations

import pytest

from gpumon.config import CadenceConfig, Config, StateConfig
from gpumon.sim.scenario import load_scenario
from gpumon.simulated import SimulatedNode, judge
from tests.scenarios.make import FOLDER

pytestmark = pytest.mark.slow

NAMES = (
    *("thermal_throttle_mid", "page_faults_mid", "numa_remote_mid", "queue_surge_mid", "straggler_mid", "xid_mid"),
    *("gpu_lost", "pair_straggler_and_thermal", "only_driver_restart", "only_warm_up", "only_idle_server"),
)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_scenario_injects_is_found_and_nothing_else(name: str) -> None:
    scenario = load_scenario(FOLDER / f"{name}.yaml")
    config = Config(cadence=CadenceConfig(fast_s=0.5), state=StateConfig(folder=None))
    node = SimulatedNode(scenario, scenario.seed, config)
    node.advance(scenario.duration_s)
    verdict = judge(scenario, node, scenario.duration_s)
    assert [label.kind for label in verdict.missed] == []
    assert [(each.kind, each.entity.name, each.summary) for each in verdict.false] == []
