from __future__ import annotations

import pytest

from gpumon.host.files import ReadError
from gpumon.host.pages import Pages
from gpumon.model import Reason
from gpumon.sim.files import SimFiles
from gpumon.sim.pages import SimPages
from gpumon.sim.world import World
from gpumon.sources.procfs import parse_maps
from tests.sim.nodes import DENSE, STARTED_S, clock_at, node


def _addresses(world: World, pid: int) -> list[int]:
    maps = SimFiles(world, clock_at(10.0)).read(f"proc/{pid}/maps")
    vmas = [vma for vma in parse_maps(maps) if not vma.path]
    return [vma.start + (vma.end - vma.start) // 250 // 4096 * 4096 * i for vma in vmas for i in range(250)]


def test_pages_lie_on_the_node_of_the_gpu_but_for_the_share_that_is_remote() -> None:
    world = node(f"kind: numa_remote, at_s: 2, for_s: 60, server: {DENSE}, strength: 0.8")
    pages: Pages = SimPages(world, clock_at(10.0))
    for gpu in (0, 2):
        (task,) = world.gpu_tasks(gpu, STARTED_S + 10)
        remote = world.remote_share(task, STARTED_S + 10)
        nodes = pages.nodes(task.pid, _addresses(world, task.pid))
        assert nodes == pages.nodes(task.pid, _addresses(world, task.pid))
        present = [number for number in nodes if number is not None]
        assert len(present) / len(nodes) == pytest.approx(0.96, abs=0.02)
        home = world.boards[gpu].node
        assert present.count(home) / len(present) == pytest.approx(1 - remote, abs=0.04)
        assert (remote > 0.5) is (gpu == 0)


def test_on_one_node_nothing_is_remote() -> None:
    world = node(f"kind: numa_remote, at_s: 2, for_s: 60, server: {DENSE}, strength: 0.8", numa_nodes=1)
    (task,) = world.gpu_tasks(0, STARTED_S + 10)
    assert set(SimPages(world, clock_at(10.0)).nodes(task.pid, _addresses(world, task.pid))) == {0, None}


def test_device_windows_have_no_pages_and_gone_processes_no_answer() -> None:
    world = node()
    pages = SimPages(world, clock_at(10.0))
    (task,) = world.gpu_tasks(0, STARTED_S + 10)
    assert pages.nodes(task.pid, [0x7FB0_0000_1000]) == [None]
    with pytest.raises(ReadError) as error:
        pages.nodes(999_999, [0])
    assert error.value.reason is Reason.UNAVAILABLE
