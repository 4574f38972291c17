"""A scenario in fast mode: the same findings again, anywhere, and what they are worth against the scenario's faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumon import catalogue
from gpumon.config import Config, DetectConfig
from gpumon.detect.detectors import DetectConfigError
from gpumon.findings_text import as_json
from gpumon.model import RequestRecord
from gpumon.sim.scenario import Scenario, ScenarioError
from gpumon.simulated import STARTED_S, SimulatedNode, judge, main
from tests.stories import FOUND, LENGTH_S, story, write_story

ROOT = Path(__file__).resolve().parent.parent


def simulated(scenario: Scenario, seed: int = 11, until_s: float = LENGTH_S) -> SimulatedNode:
    """The node after so much of the story."""
    node = SimulatedNode(scenario, seed, Config())
    node.advance(until_s)
    return node


def findings(node: SimulatedNode) -> list[str]:
    return [as_json(incident, node.clock.to_unix) for incident in node.incidents()]


def figures(node: SimulatedNode) -> list[dict[str, Any]]:
    """Findings without what is a mere name: identifiers differ from seed to seed."""
    told = [json.loads(line) for line in findings(node)]
    return [{key: value for key, value in row.items() if key not in ("id", "uuid", "traces")} for row in told]


def energies(node: SimulatedNode) -> dict[str, float]:
    """Joules by GPU, now."""
    samples = node.node.store.view(node.clock.now_s()).family(catalogue.GPU_ENERGY)
    return {sample.labels[0]: sample.value for sample in samples if isinstance(sample.value, float)}


def test_every_fault_of_the_story_is_found_and_nothing_else() -> None:
    node = simulated(story())
    assert [incident.kind for incident in node.incidents()] == [*FOUND]
    brake, xid, *stopped = node.incidents()
    assert (brake.entity.gpu, xid.entity.gpu) == ("1", "0")
    assert 6 <= brake.opened_s - STARTED_S <= 9
    assert brake.closed_s is not None
    assert {each.entity.scope for each in stopped} == {"process"}


def test_the_same_scenario_and_seed_give_the_same_findings() -> None:
    first = findings(simulated(story()))
    assert findings(simulated(story())) == first
    assert len(first) == len(FOUND)


def test_another_seed_gives_other_figures() -> None:
    one, other = simulated(story(), seed=11), simulated(story(), seed=12)
    assert figures(one) != figures(other)
    assert [row["kind"] for row in figures(one)] == [row["kind"] for row in figures(other)]


def test_the_strides_in_which_it_goes_on_change_nothing() -> None:
    node = SimulatedNode(story(), 11, Config())
    at_s = 0.0
    while at_s < LENGTH_S:
        at_s = min(LENGTH_S, at_s + 0.37)
        node.advance(at_s)
    assert findings(node) == findings(simulated(story()))


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_another_process_with_other_hashes_gives_the_same_bytes(hash_seed: str, tmp_path: Path) -> None:
    expected = "".join(f"{line}\n" for line in findings(simulated(story()))).encode()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpumon", "simulate", str(write_story(tmp_path)), "--json"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == expected


def test_requests_are_assembled_as_the_servers_tell_of_them() -> None:
    records: list[RequestRecord] = []
    node = SimulatedNode(story(), 11, Config(), on_requests=records.extend)
    node.advance(13.0)
    assert len(records) > 10
    assert {record.server for record in records} == {"gpumon"}
    assert {record.model for record in records} == {"llama-3.1-8b"}
    assert {uuid for record in records for uuid in record.binding.gpus} == {b.uuid for b in node.world.boards}


def test_gpus_servers_and_host_are_on_the_page_of_a_simulated_node() -> None:
    node = simulated(story(), until_s=8.0)
    view = node.node.store.view(node.clock.now_s())
    for metric in (
        catalogue.GPU_SM_ACTIVE,
        catalogue.GPU_ENERGY,
        catalogue.PROCESS_PAGE_FAULTS,
        catalogue.HOST_PAGE_FAULTS,
        catalogue.SERVER_RUNNING,
        catalogue.REQUEST_DURATION,
        catalogue.INCIDENTS,
    ):
        assert view.family(metric), metric.name


def test_nvml_that_was_gone_is_read_again_and_nothing_is_stale_meanwhile() -> None:
    node = SimulatedNode(story("kind: driver_restart, at_s: 8.5, for_s: 4"), 11, Config())
    node.advance(8.0)
    before = energies(node)
    node.advance(11.0)
    assert energies(node) == {}
    node.advance(25.0)
    after = energies(node)
    assert len(after) == len(before) == 2
    assert all(after[labels] >= before[labels] for labels in before)


# --- the verdict ----------------------------------------------------------------------------------------------------


def test_each_label_is_found_by_the_incident_that_opened_first() -> None:
    verdict = judge(story(), simulated(story()), LENGTH_S)
    assert {label.kind: incident.kind for label, incident in verdict.found} == {kind: kind for kind in FOUND}
    assert not verdict.missed
    assert not verdict.false
    assert len(verdict.true) == len(FOUND)


def test_what_nothing_in_the_scenario_explains_is_false() -> None:
    quiet = story("kind: idle, at_s: 1, for_s: 1, server: llama-8b-0, strength: 0.1")
    verdict = judge(quiet, simulated(story()), LENGTH_S)
    assert sorted(incident.kind for incident in verdict.false) == sorted(FOUND)
    assert not verdict.found
    assert not verdict.true


def test_an_incident_of_another_gpu_does_not_count_as_found() -> None:
    verdict = judge(story("kind: power_brake, at_s: 6, for_s: 6, gpu: 0"), simulated(story()), LENGTH_S)
    assert [label.kind for label in verdict.missed] == ["hw_slowdown"]


def test_what_begins_after_the_end_need_not_be_found() -> None:
    verdict = judge(story(), simulated(story(), until_s=5.0), 5.0)
    assert (verdict.found, verdict.missed, verdict.false) == ([], [], [])


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_tells_what_was_found_and_that_nothing_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(write_story(tmp_path))
    assert main(path, None, None, json_output=True, config=Config()) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == findings(simulated(story()))
    assert err == ""


def test_what_was_not_found_is_said_on_the_other_channel_and_is_status_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(write_story(tmp_path, "kind: thermal_throttle, at_s: 5, for_s: 3, gpu: 0, strength: 0.05"))
    assert main(path, None, 12.0, json_output=True, config=Config()) == 1
    assert capfd.readouterr() == ("", "not found: thermal_throttle, from 5 s, of the fault thermal_throttle\n")


def test_what_nothing_explains_is_said_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With a threshold that a healthy node passes."""
    path = str(write_story(tmp_path, "kind: idle, at_s: 1, for_s: 1, server: llama-8b-0, strength: 0.1"))
    config = Config(detect=DetectConfig(thresholds={"memory_bound": {"dram": 0.01, "sm": 1.0}}))
    assert main(path, None, 25.0, json_output=False, config=config) == 1
    out, err = capfd.readouterr()
    assert "memory_bound" in out
    assert "not explained: memory_bound of gpu 0, found at " in err


def test_the_scenarios_own_seed_is_taken_unless_another_is_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(write_story(tmp_path))
    for seed, used in ((None, 11), (12, 12)):
        main(path, seed, 12.0, json_output=True, config=Config())
        assert capfd.readouterr().out.splitlines() == findings(simulated(story(), seed=used, until_s=12.0))


def test_the_built_in_story_has_a_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert main("demo", None, 3.0, json_output=True, config=Config()) == 0
    assert capfd.readouterr() == ("", "")


def test_a_scenario_that_cannot_be_taken_raises(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: No such file"):
        main(str(tmp_path / "nowhere.yaml"), None, None, json_output=False, config=Config())


def test_thresholds_that_cannot_be_taken_raise(tmp_path: Path) -> None:
    config = Config(detect=DetectConfig(thresholds={"xid": {"no_such": 1.0}}))
    with pytest.raises(DetectConfigError, match=r"detect\.thresholds\[xid\]"):
        main(str(write_story(tmp_path)), None, None, json_output=False, config=config)
