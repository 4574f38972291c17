"""Whom an incident concerns: what is known of its GPUs, process, rank, servers and tenants, and nothing else."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.concerned import NOTHING, SERVERS_MAX, TENANTS_MAX, Concerned, Knowing, Ran, Rank
from gpumon.ingest.nccl import CollectiveRecord
from tests.detect.scenes import Stage, gpu

WORKER = ("41222", "VLLM::Worker_TP", "llm", "vllm-0", "server")


def collective(pid: int, rank: int, comm: str = "0x1", name: str = "tp0") -> CollectiveRecord:
    return CollectiveRecord(comm, name, rank, 4, "AllReduce", 1, 1, 0.001, pid=pid)


def knowing(*held: tuple[int, tuple[str, ...]], collectives: tuple[CollectiveRecord, ...] = ()) -> Knowing:
    """On a node of four GPUs, some of which are held by processes."""
    stage = Stage()
    stage.put({(catalogue.GPU_PRESENT, gpu(index)): 1.0 for index in range(4)})
    stage.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *labels)): 1e9 for index, labels in held})
    found = Knowing()
    found.look(stage.step(1.0), collectives)
    return found


def test_of_a_gpu_the_process_that_holds_it_alone_is_told_with_its_rank() -> None:
    node = knowing((2, WORKER), collectives=(collective(41222, 2), collective(41222, 2), collective(7, 0)))
    found = node.of(NOTHING, "gpu", "gpu 2", gpu(2)[1], "2")
    assert found == Concerned(("2",), "41222", "VLLM::Worker_TP", Rank("tp0 0x1", 2))


def test_of_a_gpu_that_several_hold_no_process_is_told() -> None:
    node = knowing((2, WORKER), (2, ("99", "python", "", "", "")))
    assert node.of(NOTHING, "gpu", "gpu 2", gpu(2)[1], "2") == Concerned(("2",))


def test_of_a_process_name_and_all_gpus_are_told() -> None:
    node = knowing((0, WORKER), (3, WORKER))
    found = node.of(NOTHING, "process", "pid 41222 VLLM::Worker_TP", "", "")
    assert (found.gpus, found.pid, found.process, found.rank) == (("0", "3"), "41222", "VLLM::Worker_TP", None)


@pytest.mark.parametrize(
    "told",
    [
        (collective(41222, 0), collective(41222, 1)),
        (collective(41222, 0), collective(41222, 0, "0x2"), collective(41222, 0)),
    ],
)
def test_a_process_of_several_ranks_has_none(told: tuple[CollectiveRecord, ...]) -> None:
    node = knowing((0, WORKER), collectives=told)
    assert node.of(NOTHING, "process", "pid 41222 VLLM::Worker_TP", "", "").rank is None


def test_a_pid_of_collectives_that_holds_no_gpu_here_is_somebody_elses() -> None:
    node = knowing(collectives=(collective(41222, 2),))
    found = node.of(NOTHING, "process", "pid 41222 VLLM::Worker_TP", "", "")
    assert (found.rank, found.gpus) == (None, ())


def test_of_a_collective_the_rank_is_told_and_the_process_by_its_gpu() -> None:
    found = knowing((1, WORKER)).of(NOTHING, "collective", "tp1 0x00070001 rank 2", gpu(1)[1], "1")
    assert found == Concerned(("1",), "41222", "VLLM::Worker_TP", Rank("tp1 0x00070001", 2))
    unknown = knowing().of(NOTHING, "collective", "tp1 0x00070001 rank 2", "", "")
    assert unknown == Concerned(rank=Rank("tp1 0x00070001", 2))


@pytest.mark.parametrize(
    ("scope", "name"), [("host", "host"), ("tenant", "pid 1 x"), ("server", "vllm/m"), ("process", "nobody"), ("", "")]
)
def test_of_others_nothing_is_told(scope: str, name: str) -> None:
    assert knowing((0, WORKER), collectives=(collective(1, 1),)).of(NOTHING, scope, name, "", "") == NOTHING


def test_what_is_known_once_stays() -> None:
    before = knowing((0, WORKER)).of(NOTHING, "process", "pid 41222 VLLM::Worker_TP", "", "")
    assert knowing().of(before, "process", "pid 41222 VLLM::Worker_TP", "", "") == before


def test_servers_and_tenants_of_requests_are_counted_those_with_most_first() -> None:
    node = knowing()
    found = node.touched(NOTHING, [Ran("vllm", "a", "acme", [gpu(1)[1], gpu(0)[1], "GPU-gone"])])
    found = node.touched(found, [Ran("vllm", "b", "zoo", []), Ran("vllm", "b", "zoo", []), Ran("vllm", "b", "", [])])
    assert [(each.model, each.requests, each.gpus) for each in found.servers] == [("b", 3, ()), ("a", 1, ("0", "1"))]
    assert found.tenants == (("zoo", 2), ("acme", 1))


def test_until_a_request_has_ended_servers_are_those_of_just_before_and_none_counts() -> None:
    node = knowing()
    found = node.served(NOTHING, [Ran("vllm", "a", "acme", [gpu(1)[1]])] * 3)
    assert [(each.model, each.requests, each.gpus) for each in found.servers] == [("a", 0, ("1",))]
    assert found.tenants == ()
    assert node.served(found, [Ran("vllm", "b", "", [])]) == found
    assert node.touched(found, [Ran("vllm", "a", "acme", [])]).servers[0].requests == 1


def test_any_number_of_names_is_bounded() -> None:
    many = [Ran("vllm", f"m{number}", f"t{number}", []) for number in range(100)]
    found = knowing().touched(NOTHING, many)
    assert len(found.servers) == SERVERS_MAX
    assert len(found.tenants) == TENANTS_MAX + 1
    assert found.tenants[0] == ("other", 100 - TENANTS_MAX)
    assert sum(count for _, count in found.tenants) == 100


def test_any_number_of_processes_is_bounded() -> None:
    node = knowing()
    stage = Stage()
    for first in range(1, 3000, 500):
        node.look(stage.step(1.0), [collective(pid, 0) for pid in range(first, first + 500)])
    assert len(node._ranks) == 512
