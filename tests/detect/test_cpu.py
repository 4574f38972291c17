"""``cpu_starvation``: each of its signs, their hysteresis, and what is no starvation."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.cpu import CpuStarvation
from tests.detect.processes import Host, Process
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence, gpu


def workers(count: int = 2) -> list[Process]:
    return [Process(41_403 + index, gpu=index) for index in range(count)]


def test_described() -> None:
    check_described(CpuStarvation)


def test_threads_that_wait_for_a_cpu() -> None:
    host, detector = Host(*workers()), CpuStarvation()
    assert host.run(detector, 60.0) == []
    host.processes[0].wait, host.processes[0].cpu = 0.9, 0.4
    found = host.run(detector, 12.0)
    assert {finding.entity for finding in found} == {("process", "pid 41403 VLLM::Worker_TP", "0", gpu(0)[1])}
    assert found[0].since_s == pytest.approx(BEGIN_S + 60, abs=5.0)
    wait = evidence(found[-1], "runqueue_wait")
    assert wait.observed == pytest.approx(0.9 / 1.3, rel=0.02)
    assert wait.baseline == pytest.approx(0.045 / 1.345, rel=0.02)
    assert found[-1].summary.startswith("waits for a CPU 69 % of the time it wants one (3 % before)")
    assert found[-1].weight == pytest.approx(0.9 / 1.3 / 0.15, rel=0.02)


def test_it_is_found_at_the_first_reading_and_over_at_the_second() -> None:
    host, detector = Host(*workers()), CpuStarvation()
    host.run(detector, 60.0)
    host.processes[0].wait = 0.6
    assert host.run(detector, 6.0)
    host.processes[0].wait = 0.045
    assert host.run(detector, 3.0)
    host.run(detector, 9.0)
    assert host.run(detector, 60.0) == []


def test_a_cgroup_that_is_throttled_is_one_incident_of_all_its_processes() -> None:
    host, detector = Host(*workers(8)), CpuStarvation()
    assert host.run(detector, 60.0) == []
    for process in host.processes:
        process.throttled = 0.4
    found = host.run(detector, 20.0)
    assert len({finding.entity for finding in found}) == 1
    assert evidence(found[-1], "throttled_seconds_per_second").observed == pytest.approx(0.4)
    assert "throttled by its cgroup 0.4 s a second" in found[-1].summary


def test_the_pressure_of_a_cgroup() -> None:
    host, detector = Host(*workers()), CpuStarvation()
    assert host.run(detector, 60.0) == []
    for process in host.processes:
        process.stalled = 0.5
    found = host.run(detector, 20.0)
    assert evidence(found[-1], "cpu_pressure").observed == pytest.approx(0.5, rel=0.05)
    assert evidence(found[-1], "cpu_pressure").baseline == pytest.approx(0.01, rel=0.05)


def test_containers_of_two_pods_are_two_incidents() -> None:
    host, detector = Host(Process(1, gpu=0, pod="a"), Process(2, gpu=1, pod="b")), CpuStarvation()
    host.run(detector, 60.0)
    for process in host.processes:
        process.throttled = 0.4
    assert {finding.entity.gpu for finding in host.run(detector, 20.0)} == {"0", "1"}


def test_without_a_container_every_process_is_its_own() -> None:
    host = Host(Process(1, gpu=0, pod="", container=""), Process(2, gpu=1, pod="", container=""))
    detector = CpuStarvation()
    host.run(detector, 60.0)
    host.processes[1].wait = 2.0
    assert {finding.entity.name for finding in host.run(detector, 20.0)} == {"pid 2 VLLM::Worker_TP"}


def test_one_that_was_always_starved_is_found_all_the_same() -> None:
    host, detector = Host(Process(1, gpu=0, cpu=0.3, wait=0.9)), CpuStarvation()
    assert host.run(detector, 30.0)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": 4.0, "wait": 0.2},
        {"cpu": 0.05, "wait": 0.04},
        {"throttled": 0.05},
        {"stalled": 0.2},
    ],
    ids=["busier", "nearly idle", "throttled a little", "some pressure"],
)
def test_a_little_is_no_starvation(change: dict[str, float]) -> None:
    host, detector = Host(*workers()), CpuStarvation()
    host.run(detector, 60.0)
    for process in host.processes:
        vars(process).update(change)
    assert host.run(detector, 60.0) == []


def test_a_server_that_always_waits_is_compared_with_itself() -> None:
    host, detector = Host(Process(1, gpu=0, cpu=1.0, wait=0.3, stalled=0.25)), CpuStarvation()
    host.run(detector, 60.0)
    host.processes[0].wait = 0.5
    host.processes[0].stalled = 0.4
    assert host.run(detector, 60.0) == []


def test_a_server_that_starts_may_use_every_cpu() -> None:
    host, detector = Host(Process(1, gpu=0)), CpuStarvation()
    host.run(detector, 30.0)
    host.processes.append(Process(2, gpu=1, pod="vllm-1", cpu=40.0, wait=60.0, throttled=2.0))
    host.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.0})
    assert host.run(detector, 100.0) == []
    assert host.run(detector, 20.0, requests=lambda at_s: [request(at_s - 0.4, gpus=[gpu(1)[1]])])


def test_a_sign_alone_will_do() -> None:
    process = Process(1, gpu=0, wait=None, stalled=None)
    host, detector = Host(process), CpuStarvation()
    host.run(detector, 60.0)
    process.throttled = 0.5
    assert host.run(detector, 12.0)


def test_a_process_that_ends_takes_its_incident_with_it() -> None:
    host, detector = Host(*workers()), CpuStarvation()
    host.run(detector, 60.0)
    process = host.processes[0]
    process.wait = 3.0
    assert host.run(detector, 12.0)
    host.end(process)
    assert host.run(detector, 12.0) == []
    host.end(host.processes[0])
    host.run(detector, 1.0)
    assert detector._signs == {}
    assert detector._named == {}


@pytest.mark.parametrize("step_s", [2.0, 5.0, 10.0])
def test_slower_steps_find_the_same(step_s: float) -> None:
    host, detector = Host(*workers()), CpuStarvation()
    assert host.run(detector, 120.0, step_s=step_s) == []
    host.processes[0].wait = 1.3
    found = host.run(detector, 30.0, step_s=step_s)
    assert evidence(found[-1], "runqueue_wait").observed == pytest.approx(0.5, abs=0.08)


def test_nothing_is_known() -> None:
    assert Stage().run(CpuStarvation(), 30.0) == []
