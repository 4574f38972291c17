"""Evidence of memory and CPUs on the wrong socket: over the process's usual, when it began, and what it bounds."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.numa import NumaRemote
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.looks import Looks, incident

READ_S = 10
"""Seconds between two readings."""


def labels(pid: int) -> tuple[str, ...]:
    return (str(pid), "VLLM::Worker_TP", "llm", "vllm-0", "server")


class Node:
    """Two processes on two sockets, whose pages are looked at every ten seconds."""

    def __init__(self, *, misses: bool = True, nodes: int = 2, gpus: tuple[int, ...] = (0,)) -> None:
        self.stage = Stage()
        self.witness = NumaRemote()
        self.looks = Looks(self.witness)
        self.misses = misses
        self.gpus = gpus
        self._seconds = 0
        self.stage.put({(catalogue.HOST_MEMORY, (str(node), "free")): 1e9 for node in range(nodes)})

    @property
    def at_s(self) -> float:
        return self.stage.at_s

    def run(self, seconds: int, *, pages: float | None = 0.98, cpus: float | None = None, missed: float = 20.0) -> None:
        """pages, cpus: shares near the GPUs, of pid 11; pid 12 stays as it was. missed: pages per second."""
        for _ in range(seconds):
            self._seconds += 1
            reads = self._seconds % READ_S == 0
            if reads:
                for index in self.gpus:
                    for metric, value in (
                        (catalogue.PROCESS_NUMA_LOCAL, pages),
                        (catalogue.PROCESS_CPUS_LOCAL, cpus),
                    ):
                        if value is not None:
                            self.stage.put({(metric, (*gpu(index), *labels(11))): value}, owner="numa")
                self.stage.put({(catalogue.PROCESS_NUMA_LOCAL, (*gpu(1), *labels(12))): 0.98}, owner="numa")
            self.stage.silent = set() if reads else {"numa"}
            if self.misses:
                self.stage.grow({(catalogue.HOST_NUMA_PAGES, ("0", "miss")): missed})
                self.stage.grow({(catalogue.HOST_NUMA_PAGES, ("0", "hit")): 1e5})
            self.looks.step(self.stage.step())


def test_pages_that_went_away_are_found_from_when_they_missed_their_node() -> None:
    node = Node()
    node.run(64)
    began_s = node.at_s
    node.run(34, pages=0.5, missed=2_000.0)
    ended_s = node.at_s
    node.run(40)
    assert node.looks.keys() == [("process", "11")]
    assert node.looks.at(began_s - 0.5) == (0.0, 0.0)
    evidence, cap = node.looks.at(began_s + 0.5)
    assert evidence == 1.0
    assert cap == pytest.approx(0.96 / 1.96)
    assert node.looks.at(ended_s - 0.5)[0] == 1.0
    assert node.looks.at(ended_s + 0.5) == (0.0, 0.0)
    (fact,) = {sign.fact for sign in node.looks.signs}
    assert fact is not None
    assert (fact.name, fact.observed, fact.usual) == ("local_pages", 0.5, 0.98)


def test_pages_that_never_missed_are_found_from_the_reading_on_until_they_are_back() -> None:
    node = Node()
    node.run(64)
    node.run(40, pages=0.3)
    assert node.looks.at(1_069.0) == (0.0, 0.0)
    assert node.looks.at(1_070.5)[0] == 1.0
    assert node.looks.at(node.at_s - 0.5)[0] == 1.0
    node.run(10)
    node.looks.take()
    node.run(30)
    assert node.looks.signs == []


def test_without_counters_of_misses_it_began_in_the_middle() -> None:
    node = Node(misses=False)
    node.run(60)
    node.run(20, pages=0.3)
    assert node.looks.at(1_064.5) == (0.0, 0.0)
    assert node.looks.at(1_065.5)[0] == 1.0


def test_a_process_that_was_always_remote_is_none() -> None:
    node = Node()
    node.run(200, pages=0.4)
    assert node.looks.signs == []


@pytest.mark.parametrize("pages", [0.9, 0.85])
def test_a_little_less_is_none(pages: float) -> None:
    node = Node()
    node.run(60)
    node.run(60, pages=pages)
    assert node.looks.signs == []


def test_cpus_of_the_other_socket_are_found() -> None:
    node = Node()
    node.run(60, cpus=1.0)
    node.run(30, cpus=0.0)
    assert node.looks.at(node.at_s - 1.5) == pytest.approx((1.0, 2 / 3))


def test_one_that_may_run_anywhere_is_none() -> None:
    node = Node()
    node.run(60, cpus=1.0)
    node.run(60, cpus=0.5)
    assert node.looks.signs == []


def test_without_the_number_of_nodes_cpus_say_nothing() -> None:
    node = Node(nodes=0)
    node.run(60, cpus=1.0)
    node.run(60, cpus=0.0)
    assert node.looks.signs == []


def test_what_is_near_any_of_its_gpus_is_near() -> None:
    node = Node(gpus=(0, 1))
    for index in (0, 1):
        row = dict.fromkeys(catalogue.GPU_INFO.labels, "")
        row |= {"gpu": gpu(index)[0], "uuid": gpu(index)[1], "numa_node": str(index)}
        node.stage.put({(catalogue.GPU_INFO, tuple(row.values())): 1.0})
    node.run(60, pages=0.5)
    node.run(60, pages=0.45)
    assert node.looks.signs == []
    node.run(30, pages=0.2)
    assert node.looks.at(node.at_s - 1.5)[0] == 1.0


def test_an_incident_confirms_what_is_weak() -> None:
    node = Node()
    node.run(60)
    node.looks.incidents = [incident("numa_remote", "process", "pid 12 VLLM::Worker_TP")]
    node.run(30, pages=0.76)
    assert node.looks.at(node.at_s - 1.5, "process", "11")[0] == 0.8
    assert node.looks.at(node.at_s - 1.5, "process", "12")[0] == 0.0


def test_no_reading_is_no_sign() -> None:
    node = Node()
    node.run(60)
    node.run(20, pages=0.3)
    node.stage.drop_owner("numa")
    node.looks.take()
    for _ in range(70):
        node.looks.step(node.stage.step())
    assert node.looks.signs == []
    assert len(node.witness._shares) == 0


def test_many_processes_are_bounded() -> None:
    stage, witness = Stage(), NumaRemote()
    looks = Looks(witness)
    for first in range(0, 900, 200):
        stage.drop(catalogue.PROCESS_NUMA_LOCAL)
        stage.put(
            {(catalogue.PROCESS_NUMA_LOCAL, (*gpu(), *labels(pid))): 0.5 for pid in range(first, first + 60)},
        )
        stage.run(looks, 3.0)
    assert len(witness._shares) <= 512


def test_nothing_is_known() -> None:
    looks = Looks(NumaRemote())
    Stage().run(looks, 30.0)
    assert looks.signs == []
