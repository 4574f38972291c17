"""Evidence of stopped processes: stops of half a second at any phase, shares, frozen ones, and those that idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon import catalogue
from gpumon.explain.witnesses.stopped import Stopped
from tests.detect.processes import Host, Process
from tests.detect.scenes import BEGIN_S, Stage, gpu
from tests.explain.witnesses.looks import Looks, incident

LABELS = ("41403", "VLLM::Worker_TP", "llm", "vllm-0", "server")


def host() -> Host:
    return Host(Process(41_403, gpu=0), Process(41_404, gpu=1))


def test_a_stopped_process_has_all_evidence_and_the_others_none() -> None:
    node, looks = host(), Looks(Stopped())
    node.run(looks, 20.0)
    assert looks.signs == []
    node.processes[0].stopped = True
    node.run(looks, 5.0)
    assert looks.keys() == [("process", "41403")]
    assert all(looks.at(BEGIN_S + at_s) == (1.0, 1.0) for at_s in (20.1, 21.3, 23.0, 24.9))
    node.processes[0].stopped = False
    node.run(looks, 1.0)
    looks.take()
    node.run(looks, 20.0)
    assert looks.signs == []


@given(begin_s=st.floats(20.0, 22.0), lasts_s=st.floats(0.5, 3.0))
def test_every_moment_of_a_stop_of_half_a_second_is_covered(begin_s: float, lasts_s: float) -> None:
    stage, looks = Stage(), Looks(Stopped())
    was = False
    for half in range(1, 60):
        is_stopped = begin_s <= half * 0.5 <= begin_s + lasts_s
        # As the source counts: half of the time to each of the two looks.
        stage.grow({(catalogue.PROCESS_STOPPED_SECONDS, LABELS): (was + is_stopped) / 2 * 0.5})
        was = is_stopped
        scene = stage.step(0.5)
        if half % 2 == 0:
            looks.step(scene)
    for part in range(11):
        assert looks.at(BEGIN_S + begin_s + (lasts_s - 1e-6) * part / 10) == (1.0, 1.0)
    # And no more than a look's time around it.
    assert looks.at(BEGIN_S + begin_s - 0.51) == (0.0, 0.0)
    assert looks.at(BEGIN_S + begin_s + lasts_s + 0.51) == (0.0, 0.0)


def test_of_looks_that_are_far_apart_the_share_counts_double() -> None:
    stage, looks = Stage(), Looks(Stopped())
    for amount in (0.0, 0.0, 2.0, 0.0):
        stage.grow({(catalogue.PROCESS_STOPPED_SECONDS, LABELS): amount})
        looks.step(stage.step(10.0))
    (sign,) = looks.signs
    assert (sign.evidence, sign.cap) == pytest.approx((0.4, 0.4))
    assert sign.fact is not None
    assert sign.fact.observed == pytest.approx(2.0)


def test_a_frozen_one_is_seen_where_a_detector_found_it() -> None:
    node, looks = host(), Looks(Stopped())
    node.run(looks, 20.0)
    for process in node.processes:
        process.cpu = 0.0
    node.run(looks, 5.0)
    assert looks.signs == []  # it may just have nothing to do
    looks.incidents = [incident("process_stopped", "process", "pid 41404 VLLM::Worker_TP")]
    node.run(looks, 2.0)
    # One container, one freezer.
    assert looks.keys() == [("process", "41403"), ("process", "41404")]
    assert looks.at(BEGIN_S + 26.5) == (0.8, 1.0)
    looks.take()
    for process in node.processes:
        process.cpu = 1.3
    node.run(looks, 5.0)
    assert looks.signs == []


@pytest.mark.parametrize(
    "other",
    [
        incident("process_stopped", "process", "pid 41403 x", closed_s=1.0),
        incident("cpu_starvation", "process", "pid 41403 x"),
        incident("process_stopped", "process", "pid 77 x"),
        incident("process_stopped", "process", "what"),
        incident("process_stopped", "process", ""),
    ],
)
def test_incidents_of_others_say_nothing(other: object) -> None:
    node, looks = host(), Looks(Stopped())
    node.run(looks, 20.0)
    looks.incidents = [other]  # type: ignore[list-item]
    node.processes[0].cpu = 0.0
    node.run(looks, 5.0)
    assert looks.signs == []


def test_one_that_never_used_a_cpu_is_not_still() -> None:
    node, looks = Host(Process(41_403, cpu=0.0)), Looks(Stopped())
    looks.incidents = [incident("process_stopped", "process", "pid 41403 x")]
    node.run(looks, 40.0)
    assert looks.signs == []


def test_nothing_is_known() -> None:
    stage, looks = Stage(), Looks(Stopped())
    stage.run(looks, 10.0)
    stage.put({(catalogue.GPU_SM_ACTIVE, gpu()): 0.0})
    stage.run(looks, 10.0)
    assert looks.signs == []


def test_processes_that_are_gone_are_forgotten() -> None:
    stage, witness = Stage(), Stopped()
    looks = Looks(witness)
    for first in range(0, 600, 150):
        stage.drop(catalogue.PROCESS_CPU_SECONDS)
        stage.put({(catalogue.PROCESS_CPU_SECONDS, (str(pid), *LABELS[1:])): 1.0 for pid in range(first, first + 60)})
        stage.run(looks, 3.0)
    assert len(witness._cpus) <= 256
    stage.drop(catalogue.PROCESS_CPU_SECONDS)
    stage.run(looks, 70.0)
    assert len(witness._cpus) == 0
