"""The rank that the others wait for, and those that must not be blamed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Entity, Finding, Severity
from gpumon.detect.straggler import Straggler
from gpumon.ingest.nccl import CollectiveRecord
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence

RANKS = 8
WORK_S = 0.0006
"""Between two operations, of a rank that is well."""
TRANSFER_S = 0.0005
PER_STEP = 25
"""Operations per second."""

Works = Callable[[int], Sequence[float]]
"""Seconds of work before operation n, by rank."""


def test_what_is_told_of_it_is_complete() -> None:
    check_described(Straggler)


def test_numbers_of_operations_and_records_are_above_zero() -> None:
    for wrong in ({"operations": 0}, {"records": 0}):
        with pytest.raises(ValueError, match="above 0"):
            Straggler(**wrong)


def even(number: int) -> list[float]:
    chance = random.Random(number)
    return [WORK_S * (0.95 + 0.1 * chance.random()) for _ in range(RANKS)]


def slow(rank: int, times: float) -> Works:
    def works(number: int) -> list[float]:
        found = even(number)
        found[rank] *= times
        return found

    return works


class Job:
    """A tensor-parallel job: all ranks leave an operation together, and come to the next when their work is done."""

    def __init__(self, *, comm_id: str = "0x9e1f", transfer_s: float = TRANSFER_S, stamps: bool = True) -> None:
        self.comm_id = comm_id
        self.transfer_s = transfer_s
        self.stamps = stamps
        self.number = 0
        self.timing = "kernel_gpu"

    def records(self, begin_ns: int, works: Works, operations: int = PER_STEP) -> list[CollectiveRecord]:
        """Operations from a moment on, in the order in which they happened."""
        left_ns, found = begin_ns, []
        for _ in range(operations):
            starts = [left_ns + round(work_s * 1e9) for work_s in works(self.number)]
            left_ns = max(starts) + round(self.transfer_s * 1e9)
            for rank, start_ns in enumerate(starts):
                found.append(
                    CollectiveRecord(
                        self.comm_id,
                        "tp",
                        rank,
                        len(starts),
                        "AllReduce",
                        self.number,
                        1 << 20,
                        (left_ns - start_ns) / 1e9,
                        start_ns if self.stamps else 0,
                        left_ns if self.stamps else 0,
                        self.timing,
                        "n1",
                        4000 + rank,
                    )
                )
            self.number += 1
        return found


class Rig:
    """A stage, a detector and a job."""

    def __init__(self, **thresholds: float) -> None:
        self.stage = Stage()
        self.detector = Straggler(**thresholds)  # type: ignore[arg-type]  # whole numbers are given as such
        self.job = Job()

    def give(self, records: Iterable[CollectiveRecord] = (), step_s: float = 1.0) -> list[Finding]:
        return list(self.detector.step(self.stage.step(step_s, collectives=list(records))))

    def play(self, steps: int, works: Works, step_s: float = 1.0) -> list[Finding]:
        """Findings of the last step."""
        found: list[Finding] = []
        for _ in range(steps):
            found = self.give(self.job.records(self.stage.at_ns, works), step_s)
        return found


def test_one_rank_that_makes_seven_wait_is_found_with_its_figures() -> None:
    rig = Rig()
    rig.stage.put(
        {
            (catalogue.PROCESS_GPU_MEMORY, (str(rank), f"GPU-{rank:04d}", str(4000 + rank), "w", "", "", "")): 7e10
            for rank in range(RANKS)
        }
    )
    assert rig.play(30, even) == []
    (finding,) = rig.play(1, slow(5, 4.0))
    assert finding.entity == Entity("collective", "tp 0x9e1f rank 5", "5", "GPU-0005")
    assert finding.severity is Severity.WARNING
    assert finding.since_s == pytest.approx(BEGIN_S + 30, abs=0.1)
    share = evidence(finding, "wait_share").observed
    # The others wait three times the work, of which and the transfer their time in the operation is made.
    assert share == pytest.approx(3 * WORK_S / (3 * WORK_S + TRANSFER_S), abs=0.03)
    assert share >= 0.65
    assert evidence(finding, "wait_per_operation").observed == pytest.approx(3 * WORK_S, rel=0.05)
    gap = evidence(finding, "gap")
    assert gap.observed == pytest.approx(4 * WORK_S, rel=0.06)
    assert gap.baseline == pytest.approx(WORK_S, rel=0.06)
    assert finding.summary.startswith("rank 5 on gpu 5 comes last: the others wait 7")


@pytest.mark.parametrize("rank", range(RANKS))
def test_whichever_rank_it_is_the_victims_are_not_blamed(rank: int) -> None:
    rig = Rig()
    rig.play(5, even)
    found = rig.play(10, slow(rank, 5.0))
    assert [finding.entity.name for finding in found] == [f"tp 0x9e1f rank {rank}"]


def test_the_pair_of_two_ranks_has_one_straggler() -> None:
    rig = Rig()
    (finding,) = rig.play(3, lambda number: slow(1, 5.0)(number)[:2])
    assert finding.entity.name == "tp 0x9e1f rank 1"


def test_all_ranks_slow_is_a_slow_link_and_no_straggler() -> None:
    rig = Rig()
    rig.play(5, even)
    rig.job.transfer_s = 20 * TRANSFER_S
    assert rig.play(20, even) == []


def test_all_ranks_with_more_work_are_none() -> None:
    rig = Rig()
    assert rig.play(20, lambda number: [10 * work_s for work_s in even(number)]) == []


@pytest.mark.parametrize("times", [1.4, 1.9, 2.8])
def test_a_rank_that_is_a_little_late_is_none(times: float) -> None:
    rig = Rig()
    assert rig.play(20, slow(3, times)) == []


def test_a_late_rank_for_which_the_others_wait_a_third_of_their_time_is_none() -> None:
    rig = Rig()
    rig.job.transfer_s = 2 * 4 * WORK_S
    assert rig.play(20, slow(3, 5.0)) == []


def test_gaps_over_an_operation_that_is_missing_are_not_known() -> None:
    rig = Rig()
    found: list[Finding] = []
    for _ in range(4):
        records = rig.job.records(rig.stage.at_ns, slow(3, 5.0))
        found = rig.give(record for record in records if record.sequence % 2 == 0)
    assert [finding.severity for finding in found] == [Severity.INFO]


def test_ranks_that_are_late_by_turns_are_none() -> None:
    rig = Rig()
    assert rig.play(20, lambda number: slow(number // 10 % RANKS, 6.0)(number)) == []


def test_ranks_that_start_late_without_work_of_their_own_are_none() -> None:
    """What holds the last rank up lies between operations for all of them: an idle server, a slow scheduler."""
    rig = Rig()
    assert rig.play(20, lambda number: [0.05 + work_s for work_s in slow(2, 4.0)(number)]) == []


def test_a_server_that_idles_now_and_then_hides_no_straggler() -> None:
    rig = Rig()

    def works(number: int) -> list[float]:
        pause_s = 0.5 if number % 9 == 0 else 0.0
        return [pause_s + work_s for work_s in slow(2, 5.0)(number)]

    assert [finding.entity.name for finding in rig.play(4, works)] == ["tp 0x9e1f rank 2"]


def test_it_is_found_over_steps_of_few_operations_and_not_before_there_are_twenty() -> None:
    rig = Rig()
    found = [bool(rig.give(rig.job.records(rig.stage.at_ns, slow(1, 5.0), 5))) for _ in range(8)]
    assert found == [False] * 3 + [True] * 5


def test_it_is_over_when_the_rank_keeps_up_and_when_nothing_runs() -> None:
    rig = Rig()
    assert rig.play(3, slow(1, 5.0))
    assert rig.play(2, even) == []
    assert rig.play(3, slow(1, 5.0))
    assert all(rig.give() for _ in range(10))
    assert rig.give() == []


def test_a_moment_without_it_is_forgiven_and_it_began_when_it_began() -> None:
    rig = Rig()
    rig.play(5, slow(1, 5.0))
    rig.give(rig.job.records(rig.stage.at_ns, even, 5))
    (finding,) = rig.play(3, slow(1, 5.0))
    assert finding.since_s == pytest.approx(BEGIN_S, abs=0.1)


def test_another_rank_takes_over() -> None:
    rig = Rig()
    rig.play(5, slow(1, 5.0))
    (finding,) = rig.play(3, slow(6, 5.0))
    assert finding.entity.name == "tp 0x9e1f rank 6"
    assert finding.since_s == pytest.approx(BEGIN_S + 5, abs=0.1)


def test_ranks_whose_records_come_one_after_the_other_or_late_are_joined() -> None:
    rig = Rig()
    late: list[CollectiveRecord] = []
    found: list[Finding] = []
    for _ in range(6):
        records = rig.job.records(rig.stage.at_ns, slow(4, 5.0))
        by_rank = sorted(records, key=lambda record: -record.rank)
        found = rig.give([*late, *(record for record in by_rank if record.rank != 3)])
        late = [record for record in records if record.rank == 3]
    assert [finding.entity.name for finding in found] == ["tp 0x9e1f rank 4"]
    assert evidence(found[0], "gap").baseline == pytest.approx(WORK_S, rel=0.06)


def test_with_a_rank_missing_nothing_is_said() -> None:
    rig = Rig()
    for _ in range(10):
        records = rig.job.records(rig.stage.at_ns, slow(4, 5.0))
        assert rig.give(record for record in records if record.rank != 7) == []


def test_what_was_timed_on_the_host_is_left_out() -> None:
    rig = Rig()
    rig.job.timing = "collective_cpu"
    assert rig.play(10, slow(4, 5.0)) == []


def test_without_stamps_the_waiting_alone_decides_and_it_is_informative() -> None:
    rig = Rig()
    rig.job.stamps = False
    (finding,) = rig.play(3, slow(4, 5.0))
    assert finding.severity is Severity.INFO
    assert finding.entity.name == "tp 0x9e1f rank 4"
    assert "gap" not in {figure.name for figure in finding.evidence}
    rig = Rig()
    rig.job.stamps = False
    assert rig.play(10, even) == []


def test_a_process_on_no_gpu_or_on_several_names_none() -> None:
    rig = Rig()
    rig.stage.put(
        {(catalogue.PROCESS_GPU_MEMORY, (str(gpu), f"GPU-{gpu:04d}", "4001", "w", "", "", "")): 1e9 for gpu in range(2)}
    )
    (finding,) = rig.play(3, slow(1, 5.0))
    assert (finding.entity.gpu, finding.entity.uuid) == ("", "")


def test_communicators_do_not_mix() -> None:
    rig, other = Rig(), Job(comm_id="0xbbbb")
    for _ in range(4):
        records = rig.job.records(rig.stage.at_ns, slow(1, 5.0))
        found = rig.give([*records, *other.records(rig.stage.at_ns, even)])
    assert [finding.entity.name for finding in found] == ["tp 0x9e1f rank 1"]


def test_two_kinds_of_operation_by_turns_are_followed() -> None:
    rig = Rig()
    for _ in range(4):
        records = rig.job.records(rig.stage.at_ns, slow(1, 5.0))
        # Each kind is counted by itself.
        turned = [
            replace(record, collective=("AllReduce", "AllGather")[record.sequence % 2], sequence=record.sequence // 2)
            for record in records
        ]
        found = rig.give(turned)
    (finding,) = found
    assert evidence(finding, "gap").baseline == pytest.approx(WORK_S, rel=0.06)


def test_of_too_many_records_whole_blocks_are_left_out_and_it_is_still_found() -> None:
    rig = Rig(records=1000)
    found: list[Finding] = []
    for _ in range(3):
        records = rig.job.records(rig.stage.at_ns, slow(1, 5.0), 640)
        found = rig.give(sorted(records, key=lambda record: record.rank))
    (finding,) = found
    assert 20 <= evidence(finding, "operations").observed <= 640
    assert evidence(finding, "gap").baseline == pytest.approx(WORK_S, rel=0.06)


def test_what_waits_for_ranks_that_never_come_takes_bounded_room() -> None:
    rig = Rig(records=1_000_000)
    records = rig.job.records(rig.stage.at_ns, even, 1200)
    for comm in range(10):
        rig.give(replace(record, comm_id=f"0x{comm}") for record in records if record.rank < 7)
    assert len(rig.detector._comms) == 8
    waiting = [sum(len(ranks) for ranks in comm.waiting.values()) for _, comm in rig.detector._comms.items()]
    assert max(waiting) <= 8192
    assert [comm.records for _, comm in rig.detector._comms.items()] == waiting
    huge = [replace(record, n_ranks=1 << 30, comm_id="0xhuge") for record in records]
    assert rig.give(huge) == []


def test_the_same_record_twice_counts_once() -> None:
    rig = Rig()
    found: list[Finding] = []
    for _ in range(3):
        records = rig.job.records(rig.stage.at_ns, slow(1, 5.0))
        found = rig.give([record for record in records for _ in range(2)])
    assert [finding.entity.name for finding in found] == ["tp 0x9e1f rank 1"]
    assert evidence(found[0], "operations").observed == 3 * PER_STEP


def test_operations_of_no_length_are_no_waiting() -> None:
    rig = Rig()
    records = [replace(record, exec_s=0.0) for record in rig.job.records(rig.stage.at_ns, slow(1, 5.0), 60)]
    assert rig.give(records) == []


def test_a_communicator_that_is_gone_is_forgotten() -> None:
    rig = Rig()
    rig.play(3, slow(1, 5.0))
    for _ in range(130):
        rig.give()
    assert len(rig.detector._comms) == 0
