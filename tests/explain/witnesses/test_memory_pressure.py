"""Evidence of memory pressure: of cgroups, of the host, and what page faults explain."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.memory_pressure import MemoryPressure
from tests.detect.scenes import Stage
from tests.explain.witnesses.looks import Looks, incident

HALF_S = 0.5
SLOW = 10
"""Halves between two readings of a cgroup."""


def labels(pid: int, pod: str) -> tuple[str, ...]:
    return (str(pid), "VLLM::Worker_TP", "llm", pod, "server")


A, B, C = labels(11, "vllm-0"), labels(12, "vllm-0"), labels(21, "other")


class Node:
    """Two processes of a pod and one of another. Cgroups are read every five seconds, the host every half."""

    def __init__(self, *, psi: bool = True, processes: bool = True) -> None:
        self.stage = Stage()
        self.looks = Looks(MemoryPressure())
        self.psi = psi
        self.processes = (A, B, C) if processes else ()
        self._halves = 0
        self._kept = {A: 0.0, C: 0.0}
        self._disks = 0.0

    @property
    def at_s(self) -> float:
        return self.stage.at_s

    def run(
        self,
        seconds: float,
        some: float = 0.001,
        *,
        faults: float = 0.1,
        swapped_in: float = 0.0,
        host: float | None = None,
        disks: float = 0.0,
    ) -> None:
        """some: share of time stalled for memory, of the first pod. faults: major, per second, of its first process.
        host: share of the host, where it is not that of the pod. disks: share stalled for them, of the first pod."""
        for _ in range(round(seconds / HALF_S)):
            self._halves += 1
            self._kept[A] += some * HALF_S
            self._disks += disks * HALF_S
            self._kept[C] += 0.001 * HALF_S
            self.stage.grow({(catalogue.PROCESS_CPU_SECONDS, process): 0.5 for process in self.processes})
            if self.processes:
                self.stage.grow({(catalogue.PROCESS_PAGE_FAULTS, (*A, "major")): faults * HALF_S})
            self.stage.grow(
                {
                    (catalogue.HOST_PRESSURE, ("memory", "some")): (some if host is None else host) * HALF_S,
                    (catalogue.HOST_SWAP_PAGES, ("in",)): swapped_in * HALF_S,
                    (catalogue.HOST_PAGE_FAULTS, ("major",)): faults * HALF_S,
                }
            )
            if self.psi and self._halves % SLOW == 1:
                for process in (A, B, C):
                    amount = self._kept[C if process == C else A]
                    self.stage.grow({(catalogue.PROCESS_PRESSURE, (*process, "memory", "some")): amount})
                    if process != C:
                        self.stage.grow({(catalogue.PROCESS_PRESSURE, (*process, "io", "some")): self._disks})
                self._kept, self._disks = {A: 0.0, C: 0.0}, 0.0
            scene = self.stage.step(HALF_S)
            if self._halves % 2 == 0:
                self.looks.step(scene)


def test_a_cgroup_that_waits_for_memory_is_told_of_all_its_processes_and_of_no_other() -> None:
    node = Node()
    node.run(60.0)
    assert node.looks.signs == []
    node.run(31.0, 0.25)
    assert node.looks.keys() == [("process", "11"), ("process", "12")]
    evidence, cap = node.looks.at(node.at_s - 10.0, "process", "12")
    assert evidence > 0.99
    assert cap == pytest.approx(1.25 * 0.25, rel=0.1)
    node.run(6.0)
    node.looks.take()
    node.run(60.0)
    assert node.looks.signs == []


def test_the_host_tells_when_in_the_five_seconds_it_was() -> None:
    node = Node()
    node.run(63.0)
    began_s = node.at_s
    node.run(1.5, 0.6)
    ended_s = node.at_s
    node.run(20.0)
    assert node.looks.at(began_s + 0.1, "process", "11")[0] > 0.99
    assert node.looks.at(ended_s - 0.1, "process", "11")[0] > 0.99
    assert node.looks.at(began_s - 0.6) == (0.0, 0.0)
    assert node.looks.at(ended_s + 0.6) == (0.0, 0.0)
    assert node.looks.at(began_s + 0.7, "process", "11")[1] == pytest.approx(0.75, rel=0.1)


def test_what_page_faults_explain_is_not_this() -> None:
    node = Node()
    node.run(60.0)
    node.run(30.0, 0.25, faults=2_000.0)
    assert node.looks.signs == []


def test_faults_for_pages_from_swap_explain_nothing() -> None:
    node = Node()
    node.run(60.0)
    node.run(30.0, 0.25, faults=2_000.0, swapped_in=8_000.0)
    assert node.looks.at(node.at_s - 10.0, "process", "11")[0] > 0.99


def test_a_few_faults_explain_little() -> None:
    node = Node()
    node.run(60.0)
    node.run(30.0, 0.4, faults=150.0)
    assert node.looks.at(node.at_s - 10.0, "process", "11")[0] > 0.8


def test_what_was_waited_for_disks_is_page_faults_where_there_were_any() -> None:
    node = Node()
    node.run(60.0, disks=0.002)
    node.run(30.0, 0.2, faults=2.0, disks=0.2)
    assert max((sign.evidence for sign in node.looks.signs), default=0.0) < 0.05
    node.run(60.0, disks=0.002)
    node.looks.take()
    node.run(30.0, 0.2, faults=0.0, disks=0.2)
    assert node.looks.at(node.at_s - 10.0, "process", "11")[0] > 0.99


def test_disks_that_are_always_waited_for_explain_nothing() -> None:
    node = Node()
    node.run(60.0, disks=0.3)
    node.run(30.0, 0.2, faults=2.0, disks=0.3)
    assert node.looks.at(node.at_s - 10.0, "process", "11")[0] > 0.9


def test_a_cgroup_that_always_waits_is_none() -> None:
    node = Node()
    node.run(200.0, 0.3)
    assert node.looks.signs == []


def test_the_host_speaks_for_processes_whose_cgroup_does_not() -> None:
    node = Node(psi=False)
    node.run(30.0)
    assert node.looks.signs == []
    node.run(5.0, 0.3)
    assert node.looks.keys() == [("process", "11"), ("process", "12"), ("process", "21")]
    evidence, cap = node.looks.at(node.at_s - 1.5)
    assert evidence > 0.99
    assert cap == pytest.approx(0.375)
    node.run(2.0)
    node.looks.take()
    node.run(20.0)
    assert node.looks.signs == []


def test_what_other_cgroups_of_the_host_do_is_not_said_of_those_that_tell() -> None:
    node = Node()
    node.run(60.0)
    node.run(30.0, host=0.6, swapped_in=10_000.0)
    assert node.looks.signs == []


def test_of_the_host_where_no_process_is_known() -> None:
    node = Node(psi=False, processes=False)
    node.run(30.0)
    node.run(3.0, 0.2)
    assert node.looks.keys() == [("host", "")]


def test_swapped_pages_are_some_evidence() -> None:
    node = Node(psi=False)
    node.stage.drop(catalogue.HOST_PRESSURE)
    node.run(30.0, host=0.0)
    node.run(3.0, host=0.0, swapped_in=10_000.0)
    assert node.looks.at(node.at_s - 1.5)[0] == pytest.approx(0.7)
    node.run(2.0, host=0.0)
    node.looks.take()
    node.run(20.0, host=0.0)
    assert node.looks.signs == []


@pytest.mark.parametrize(("scope", "name"), [("host", "host"), ("process", "pid 12 VLLM::Worker_TP")])
def test_an_incident_confirms_what_is_weak(scope: str, name: str) -> None:
    node = Node()
    node.run(60.0)
    node.looks.incidents = [incident("memory_pressure", scope, name)]
    node.run(10.0)
    assert node.looks.signs == []
    node.run(30.0, 0.06)
    assert node.looks.at(node.at_s - 10.0, "process", "11")[0] == 0.8


def test_nothing_is_known() -> None:
    looks = Looks(MemoryPressure())
    Stage().run(looks, 30.0)
    assert looks.signs == []
