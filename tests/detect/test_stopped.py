"""``process_stopped``: by the kernel's state, by the CPU time that stands still, and processes that merely idle."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Severity
from gpumon.detect.stopped import ProcessStopped
from gpumon.model import RequestRecord
from tests.detect.processes import Host, Process
from tests.detect.requests import request
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence, gpu


def host(*, open_requests: float = 4.0, sm: float = 0.9) -> Host:
    """A worker that serves model m on GPU 0, and one on GPU 1."""
    made = Host(Process(41_403, gpu=0), Process(41_404, gpu=1))
    made.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(0)): sm, (catalogue.GPU_SM_ACTIVE, gpu(1)): 0.9})
    made.stage.put({(catalogue.REQUESTS_OPEN, ("vllm", "m")): open_requests})
    return made


def served(at_s: float) -> list[RequestRecord]:
    return [request(at_s - 0.4, gpus=[gpu(0)[1]])]


def test_described() -> None:
    check_described(ProcessStopped)


def test_a_stopped_process_is_found_at_the_second_look() -> None:
    node, detector = host(), ProcessStopped()
    assert node.run(detector, 30.0) == []
    node.processes[0].stopped = True
    (finding,) = node.run(detector, 1.0)
    assert finding.severity is Severity.CRITICAL
    assert finding.entity == ("process", "pid 41403 VLLM::Worker_TP", "0", gpu(0)[1])
    assert finding.since_s == pytest.approx(BEGIN_S + 30.0, abs=0.3)
    found = node.run(detector, 9.0)
    assert evidence(found[-1], "stopped").observed == pytest.approx(10.0, abs=0.5)
    node.processes[0].stopped = False
    found = node.run(detector, 10.0)
    assert [finding.over for finding in found].count(True) == 1
    assert found[-1].over
    assert evidence(found[-1], "stopped_within").observed == pytest.approx(10.0, abs=1.1)


def test_a_stop_of_one_look_is_none() -> None:
    node, detector = host(), ProcessStopped()
    node.run(detector, 10.0)
    for _ in range(10):
        node.processes[0].stopped = True
        assert node.run(detector, 0.5, step_s=0.5) == []
        node.processes[0].stopped = False
        assert node.run(detector, 9.5, step_s=0.5) == []


def test_stops_that_come_again_every_second_are_one_incident() -> None:
    node, detector = host(), ProcessStopped()
    node.run(detector, 10.0)
    found = []
    for _ in range(20):
        node.processes[0].stopped = True
        found += node.run(detector, 0.5, step_s=0.5)
        node.processes[0].stopped = False
        found += node.run(detector, 0.5, step_s=0.5)
    assert found
    assert not any(finding.over for finding in found)
    assert len({finding.since_s for finding in found}) == 1
    assert evidence(found[-1], "stopped").observed == pytest.approx(10.0, abs=0.6)


def test_a_stop_between_two_slow_steps_is_told_once() -> None:
    node, detector = host(), ProcessStopped()
    node.run(detector, 20.0, step_s=10.0)
    node.run(detector, 2.0, step_s=10.0)
    node.processes[0].stopped = True
    node.run(detector, 3.0, step_s=10.0)
    node.processes[0].stopped = False
    found = node.run(detector, 30.0, step_s=10.0)
    assert [finding.over for finding in found].count(True) == 1
    assert found[-1].over
    assert evidence(found[-1], "stopped").observed == pytest.approx(3.0, abs=0.5)


def test_a_frozen_process_stands_still_while_requests_are_open() -> None:
    node, detector = host(), ProcessStopped()
    assert node.run(detector, 60.0, requests=served) == []
    node.processes[0].cpu = 0.0
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(0)): 0.0})
    found = node.run(detector, 20.0)
    assert {finding.entity.gpu for finding in found} == {"0"}
    assert found[0].since_s == pytest.approx(BEGIN_S + 60.0, abs=1.0)
    assert evidence(found[-1], "still").observed == pytest.approx(20.0, abs=1.0)
    assert evidence(found[-1], "cpus").baseline == pytest.approx(1.3, rel=0.2)
    node.processes[0].cpu = 1.3
    (last,) = node.run(detector, 10.0)
    assert last.over


@pytest.mark.parametrize(
    ("open_requests", "sm", "bound"),
    [(0.0, 0.0, True), (4.0, 0.5, True), (4.0, 0.0, False)],
    ids=["no requests", "its GPU works", "requests of who knows whom"],
)
def test_a_process_that_idles_is_not_stopped(open_requests: float, sm: float, bound: bool) -> None:
    node, detector = host(open_requests=open_requests), ProcessStopped()
    node.run(detector, 60.0, requests=served if bound else lambda at_s: [request(at_s - 0.4)])
    node.processes[0].cpu = 0.0
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(0)): sm})
    assert node.run(detector, 60.0) == []


def test_a_process_that_never_did_anything_is_not_stopped() -> None:
    node, detector = host(sm=0.0), ProcessStopped()
    node.processes[0].cpu = 0.001
    assert node.run(detector, 60.0, requests=served) == []
    node.processes[0].cpu = 0.0
    assert node.run(detector, 60.0) == []


def test_a_process_that_ends_takes_its_incident_with_it() -> None:
    node, detector = host(), ProcessStopped()
    node.run(detector, 10.0)
    node.processes[0].stopped = True
    assert node.run(detector, 5.0)
    node.end(node.processes[0])
    assert [finding.over for finding in node.run(detector, 5.0)] == [True]
    assert detector._stops == {}
    assert len(detector._paces) == 1


def test_nothing_is_known() -> None:
    assert Stage().run(ProcessStopped(), 30.0) == []


def test_workers_of_one_container_are_one_incident_until_the_last_of_them_runs() -> None:
    node, detector = host(), ProcessStopped()
    node.run(detector, 30.0)
    for process in node.processes:
        process.stopped = True
    found = node.run(detector, 5.0)
    assert len(found) <= 5
    assert {finding.entity for finding in found} == {("process", "pid 41403 VLLM::Worker_TP", "", "")}
    assert evidence(found[-1], "processes").observed == 2
    assert found[-1].summary.endswith(", the longest of 2 processes")
    node.processes[0].stopped = False
    found = node.run(detector, 10.0)
    assert not any(finding.over for finding in found)
    assert {finding.entity.name for finding in found} == {"pid 41403 VLLM::Worker_TP"}
    node.processes[1].stopped = False
    found = node.run(detector, 10.0)
    assert [finding.over for finding in found].count(True) == 1
    assert found[-1].over
    assert evidence(found[-1], "stopped").observed == pytest.approx(15.0, abs=0.6)
    assert detector._episodes == {}


def test_without_a_container_every_process_is_its_own() -> None:
    node, detector = host(), ProcessStopped()
    for process in node.processes:
        process.pod = process.container = ""
    node.run(detector, 10.0)
    for process in node.processes:
        process.stopped = True
    assert {finding.entity.gpu for finding in node.run(detector, 5.0)} == {"0", "1"}
