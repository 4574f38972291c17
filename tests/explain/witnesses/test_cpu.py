"""Evidence of CPU starvation: each sign alone, over its own usual, when it was, and what it bounds."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.explain.witnesses.cpu import CpuStarvation
from tests.detect.processes import SAMPLE_S, Host, Process
from tests.detect.scenes import BEGIN_S, Stage
from tests.explain.witnesses.looks import Looks, incident

ALL = [("process", "41403"), ("process", "41404")]


def host(*, tells: str = "all") -> Host:
    """Two workers in one container, and another pod's process. tells: of which sign the kernel tells."""
    made = Host(Process(41_403, gpu=0), Process(41_404, gpu=1), Process(7, pod="other", container="x"))
    for process in made.processes:
        process.wait = process.wait if tells in ("all", "wait") else None
        process.throttled = process.throttled if tells in ("all", "throttled") else None
        process.stalled = process.stalled if tells in ("all", "stalled") else None
    return made


def starve(node: Host, share: float, *, tells: str = "all") -> None:
    """The two workers get less of what they want."""
    for process in node.processes[:2]:
        process.cpu = 1.3 * (1 - share)
        process.wait = 0.045 + 1.3 * share if tells in ("all", "wait") else None
        process.throttled = 0.7 * share if tells in ("all", "throttled") else None
        process.stalled = 0.01 + share if tells in ("all", "stalled") else None


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_two_starved_workers_are_found_with_the_share_that_they_did_not_get(share: float) -> None:
    node, looks = host(), Looks(CpuStarvation())
    node.run(looks, 60.0)
    assert looks.signs == []
    starve(node, share)
    node.run(looks, 20.0)
    assert looks.keys() == ALL
    evidence, cap = looks.at(node.stage.at_s - 8.0)
    assert evidence == 1.0
    assert share <= cap <= 1.25 * share
    steady = [sign.cap for sign in looks.signs if sign.start_s > BEGIN_S + 65.0]
    assert min(steady) >= share  # throttling alone says less
    starve(node, 0.0)
    node.run(looks, 5.0)
    looks.take()
    node.run(looks, 60.0)
    assert looks.signs == []


@pytest.mark.parametrize(("tells", "name"), [("wait", "runqueue_wait"), ("stalled", "cpu_pressure")])
def test_one_sign_alone_will_do(tells: str, name: str) -> None:
    node, looks = host(tells=tells), Looks(CpuStarvation())
    node.run(looks, 60.0)
    starve(node, 0.5, tells=tells)
    node.run(looks, 20.0)
    assert looks.keys() == ALL
    evidence, cap = looks.at(node.stage.at_s - 8.0)
    assert evidence == 1.0
    assert cap == pytest.approx(0.5, abs=0.05)
    assert {sign.fact.name for sign in looks.signs if sign.fact is not None} == {name}


def test_throttling_alone_will_do() -> None:
    node, looks = host(tells="throttled"), Looks(CpuStarvation())
    for process in node.processes:
        process.stalled = 0.01  # which tells when the cgroup is read
    node.run(looks, 60.0)
    for process in node.processes[:2]:
        process.throttled = 0.4
    node.run(looks, 20.0)
    assert looks.keys() == ALL
    assert looks.at(node.stage.at_s - 8.0) == pytest.approx((1.0, 0.4))


def test_a_server_that_always_waits_is_none() -> None:
    node, looks = host(), Looks(CpuStarvation())
    starve(node, 0.5)
    node.run(looks, 200.0)
    assert looks.signs == []


def test_on_a_crowded_host_what_is_taken_of_the_rest_counts() -> None:
    node, looks = host(tells="wait"), Looks(CpuStarvation())
    for process in node.processes:
        process.cpu, process.wait = 0.4, 0.6
    node.run(looks, 60.0)
    for process in node.processes:
        process.cpu, process.wait = 0.36, 0.64
    node.run(looks, 30.0)
    assert looks.signs == []
    for process in node.processes:
        process.cpu, process.wait = 0.15, 0.85
    node.run(looks, 20.0)
    assert looks.at(node.stage.at_s - 8.0) == pytest.approx((1.0, 0.85), abs=0.01)


