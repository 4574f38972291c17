"""The sampler process over a simulated node, and scenarios by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumon import catalogue
from gpumon.health import Health
from gpumon.host.clock import SystemClock
from gpumon.host.interpreter import module_command
from gpumon.node import Node
from gpumon.sampler.link import SamplerLink
from gpumon.sim.builtin import find_scenario, names
from gpumon.sim.scenario import ScenarioError
from gpumon.sim.world import World
from gpumon.store import Store
from tests.sampler.rig import PLAN, until
from tests.sim.nodes import GPUS, SEED, scenario, scenario_text


def test_the_process_reads_the_world_that_its_options_name(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(scenario_text())
    clock = SystemClock()
    store = Store()
    started_at_s = clock.now_s()
    link = SamplerLink(
        module_command("gpumon.sim.sampler"),
        {"scenario": str(path), "seed": str(SEED), "started_at_s": repr(started_at_s)},
        PLAN,
        clock,
        Node(store, Health(clock.to_unix), clock),
        publish_s=0.05,
    )

    def seen() -> dict[str, int]:
        """Rows by GPU."""
        view = store.view(clock.now_s())
        return {
            s.labels[1]: int(s.value) for s in view if s.metric is catalogue.GPU_SAMPLES and isinstance(s.value, float)
        }

    link.start()
    try:
        until(lambda: len(seen()) == GPUS and min(seen().values()) >= 5)
        assert link.state == "running"
        world = World(scenario(), started_at_s=started_at_s, seed=SEED)
        assert set(seen()) == {board.uuid for board in world.boards}
    finally:
        link.stop()


def test_scenarios_that_come_along_are_found_by_name() -> None:
    assert "demo" in names()
    for name in names():
        assert find_scenario(name).servers, name


def test_other_scenarios_are_found_by_path(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(scenario_text("kind: xid, at_s: 2, gpu: 1"))
    assert find_scenario(str(path)) == scenario("kind: xid, at_s: 2, gpu: 1")


@pytest.mark.parametrize("name", ["nothing", "../sim/demo", "", "demo.yaml"])
def test_a_scenario_that_is_not_there_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError):
        find_scenario(name)
