from __future__ import annotations

import pytest

from gpumon.host.kmsg import KernelLog
from gpumon.sim.kmsg import SimKernelLog
from gpumon.sources.kernel_log import KernelXid, parse_xid
from tests.sim.nodes import STARTED_S, clock_at, node


def test_an_xid_is_told_once_and_nothing_from_before_the_first_read() -> None:
    world = node("kind: xid, at_s: 2, gpu: 0, strength: 43", "kind: xid, at_s: 10, gpu: 2, strength: 43")
    clock = clock_at(5.0)
    log: KernelLog = SimKernelLog(world, clock)
    assert log.read() == []
    clock.step(10.0)
    (line,) = log.read()
    assert log.read() == []
    assert log.overruns == 0
    assert line.at_s == STARTED_S + 10
    (task,) = world.gpu_tasks(2, line.at_s - 1)
    assert line.text.startswith(f"NVRM: Xid (PCI:0000:4c:00): 43, pid={task.pid}, name={task.comm}, ")


def test_of_two_processes_on_a_gpu_the_guest_is_named() -> None:
    world = node("kind: gpu_contention, at_s: 2, for_s: 20, gpu: 1", "kind: xid, at_s: 10, gpu: 1, strength: 43")
    clock = clock_at(5.0)
    log = SimKernelLog(world, clock)
    log.read()
    clock.step(6.0)
    (line,) = log.read()
    assert ", name=python3, " in line.text


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 200])
def test_every_line_is_understood_by_the_kernel_log_s_parser(xid: int) -> None:
    world = node(f"kind: xid, at_s: 10, gpu: 3, strength: {xid}")
    clock = clock_at(5.0)
    log = SimKernelLog(world, clock)
    log.read()
    clock.step(6.0)
    lines = log.read()
    assert KernelXid(world.boards[3].bdf, xid) in [parse_xid(line.text) for line in lines]
    assert all("{" not in line.text for line in lines)
