"""Operations put together from the records of their ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.explain.witnesses.collectives import Joiner
from gpumon.ingest.nccl import CollectiveRecord
from tests.detect.scenes import Stage
from tests.explain.witnesses.ranks import RANKS, TRANSFER_S, WORK_S, Job


def test_all_ranks_of_an_operation_are_put_together_and_timed() -> None:
    stage, joiner, job = Stage(), Joiner(), Job()
    records = job.second(stage.at_ns)
    (operations,) = joiner.join(stage.step(collectives=records)).values()
    assert len(operations) * RANKS == len(records)
    assert all(len(operation.ranks) == RANKS for operation in operations)
    assert operations[0].since_s is None
    for operation in operations[1:]:
        assert operation.since_s == pytest.approx(WORK_S + TRANSFER_S, rel=0.02)


def test_ranks_whose_records_come_later_are_waited_for() -> None:
    stage, joiner, job = Stage(), Joiner(), Job()
    records = job.second(stage.at_ns)
    early = [record for record in records if record.rank < 2]
    late = [record for record in records if record.rank >= 2]
    assert joiner.join(stage.step(collectives=early)) == {}
    (operations,) = joiner.join(stage.step(collectives=late)).values()
    assert len(operations) * RANKS == len(records)


def test_an_operation_after_a_gap_has_no_time() -> None:
    stage, joiner, job = Stage(), Joiner(), Job()
    joiner.join(stage.step(collectives=job.second(stage.at_ns)))
    job.second(stage.at_ns)  # lost
    (operations,) = joiner.join(stage.step(collectives=job.second(stage.at_ns))).values()
    assert [operation.since_s is None for operation in operations].count(True) == 1


def test_kinds_of_operations_are_numbered_apart() -> None:
    stage, joiner = Stage(), Joiner()
    jobs = [Job(collective=name) for name in ("AllReduce", "AllGather")]
    records = [record for job in jobs for record in job.second(stage.at_ns)]
    (operations,) = joiner.join(stage.step(collectives=records)).values()
    assert [operation.since_s is None for operation in operations].count(True) == 2


def test_operations_of_a_communicator_without_stamps_have_no_times() -> None:
    stage, joiner = Stage(), Joiner()
    (operations,) = joiner.join(stage.step(collectives=Job(stamps=False).second(stage.at_ns))).values()
    assert {operation.since_s for operation in operations} == {None}


def test_records_timed_on_the_host_and_of_huge_or_lone_communicators_are_left_out() -> None:
    stage, joiner, job = Stage(), Joiner(), Job()
    job.timing = "collective_cpu"
    assert joiner.join(stage.step(collectives=job.second(stage.at_ns))) == {}
    job.timing = "kernel_gpu"
    for ranks in (0, 1, 65, 10**9):
        records = [replace(record, n_ranks=ranks) for record in job.second(stage.at_ns)]
        assert joiner.join(stage.step(collectives=records)) == {}


def test_what_is_incomplete_is_bounded() -> None:
    stage, joiner = Stage(), Joiner(records=100_000)
    record = Job().second(stage.at_ns)[0]
    for begin in range(0, 30_000, 10_000):
        records = [replace(record, sequence=begin + number) for number in range(10_000)]
        assert joiner.join(stage.step(collectives=records)) == {}
    (comm,) = [comm for _, comm in joiner._comms.items()]
    assert comm.records == len(comm.waiting) == 8192


def test_of_too_many_records_whole_blocks_are_looked_at() -> None:
    stage, joiner, job = Stage(), Joiner(records=500), Job()
    records = [record for _ in range(20) for record in job.second(stage.at_ns)]
    (operations,) = joiner.join(stage.step(collectives=records)).values()
    assert 0 < len(operations) * RANKS <= 1000
    timed = [operation for operation in operations if operation.since_s is not None]
    assert len(timed) >= 0.9 * len(operations)


_RECORDS = st.builds(
    CollectiveRecord,
    comm_id=st.sampled_from(("a", "b")),
    comm_name=st.just(""),
    rank=st.integers(-2, 3),
    n_ranks=st.integers(0, 3),
    collective=st.sampled_from(("AllReduce", "Send")),
    sequence=st.integers(-3, 6),
    size_bytes=st.just(0),
    exec_s=st.floats(-1, 10),
    start_ns=st.integers(-5, 5),
    stop_ns=st.integers(-5, 10**19),
    timing=st.just(""),
    host=st.just(""),
    pid=st.integers(0, 3),
)


@given(st.lists(st.lists(_RECORDS, max_size=30), max_size=4))
def test_whatever_is_told_operations_are_whole_and_their_times_positive(looks: list[list[CollectiveRecord]]) -> None:
    stage, joiner = Stage(), Joiner()
    for records in looks:
        for operations in joiner.join(stage.step(collectives=records)).values():
            for operation in operations:
                assert len(operation.ranks) >= min(record.n_ranks for record in operation.ranks.values())
                assert operation.since_s is None or operation.since_s > 0
