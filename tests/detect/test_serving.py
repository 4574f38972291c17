"""Which processes serve already, what incidents call them, and whether a host is settled."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.detect.scene import Scene
from gpumon.detect.serving import ALWAYS_S, GONE_S, Serving, cgroup_of, process_entity
from gpumon.model import Metric
from tests.detect.requests import request
from tests.detect.scenes import Stage, gpu

OLD = ("1", "server", "llm", "vllm-0", "server")
NEW = ("2", "server", "llm", "vllm-1", "server")


class Node:
    def __init__(self) -> None:
        self.stage = Stage(history_points=1000)
        self.serving = Serving(warm_up_s=60.0)
        self.add(OLD, 0)

    def add(self, labels: tuple[str, ...], *gpus: int) -> None:
        self.stage.put({(catalogue.PROCESS_CPU_SECONDS, labels): 1.0})
        self.stage.put({(catalogue.PROCESS_GPU_MEMORY, (*gpu(index), *labels)): 1e9 for index in gpus})

    def run(self, seconds: int, **step: object) -> Scene:
        for _ in range(seconds):
            scene = self.stage.step(1.0, **step)  # type: ignore[arg-type]
            self.serving.feed(scene)
        return scene


def test_what_is_there_at_the_first_look_is_old() -> None:
    node = Node()
    assert node.serving.is_warm(node.run(1), "1")


def test_what_was_never_seen_is_not_warm() -> None:
    node = Node()
    assert not node.serving.is_warm(node.stage.step(), "1")
    assert not node.serving.is_warm(node.run(1), "99")


def test_where_nothing_else_is_known_a_minute_is_enough() -> None:
    node = Node()
    node.run(1)
    node.add(NEW, 1)
    assert not node.serving.is_warm(node.run(60), "2")
    assert node.serving.is_warm(node.run(1), "2")


@pytest.mark.parametrize("metric", [catalogue.GPU_SM_ACTIVE, catalogue.GPU_UTILIZATION])
def test_a_process_whose_gpu_idles_only_loads(metric: Metric) -> None:
    node = Node()
    node.run(1)
    node.add(NEW, 1)
    node.stage.put({(metric, gpu(1)): 0.0})
    assert not node.serving.is_warm(node.run(120), "2")
    node.stage.put({(metric, gpu(1)): 0.5})
    assert node.serving.is_warm(node.run(10), "2")


def test_after_ten_minutes_it_counts_in_any_case() -> None:
    node = Node()
    node.run(1)
    node.add(NEW, 1)
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.0})
    assert not node.serving.is_warm(node.run(int(ALWAYS_S)), "2")
    assert node.serving.is_warm(node.run(1), "2")


@pytest.mark.parametrize("told", [{"gpus": [gpu(1)[1]]}, {"pid": 2}])
def test_a_process_whose_requests_end_serves(told: dict[str, object]) -> None:
    node = Node()
    node.run(1)
    node.add(NEW, 1)
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.0})
    before = request(node.stage.at_s - 5.0, **told)  # type: ignore[arg-type]
    scene = node.run(1, requests=[before])
    assert not node.serving.is_warm(node.run(100), "2")  # the server before it did that
    scene = node.run(1, requests=[request(node.stage.at_s, **told)])  # type: ignore[arg-type]
    assert node.serving.is_warm(scene, "2")


def test_a_host_is_settled_a_minute_after_the_last_process_came() -> None:
    node = Node()
    assert node.serving.is_settled(node.run(1))
    node.add(NEW, 1)
    assert not node.serving.is_settled(node.run(60))
    assert node.serving.is_settled(node.run(1))


def test_when_a_process_ends_its_successor_is_awaited_for_ten_minutes() -> None:
    node = Node()
    node.add(NEW, 1)
    node.run(100)
    node.stage.drop(catalogue.PROCESS_CPU_SECONDS, labels=NEW)
    assert not node.serving.is_settled(node.run(int(ALWAYS_S) - 1))
    assert node.serving.is_settled(node.run(1))
    node.stage.drop(catalogue.PROCESS_CPU_SECONDS, labels=OLD)
    assert not node.serving.is_settled(node.run(100))
    node.add(("3", *OLD[1:]), 0)
    assert not node.serving.is_settled(node.run(60))
    assert node.serving.is_settled(node.run(1))


def test_a_host_on_which_a_server_loads_for_long_is_not_settled() -> None:
    node = Node()
    node.run(1)
    node.add(NEW, 1)
    node.stage.put({(catalogue.GPU_SM_ACTIVE, gpu(1)): 0.0})
    assert not node.serving.is_settled(node.run(200))


def test_names() -> None:
    node = Node()
    node.add(NEW, 1, 2)
    scene = node.run(1)
    assert process_entity(scene, (*OLD, "major")) == ("process", "pid 1 server", "0", gpu(0)[1])
    assert process_entity(scene, NEW) == ("process", "pid 2 server", "", "")
    assert cgroup_of(OLD) == ("llm", "vllm-0", "server")
    assert cgroup_of(("7", "server", "", "", "")) == ("7",)
    assert cgroup_of(("7", "server", "", "", "0a1b2c")) == ("", "", "0a1b2c")


def test_memory_is_bounded() -> None:
    node = Node()
    node.run(1, requests=[request(1000.0, pid=pid) for pid in range(1000)])
    assert len(node.serving._ended_s) == 256


def test_a_process_that_could_not_be_read_once_is_as_warm_as_before_and_the_host_unsettled_meanwhile() -> None:
    node = Node()
    node.run(100)
    node.stage.drop(catalogue.PROCESS_CPU_SECONDS, labels=OLD)
    assert not node.serving.is_settled(node.run(int(GONE_S) - 1))
    node.add(OLD, 0)
    scene = node.run(1)
    assert node.serving.is_warm(scene, "1")
    assert node.serving.is_settled(scene)


def test_one_that_comes_back_after_half_a_minute_is_new() -> None:
    node = Node()
    node.run(100)
    node.stage.drop(catalogue.PROCESS_CPU_SECONDS, labels=OLD)
    node.run(int(GONE_S) + 1)
    node.add(OLD, 0)
    assert not node.serving.is_warm(node.run(1), "1")
