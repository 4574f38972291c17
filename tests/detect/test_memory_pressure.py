"""``memory_pressure``: swapping, stalls of the host and of a pod, and what the kernel killed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Finding, Severity
from gpumon.detect.memory_pressure import MemoryPressure
from tests.detect.processes import Host, Process
from tests.detect.scenes import BEGIN_S, Series, Stage, check_described, evidence, gpu

SWAP_IN: Series = (catalogue.HOST_SWAP_PAGES, ("in",))
SWAP_OUT: Series = (catalogue.HOST_SWAP_PAGES, ("out",))
SOME: Series = (catalogue.HOST_PRESSURE, ("memory", "some"))
FULL: Series = (catalogue.HOST_PRESSURE, ("memory", "full"))
KILLS: Series = (catalogue.HOST_OOM_KILLS, ())


def run(stage: Stage, detector: MemoryPressure, seconds: float, per_s: Mapping[Series, float]) -> list[Finding]:
    """Counters of the host grow at these rates; all others stand still."""
    zeros = dict.fromkeys((SWAP_IN, SWAP_OUT, SOME, FULL, KILLS), 0.0)
    return stage.run(detector, seconds, each=lambda: stage.grow(zeros | dict(per_s)))


def test_described() -> None:
    check_described(MemoryPressure)


@pytest.mark.parametrize(
    ("name", "value", "per_s", "told"),
    [
        ("swapped_in_per_second", 900.0, {SWAP_IN: 900.0}, "900 pages/s swapped in, 0 out"),
        ("swapped_out_per_second", 5000.0, {SWAP_OUT: 5000.0}, "0 pages/s swapped in, 5,000 out"),
        ("stalled", 0.4, {SOME: 0.4, FULL: 0.05}, "waited for memory 40 % of the time"),
        ("stalled_all", 0.14, {SOME: 0.14, FULL: 0.14}, "waited for memory 14 % of the time"),
    ],
)
def test_each_sign_of_the_host(name: str, value: float, per_s: dict[Series, float], told: str) -> None:
    stage, detector = Stage(), MemoryPressure()
    assert run(stage, detector, 20.0, {}) == []
    found = run(stage, detector, 10.0, per_s)
    assert found[0].since_s <= BEGIN_S + 25.0
    assert {finding.entity for finding in found} == {("host", "host", "", "")}
    assert found[-1].severity is Severity.WARNING
    assert evidence(found[-1], name).observed == pytest.approx(value)
    assert told in found[-1].summary
    assert found[-1].weight > 1.0
    run(stage, detector, 16.0, {})
    assert run(stage, detector, 20.0, {}) == []


@pytest.mark.parametrize(
    "per_s", [{SWAP_IN: 100.0, SWAP_OUT: 900.0}, {SOME: 0.1, FULL: 0.06}], ids=["a trickle", "some waiting"]
)
def test_a_little_is_healthy(per_s: dict[Series, float]) -> None:
    stage = Stage()
    assert run(stage, MemoryPressure(), 60.0, per_s) == []


def test_a_moment_is_averaged_over_five_seconds() -> None:
    stage, detector = Stage(), MemoryPressure()
    run(stage, detector, 20.0, {})
    assert run(stage, detector, 1.0, {SOME: 0.5, SWAP_IN: 1000.0}) == []
    assert run(stage, detector, 20.0, {}) == []


def test_a_kill_is_critical_and_told_of_for_a_while() -> None:
    stage, detector = Stage(), MemoryPressure()
    run(stage, detector, 20.0, {})
    (finding,) = run(stage, detector, 1.0, {KILLS: 2.0})
    assert finding.severity is Severity.CRITICAL
    assert finding.since_s == BEGIN_S + 20.0
    assert finding.summary.startswith("2 killed for lack of memory")
    assert finding.weight == 2e6
    found = run(stage, detector, 10.0, {})
    assert found[-1].evidence[0] == ("killed", 2.0, "", None)
    run(stage, detector, 1.0, {KILLS: 1.0})
    assert evidence(run(stage, detector, 1.0, {})[0], "killed").observed == 3.0
    run(stage, detector, 30.0, {})
    assert run(stage, detector, 30.0, {}) == []


def test_the_pressure_of_a_pod_is_one_incident_of_its_processes() -> None:
    node, detector = Host(*(Process(41_403 + index, gpu=index) for index in range(4))), MemoryPressure()
    assert node.run(detector, 30.0) == []
    for process in node.processes:
        process.memory_some, process.memory_full = 0.4, 0.3
    found = node.run(detector, 15.0)
    assert {finding.entity for finding in found} == {("process", "pid 41403 VLLM::Worker_TP", "0", gpu(0)[1])}
    assert evidence(found[-1], "stalled").observed == pytest.approx(0.4)
    assert found[0].since_s == pytest.approx(BEGIN_S + 30, abs=6.0)
    node.end(node.processes[0])
    assert {finding.entity.gpu for finding in node.run(detector, 12.0)} == {"1"}
    for process in node.processes:
        process.memory_some, process.memory_full = 0.0, 0.0
    node.run(detector, 20.0)
    assert node.run(detector, 30.0) == []


def test_a_server_that_starts_may_wait_for_memory() -> None:
    node, detector = Host(Process(1, gpu=0)), MemoryPressure()
    node.run(detector, 30.0)
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.0})
    node.processes.append(Process(2, gpu=1, pod="vllm-1", memory_some=0.8))
    assert node.run(detector, 90.0) == []


def test_counters_that_begin_anew_are_no_pressure() -> None:
    stage, detector = Stage(), MemoryPressure()
    run(stage, detector, 20.0, {SOME: 0.1, SWAP_OUT: 1000.0})
    stage.put({SOME: 0.0, SWAP_OUT: 0.0})
    assert run(stage, detector, 20.0, {SOME: 0.1, SWAP_OUT: 1000.0}) == []


def test_what_is_gone_is_forgotten() -> None:
    node, detector = Host(Process(1, gpu=0, memory_some=0.5)), MemoryPressure()
    assert node.run(detector, 30.0)
    node.end(node.processes[0])
    assert node.run(detector, 5.0) == []
    assert detector._named == {}
    assert detector._since == {}
    assert detector._shares == {}


def test_nothing_is_known() -> None:
    assert Stage().run(MemoryPressure(), 30.0) == []
