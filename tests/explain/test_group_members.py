"""Which processes and pages are a group's, and who else is on its GPUs."""

from __future__ import annotations

from gpumon import catalogue
from gpumon.explain.group import Group
from gpumon.explain.group_members import Members, is_page_of
from tests.detect.scenes import Stage, gpu

CONTAINER = "0123456789ab"
OTHER_CONTAINER = "ba9876543210"


def workload(pid: int, process: str, container: str = "", pod: str = "") -> tuple[str, ...]:
    return (str(pid), process, "prod" if pod else "", pod, container)


def on(index: int) -> Group:
    return Group("vllm", "m", (gpu(index)[1],), "", "")


class Node:
    """Processes on GPUs, and watched ones."""

    def __init__(self) -> None:
        self.stage = Stage()

    def hold(self, index: int, gib: float, *labels: tuple[str, ...]) -> None:
        self.stage.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *each)): gib * 2**30 for each in labels})

    def watch(self, *labels: tuple[str, ...]) -> None:
        self.stage.put({(catalogue.PROCESS_CPU_SECONDS, each): 1.0 for each in labels})

    def members(self) -> Members:
        return Members(self.stage.step())

    def pids(self, group: Group) -> list[str]:
        return [labels[0] for labels in self.members().processes(group)]


def test_the_server_of_a_gpu_is_who_holds_most_and_its_container_belongs_to_it() -> None:
    node = Node()
    front, engine = workload(10, "vllm", CONTAINER), workload(11, "VLLM::EngineCor", CONTAINER)
    worker, job = workload(12, "VLLM::Worker_TP", CONTAINER), workload(20, "python3", OTHER_CONTAINER)
    node.hold(0, 100, worker)
    node.hold(0, 5, job)
    node.watch(front, engine, worker, job)
    assert node.pids(on(0)) == ["12", "10", "11"]
    assert node.members().others(gpu(0)[1]) == [job]
    assert node.pids(on(1)) == []
    assert node.members().others(gpu(1)[1]) is None


def test_pods_count_before_containers() -> None:
    node = Node()
    server, sidecar = workload(10, "a", CONTAINER, "llama-0"), workload(11, "b", OTHER_CONTAINER, "llama-0")
    job = workload(12, "a", CONTAINER, "job-7")
    for gib, each in ((50, server), (2, sidecar), (1, job)):
        node.hold(0, gib, each)
    assert node.members().others(gpu(0)[1]) == [job]


def test_without_containers_the_program_tells() -> None:
    node = Node()
    server, worker, job = workload(10, "VLLM::EngineCor"), workload(11, "VLLM::Worker"), workload(12, "python3")
    for gib, each in ((50, server), (40, worker), (1, job)):
        node.hold(0, gib, each)
    node.watch(server, worker, job, workload(13, "VLLM::Other"))
    assert node.members().others(gpu(0)[1]) == [job]
    assert node.pids(on(0)) == ["10", "11"], "a program of the same name elsewhere may be another server"


def test_those_past_the_cap_are_nobodys() -> None:
    node = Node()
    server = workload(10, "a")
    node.hold(0, 10, server)
    node.hold(0, 90, ("other", "", "", "", ""))
    assert node.members().others(gpu(0)[1]) == []


def test_equal_holders_are_told_apart_by_name_alone() -> None:
    orders = []
    for labels in ((workload(10, "a"), workload(9, "b")), (workload(9, "b"), workload(10, "a"))):
        node = Node()
        node.hold(0, 10, *labels)
        orders.append(node.members().others(gpu(0)[1]))
    assert orders[0] == orders[1]


def test_a_group_without_gpus_is_found_by_pid_or_container() -> None:
    node = Node()
    server, helper = workload(10, "llama-server", CONTAINER), workload(11, "helper", CONTAINER)
    node.watch(server, helper, workload(12, "x", OTHER_CONTAINER), workload(13, "y"))
    assert node.pids(Group("genai", "m", (), "10", "")) == ["10", "11"]
    assert node.pids(Group("genai", "m", (), "", CONTAINER + "f" * 52)) == ["10", "11"]
    assert node.pids(Group("genai", "m", (), "", "f" * 64)) == []
    assert node.pids(Group("genai", "m", (), "", "")) == []
    assert node.pids(Group("genai", "m", (), "99", "")) == []


def test_a_process_that_two_sources_name_differently_is_one() -> None:
    node = Node()
    node.hold(0, 10, workload(10, "[unknown]", CONTAINER))
    node.watch(workload(10, "vllm", CONTAINER))
    assert node.members().processes(on(0)) == [workload(10, "vllm", CONTAINER)]


def test_pages_are_the_models_or_where_they_name_none_the_servers() -> None:
    told = [("vllm", "m", "a:1"), ("vllm", "n", "a:2"), ("sglang", "m", "a:3"), ("vllm", "", "a:4"), ("tgi", "", "a:5")]
    assert [is_page_of(Group("vllm", "m", (), "", ""), page) for page in told] == [True, False, True, True, False]
    assert [is_page_of(Group("tgi", "q", (), "", ""), page) for page in told] == [False] * 4 + [True]
