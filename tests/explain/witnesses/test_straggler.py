"""Signs of a rank that the others wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumon import catalogue as c
from gpumon.explain.witnesses.straggler import LateRank
from tests.detect.scenes import Stage, gpu
from tests.explain.witnesses.gpu_incidents import gpu_incident
from tests.explain.witnesses.looks import Looks
from tests.explain.witnesses.ranks import FIRST_PID, RANKS, TRANSFER_S, WORK_S, Job, Works, even, slow


class Rig:
    """A job whose ranks hold a GPU each."""

    def __init__(self, job: Job | None = None, *, held: bool = True) -> None:
        self.stage = Stage()
        self.looks = Looks(LateRank())
        self.job = Job() if job is None else job
        for rank in range(RANKS if held else 0):
            self.hold(rank, rank)

    def hold(self, rank: int, index: int) -> None:
        labels = (*gpu(index), str(FIRST_PID + rank), "w", "", "", "")
        self.stage.put({(c.PROCESS_GPU_MEMORY, labels): 7e10})

    def run(self, seconds: int, works: Works = even, *, every: int = 1) -> None:
        """every: one second in so many is told of."""
        for second in range(seconds):
            records = self.job.second(self.stage.at_ns, works)
            self.looks.step(self.stage.step(collectives=records if second % every == 0 else ()))


def running(job: Job | None = None, *, held: bool = True) -> Rig:
    rig = Rig(job, held=held)
    rig.run(10)
    assert rig.looks.take() == []
    return rig


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_gpu_of_the_late_rank_is_named_and_no_victim(rank: int) -> None:
    rig = running()
    began_s = rig.stage.at_s
    rig.run(5, slow(rank, 4.0))
    signs = rig.looks.take()
    assert {sign.key for sign in signs} == {("gpu", gpu(rank)[1])}
    assert {sign.evidence for sign in signs} == {1.0}
    # Of each round the others wait three times their work; between two seconds they rest a little.
    assert signs[-1].cap == pytest.approx(3 * WORK_S / (4 * WORK_S + TRANSFER_S), rel=0.03)
    assert began_s - 0.1 <= signs[0].start_s <= began_s + 0.1
    assert rig.stage.at_s - 0.2 <= signs[-1].end_s <= rig.stage.at_s
    rig.run(5)
    assert rig.looks.take() == []


def test_a_rank_that_is_a_little_late_has_little_evidence() -> None:
    rig = running()
    rig.run(5, slow(2, 1.02))
    assert rig.looks.take() == []
    rig.run(5, slow(2, 1.3))
    assert {sign.evidence for sign in rig.looks.take()} == {1.0}


def test_ranks_that_are_late_in_turn_are_none() -> None:
    rig = running()

    def in_turn(number: int) -> list[float]:
        return list(slow(number % RANKS, 4.0)(number))

    rig.run(10, in_turn)
    assert rig.looks.take() == []


def test_one_that_was_always_late_is_usual() -> None:
    rig = Rig()
    rig.run(60, slow(1, 2.0))
    assert rig.looks.take() == []


def test_one_that_stays_late_does_not_become_usual() -> None:
    rig = running()
    rig.run(300, slow(1, 2.0))
    rig.looks.take()
    rig.run(2, slow(1, 2.0))
    assert {sign.evidence for sign in rig.looks.take()} == {1.0}


def test_a_slow_job_is_judged_by_fewer_operations() -> None:
    rig = running()
    rig.run(9, slow(3, 12.0))  # four operations a second
    signs = rig.looks.take()
    assert {sign.key for sign in signs} == {("gpu", gpu(3)[1])}
    assert max(sign.end_s - sign.start_s for sign in signs) <= 6.0


def test_stretches_reach_over_seconds_that_are_not_told_of() -> None:
    rig = running()
    rig.run(12, slow(0, 4.0), every=3)
    signs = rig.looks.take()
    assert len(signs) == 4
    assert [later.start_s for later in signs[1:]] == [earlier.end_s for earlier in signs[:-1]]


def test_without_stamps_the_waiting_stands_for_the_time() -> None:
    rig = running(Job(stamps=False))
    rig.run(5, slow(1, 4.0))
    signs = rig.looks.take()
    assert {sign.key for sign in signs} == {("gpu", gpu(1)[1])}
    assert signs[-1].cap == pytest.approx(3 * WORK_S / (3 * WORK_S + TRANSFER_S), rel=0.02)


def test_a_process_with_several_gpus_or_none_is_named_itself() -> None:
    rig = running(held=False)
    rig.run(3, slow(1, 4.0))
    assert {sign.key for sign in rig.looks.take()} == {("process", str(FIRST_PID + 1))}
    rig.hold(1, 1)
    rig.hold(1, 2)
    rig.run(3, slow(1, 4.0))
    assert {sign.key for sign in rig.looks.take()} == {("process", str(FIRST_PID + 1))}


def test_where_the_late_rank_is_not_told_all_gpus_of_the_others_are_named() -> None:
    rig = running()
    plain = rig.job.second
    for _ in range(3):
        records = [replace(each, pid=0) if each.rank == 1 else each for each in plain(rig.stage.at_ns, slow(1, 4.0))]
        rig.looks.step(rig.stage.step(collectives=records))
    assert {sign.key for sign in rig.looks.take()} == {("gpu", gpu(index)[1]) for index in (0, 2, 3)}


def test_nothing_known_of_any_process_is_no_sign() -> None:
    rig = running(Job(pids=False))
    rig.run(5, slow(1, 4.0))
    assert rig.looks.take() == []


def test_an_open_incident_makes_a_weak_sign_sure() -> None:
    rig = running()
    rig.run(3, slow(1, 1.06))
    assert 0.1 < max(sign.evidence for sign in rig.looks.take()) < 0.5
    rig.looks.incidents = [gpu_incident("straggler", 1)]
    rig.run(3, slow(1, 1.06))
    assert max(sign.evidence for sign in rig.looks.take()) == 0.8
    rig.run(3)
    assert rig.looks.take() == []


@pytest.mark.parametrize("exec_s", [0.0, -1.0, 1e300])
def test_impossible_times_do_no_harm(exec_s: float) -> None:
    rig = running()
    for _ in range(5):
        records = [replace(each, exec_s=exec_s) for each in rig.job.second(rig.stage.at_ns)]
        rig.looks.step(rig.stage.step(collectives=records))
    for stop_ns in (-1, 1, 10**30):
        records = [replace(each, stop_ns=stop_ns) for each in rig.job.second(rig.stage.at_ns, slow(1, 4.0))]
        rig.looks.step(rig.stage.step(collectives=records))
    rig.run(5)


def test_communicators_that_come_and_go_are_forgotten() -> None:
    rig = Rig()
    for number in range(40):
        rig.job = Job(f"0x{number:x}")
        rig.run(2)
    witness = rig.looks.witness
    assert isinstance(witness, LateRank)
    assert len(witness._comms) <= 8
