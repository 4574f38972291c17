"""``numa_remote``: pages and CPUs on the wrong node, and processes that are nobody's fault."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.detector import Finding
from gpumon.detect.numa import NumaRemote
from tests.detect.scenes import BEGIN_S, Stage, check_described, evidence, gpu

WORKER = ("41403", "VLLM::Worker_TP", "llm", "vllm-0", "server")


def stage(nodes: int = 2) -> Stage:
    """GPU 0 on node 0, GPU 1 on node 1."""
    made = Stage()
    made.put({(catalogue.HOST_MEMORY, (str(node), "free")): 1e12 for node in range(nodes)})
    for index in range(2):
        told = {"gpu": str(index), "uuid": gpu(index)[1], "numa_node": str(index)}
        labels = tuple(told.get(name, "") for name in catalogue.GPU_INFO.labels)
        made.put({(catalogue.GPU_INFO, labels): 1.0})
    return made


def place(on: Stage, pages: float | None, cpus: float | None = None, *, gpus: tuple[int, ...] = (0,)) -> None:
    """A reading of the source: the same share of every GPU."""
    for index in gpus:
        on.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *WORKER)): 1e11})
        for metric, share in ((catalogue.PROCESS_NUMA_LOCAL, pages), (catalogue.PROCESS_CPUS_LOCAL, cpus)):
            if share is not None:
                on.put({(metric, (*gpu(index), *WORKER)): share}, owner="numa")
    on.silent.discard("numa")


def read(on: Stage, detector: NumaRemote, seconds: int = 10) -> list[float]:
    """Steps until the next reading: since when it has been found, of every step that found it."""
    found = []
    for _ in range(seconds):
        found += [finding.since_s for finding in detector.step(on.step())]
        on.silent.add("numa")
    on.silent.discard("numa")
    return found


def test_described() -> None:
    check_described(NumaRemote)


def test_pages_on_the_wrong_node_are_found_at_the_second_reading() -> None:
    node, detector = stage(), NumaRemote()
    place(node, 0.97, 1.0)
    assert read(node, detector) == []
    place(node, 0.28, 1.0)
    assert read(node, detector) == []
    (finding,) = detector.step(node.step())
    assert finding.entity == ("process", "pid 41403 VLLM::Worker_TP", "0", gpu(0)[1])
    assert finding.since_s == BEGIN_S + 11
    assert evidence(finding, "local_pages").observed == 0.28
    assert evidence(finding, "local_cpus").observed == 1.0
    assert finding.summary == "28 % of its pages and 100 % of its CPUs on the NUMA node of GPU 0"


def test_a_share_that_hovers_is_one_incident() -> None:
    node, detector = stage(), NumaRemote()
    for share in (0.69, 0.69, 0.72, 0.69, 0.74):
        place(node, share)
        read(node, detector)
    assert len(read(node, detector, 1)) == 1
    place(node, 0.76)
    assert read(node, detector) == []
    place(node, 0.69)
    assert read(node, detector) == []


def test_one_bad_reading_is_none() -> None:
    node, detector = stage(), NumaRemote()
    for share in (0.5, 0.9, 0.5, 0.9):
        place(node, share)
        assert read(node, detector) == []


def test_a_process_that_nobody_pinned_is_no_incident() -> None:
    node, detector = stage(), NumaRemote()
    place(node, 0.95, 0.5)
    assert read(node, detector, 40) == []


@pytest.mark.parametrize(
    ("nodes", "cpus", "is_found"), [(2, 0.0, True), (2, 0.3, True), (8, 0.125, False), (8, 0.05, True)]
)
def test_cpus_are_compared_with_those_of_a_process_without_a_mask(nodes: int, cpus: float, is_found: bool) -> None:
    node, detector = stage(nodes), NumaRemote()
    place(node, 0.95, cpus)
    read(node, detector)
    assert bool(read(node, detector)) is is_found


def test_without_the_number_of_nodes_cpus_say_nothing() -> None:
    node, detector = Stage(), NumaRemote()
    place(node, 0.95, 0.0)
    read(node, detector)
    assert read(node, detector, 20) == []


def test_a_process_with_gpus_of_both_nodes_has_all_its_memory_near() -> None:
    node, detector = stage(), NumaRemote()
    place(node, 0.5, 0.5, gpus=(0, 1))
    read(node, detector)
    assert read(node, detector, 20) == []
    place(node, 0.2, 0.5, gpus=(0, 1))
    read(node, detector)
    read(node, detector)
    (finding,) = detector.step(node.step())
    assert finding.entity.gpu == ""
    assert evidence(finding, "local_pages").observed == pytest.approx(0.4)
    assert finding.summary.endswith("GPU 0+1")


def test_gpus_of_unknown_nodes_count_as_of_one() -> None:
    node, detector = Stage(), NumaRemote()
    place(node, 0.4, gpus=(0, 1))
    read(node, detector)
    assert read(node, detector)


def test_a_process_that_ended_is_forgotten() -> None:
    node, detector = stage(), NumaRemote()
    place(node, 0.3)
    read(node, detector)
    assert read(node, detector)
    node.drop(catalogue.PROCESS_NUMA_LOCAL, catalogue.PROCESS_CPUS_LOCAL)
    assert read(node, detector) == []
    assert detector._states == {}


def test_nothing_is_known() -> None:
    assert Stage().run(NumaRemote(), 30.0) == []


def place_worker(
    on: Stage, pid: int, index: int, pages: float, *, container: str = "server", memory: float = 1e11
) -> None:
    """A reading of one worker with one GPU."""
    labels = (str(pid), "VLLM::Worker_TP", "llm", "vllm-0" if container else "", container)
    on.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *labels)): memory})
    on.put({(catalogue.PROCESS_NUMA_LOCAL, (*gpu(index), *labels)): pages}, owner="numa")
    on.silent.discard("numa")


def found_of_two(container: str, *, indices: tuple[int, int] = (0, 1), memory: float = 1e11) -> list[Finding]:
    node, detector = stage(), NumaRemote()
    for _ in range(2):
        place_worker(node, 99, indices[0], 0.3, container=container)
        place_worker(node, 101, indices[1], 0.13, container=container, memory=memory)
        read(node, detector)
    return list(detector.step(node.step()))


def test_workers_of_one_container_are_one_incident_with_the_worst_figures() -> None:
    (finding,) = found_of_two("server")
    assert finding.entity == ("process", "pid 99 VLLM::Worker_TP", "", "")
    assert evidence(finding, "local_pages").observed == 0.13
    assert evidence(finding, "processes").observed == 2
    assert finding.summary == "13 % of its pages on the NUMA node of GPU 1, the worst of 2 processes"
    assert finding.weight == pytest.approx(0.87)


def test_it_is_named_after_the_process_with_most_gpu_memory_and_has_the_gpu_that_all_share() -> None:
    (finding,) = found_of_two("server", indices=(1, 1), memory=2e11)
    assert finding.entity == ("process", "pid 101 VLLM::Worker_TP", *gpu(1))


def test_without_a_container_every_process_is_its_own() -> None:
    assert [finding.entity.name for finding in found_of_two("")] == [
        "pid 101 VLLM::Worker_TP",
        "pid 99 VLLM::Worker_TP",
    ]


def test_the_name_stays_while_any_process_of_the_container_is_remote() -> None:
    node, detector = stage(), NumaRemote()
    for first in (0.3, 0.3, 0.9, 0.9):
        place_worker(node, 99, 0, first)
        place_worker(node, 101, 1, 0.13)
        read(node, detector)
    (finding,) = detector.step(node.step())
    assert finding.entity.name == "pid 99 VLLM::Worker_TP"
    assert evidence(finding, "processes").observed == 1
