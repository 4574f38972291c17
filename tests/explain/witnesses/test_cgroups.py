"""Readings of cgroups: which are new, and of whom they are said."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Finding, IncidentKind
from gpumon.detect.scene import Scene
from gpumon.explain.witnesses.cgroups import THROTTLED, CgroupReadings, Reading
from tests.detect.processes import Host, Process
from tests.detect.scenes import Stage


class Reads:
    """In the place of a detector."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = ()
    thresholds: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.of = CgroupReadings()
        self.found: list[Reading] = []

    def step(self, scene: Scene) -> list[Finding]:
        self.found += self.of.step(scene)
        return []


def test_each_reading_comes_once_and_for_all_processes_of_the_container() -> None:
    node, reads = Host(Process(1, throttled=0.2), Process(2, throttled=0.2), Process(3, pod="x")), Reads()
    node.run(reads, 31.0)
    ours = [reading for reading in reads.found if reading.group == ("llm", "vllm-0", "server")]
    assert len(ours) == 6
    assert all(reading.pids == ("1", "2") for reading in ours)
    assert all(reading.end_s - reading.start_s == pytest.approx(5.0) for reading in ours)
    assert all(before.end_s == after.start_s for before, after in pairwise(ours))
    assert ours[-1].per_s[THROTTLED] == pytest.approx(0.2)
    assert ours[-1].per_s["cpu some"] == pytest.approx(0.01)
    assert reads.of.told == {"1", "2", "3"}


def test_a_cgroup_in_which_nothing_moves_is_read_as_well() -> None:
    node = Host(Process(1, throttled=0.0, stalled=0.0, memory_some=0.0, memory_full=0.0))
    reads = Reads()
    node.run(reads, 40.0)
    assert reads.found
    assert all(set(reading.per_s.values()) == {0.0} for reading in reads.found)
    assert all(reading.end_s - reading.start_s >= 12.0 for reading in reads.found)


def test_a_container_goes_on_when_the_process_that_was_read_is_gone() -> None:
    node, reads = Host(Process(1), Process(2)), Reads()
    node.run(reads, 20.0)
    node.end(node.processes[0])
    reads.found.clear()
    node.run(reads, 20.0)
    assert reads.found
    assert all(reading.pids == ("2",) for reading in reads.found)


def test_a_counter_that_began_anew_is_no_reading() -> None:
    stage, reads = Stage(), CgroupReadings()
    labels = ("1", "x", "", "", "")
    found = []
    for value in (5.0, 6.0, 1.0, 2.0):
        stage.put({(catalogue.PROCESS_CPU_THROTTLED, labels): value})
        found += [reading.per_s[THROTTLED] for reading in reads.step(stage.step(5.0))]
    assert found == [pytest.approx(0.2), pytest.approx(0.2)]


def test_what_is_gone_is_forgotten() -> None:
    stage, reads = Stage(), CgroupReadings()
    stage.put({(catalogue.PROCESS_CPU_THROTTLED, (str(pid), "x", "", "", "")): 1.0 for pid in range(50)})
    reads.step(stage.step())
    stage.drop(catalogue.PROCESS_CPU_THROTTLED)
    assert reads.step(stage.step()) == []
    assert reads._last == {}