def test_a_busier_server_waits_in_proportion() -> None:
    node, looks = host(), Looks(CpuStarvation())
    node.run(looks, 60.0)
    for process in node.processes:
        process.cpu, process.wait, process.stalled = 3.9, 0.135, 0.03
    node.run(looks, 60.0)
    assert looks.signs == []


def test_wait_without_weight_is_none() -> None:
    node, looks = host(tells="wait"), Looks(CpuStarvation())
    for process in node.processes:
        process.cpu, process.wait = 0.01, 0.0004
    node.run(looks, 60.0)
    for process in node.processes:
        process.wait = 0.015  # more than half of what it wants, and nothing
    node.run(looks, 30.0)
    assert looks.signs == []


@pytest.mark.parametrize("tells", ["wait", "stalled"])
def test_the_host_tells_when_in_the_five_seconds_it_was(tells: str) -> None:
    node, looks = host(tells=tells), Looks(CpuStarvation())

    def run(seconds: float, share: float) -> None:
        starve(node, share, tells=tells)
        for _ in range(round(seconds / SAMPLE_S)):
            node.stage.grow({(catalogue.HOST_PRESSURE, ("cpu", "some")): (0.02 + share) * SAMPLE_S})
            node.run(looks, SAMPLE_S, step_s=SAMPLE_S)

    run(62.0, 0.0)
    began_s = node.stage.at_s
    run(1.5, 0.9)
    ended_s = node.stage.at_s
    run(20.0, 0.0)
    assert looks.at(began_s + 0.1)[0] == 1.0
    assert looks.at(ended_s - 0.1)[0] == 1.0
    assert looks.at(began_s - 0.6) == (0.0, 0.0)
    assert looks.at(ended_s + 0.6) == (0.0, 0.0)
    # Not the fifth part of it that the mean of five seconds shows.
    assert looks.at(began_s + 0.7)[1] > 0.8


def test_an_incident_confirms_what_is_weak_for_the_whole_container() -> None:
    node, looks = host(), Looks(CpuStarvation())
    node.run(looks, 60.0)
    looks.incidents = [incident("cpu_starvation", "process", "pid 41404 VLLM::Worker_TP")]
    node.run(looks, 20.0)
    assert looks.signs == []
    for process in node.processes:
        process.stalled = 0.1
    node.run(looks, 20.0)
    assert looks.at(node.stage.at_s - 8.0, "process", "41403")[0] == 0.8
    assert 0 < looks.at(node.stage.at_s - 8.0, "process", "7")[0] < 0.4


def test_a_process_that_began_anew_has_no_past() -> None:
    node, looks = host(), Looks(CpuStarvation())
    node.run(looks, 60.0)
    node.end(node.processes[0])
    node.processes.append(Process(50_000, gpu=0))
    node.run(looks, 60.0)
    assert looks.signs == []


def test_nothing_is_known() -> None:
    looks = Looks(CpuStarvation())
    Stage().run(looks, 30.0)
    assert looks.signs == []


def test_processes_that_are_gone_are_forgotten() -> None:
    witness = CpuStarvation()
    node, looks = Host(), Looks(witness)
    for first in range(0, 400, 100):
        for process in [*node.processes]:
            node.end(process)
        node.processes = [Process(pid, pod=f"pod-{pid}") for pid in range(first + 1, first + 60)]
        node.run(looks, 30.0)
        starve(node, 0.9)
        node.run(looks, 12.0)
    assert looks.signs
    assert len(witness._waits) <= 256
    for process in [*node.processes]:
        node.end(process)
    node.run(looks, 70.0)
    assert len(witness._waits) == len(witness._groups) == len(witness._caps) == 0
    assert all(sign.start_s >= BEGIN_S for sign in looks.signs)
