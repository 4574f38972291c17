"""Signs of another process that computes on a server's GPU."""

from __future__ import annotations

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.contention import Contention
from gpumon.model import Unit
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks

SERVER = ("41403", "VLLM::Worker_TP", "inference", "llama-0", "vllm")
SIBLING = ("41409", "VLLM::EngineCor", "inference", "llama-0", "vllm")
JOB = ("61000", "python3", "research", "embed-x7k2p", "embed")
KEY = ("gpu", gpu()[1])


class Shared:
    """One GPU, whose processes are told every 2 s."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.looks = Looks(Contention())

    def run(self, seconds: int, **sms: float) -> None:
        """sms: SM share of ``server``, ``sibling`` and ``job``, of those that are there."""
        self.stage.drop(c.PROCESS_GPU_MEMORY, c.PROCESS_GPU_SM)
        for name, sm in sms.items():
            process, used = {"server": (SERVER, 120e9), "sibling": (SIBLING, 1e9), "job": (JOB, 6e9)}[name]
            self.stage.put(
                {(c.PROCESS_GPU_MEMORY, (*gpu(), *process)): used, (c.PROCESS_GPU_SM, (*gpu(), *process)): sm},
                owner="holders",
            )
        for step in range(seconds):
            self.stage.silent = set() if step % 2 == 0 else {"holders"}
            self.looks.step(self.stage.step())


def serving() -> Shared:
    shared = Shared()
    shared.run(20, server=0.5)
    assert shared.looks.take() == []
    return shared


def test_another_process_is_a_sign_as_soon_as_it_is_told_of() -> None:
    shared = serving()
    began_s = shared.stage.at_s
    shared.run(10, server=0.45, job=0.15)
    signs = shared.looks.take()
    assert {sign.key for sign in signs} == {KEY}
    assert signs[0].end_s == began_s + 1.0
    assert signs[0].start_s == began_s - 1.0  # the reading before
    assert {sign.evidence for sign in signs} == {1.0}
    assert signs[0].cap == pytest.approx(0.25)
    assert signs[0].fact == ("others_sm", 0.15, Unit.RATIO, None)
    shared.run(10, server=0.5)
    ended = shared.looks.take()
    assert [sign.evidence for sign in ended] == [1.0]  # it may have gone on until it was seen to be gone
    assert ended[0].end_s - ended[0].start_s == 2.0


def test_the_servers_own_processes_are_none() -> None:
    shared = serving()
    shared.run(20, server=0.45, sibling=0.3)
    assert shared.looks.take() == []


def test_a_small_share_is_none_however_idle_the_server_is() -> None:
    shared = serving()
    shared.run(20, server=0.5, job=0.015)
    shared.run(20, server=0.001, job=0.02)
    assert shared.looks.take() == []


def test_a_neighbour_that_was_always_there_is_usual() -> None:
    shared = Shared()
    shared.run(60, server=0.4, job=0.3)
    assert shared.looks.take() == []
    shared.run(10, server=0.2, job=0.6)
    assert max(sign.evidence for sign in shared.looks.take()) == 1.0


def test_one_that_stays_does_not_become_usual() -> None:
    shared = serving()
    shared.run(600, server=0.4, job=0.3)
    shared.looks.take()
    shared.run(2, server=0.4, job=0.3)
    assert [sign.evidence for sign in shared.looks.take()] == [1.0]


def test_without_shares_nothing_is_said() -> None:
    shared = serving()
    shared.run(10)
    for process in (SERVER, JOB):
        shared.stage.put({(c.PROCESS_GPU_MEMORY, (*gpu(), *process)): 6e9}, owner="holders")
    for _ in range(10):
        shared.stage.silent = set()
        shared.looks.step(shared.stage.step())
    assert shared.looks.take() == []


def test_an_open_incident_makes_a_weak_sign_sure() -> None:
    shared = serving()
    shared.run(4, server=0.5, job=0.029)
    weak = [sign.evidence for sign in shared.looks.take()]
    assert 0.1 < max(weak) < 0.5
    shared.looks.incidents = [gpu_incident("gpu_contention")]
    shared.run(4, server=0.5, job=0.029)
    assert max(sign.evidence for sign in shared.looks.take()) == 0.8


@pytest.mark.parametrize("sm", [-1.0, 1e300, 5.0])
def test_impossible_shares_do_no_harm(sm: float) -> None:
    shared = serving()
    shared.run(10, server=sm, job=sm)
    shared.run(10, server=0.0, job=sm)
    shared.run(10, server=0.5)


def test_gpus_that_come_and_go_are_forgotten() -> None:
    stage, witness = Stage(), Contention()
    for index in range(200):
        stage.drop(c.PROCESS_GPU_MEMORY, c.PROCESS_GPU_SM)
        labels = (*gpu(index), *SERVER)
        stage.put({(c.PROCESS_GPU_MEMORY, labels): 1e9, (c.PROCESS_GPU_SM, labels): 0.5})
        list(witness.look(stage.step(), ()))
    assert len(witness._gpus) <= 64
