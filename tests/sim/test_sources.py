"""gpumon's own sources on the simulated node: nothing is missing but what a board lacks, nothing is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpumon import catalogue
from gpumon.host.clock import ManualClock
from gpumon.model import GpuProcess, GpuUuid, Item, Metric, Miss, Reason, Rejection, Sample
from gpumon.sim.files import SimFiles
from gpumon.sim.http import SimHttp, server_urls
from gpumon.sim.kmsg import SimKernelLog
from gpumon.sim.pages import SimPages
from gpumon.sim.world import World
from gpumon.sources.capabilities import Capabilities
from gpumon.sources.gpu import GpuSlow
from gpumon.sources.gpu_fast import Column, GpuFast
from gpumon.sources.gpu_inventory import GpuInventory, NodeInventory
from gpumon.sources.gpu_processes import GpuProcesses
from gpumon.sources.gpu_state import GpuState
from gpumon.sources.host import HostSource
from gpumon.sources.kernel_log import KernelLogSource, KernelXid
from gpumon.sources.mig import Mig
from gpumon.sources.numa import NumaSource
from gpumon.sources.processes import ProcessSource
from gpumon.sources.servers import ServerSource
from gpumon.sources.targets import Target, select_targets
from gpumon.sources.xid_events import XidWatcher
from tests.sim.nodes import DENSE, GPUS, STARTED_S, clock_at, node, opened

LACKING = {"retired_pages", "retired_pages_pending", "fan", "temperature_limit", "nvlink_links"}
"""Fields that no SXM board has, and the links that a board has fewer of."""
WITHOUT_GPM = {
    *(Column.GRAPHICS_ACTIVE, Column.SM_ACTIVE, Column.SM_OCCUPANCY, Column.INTEGER_ACTIVE, Column.TENSOR_ACTIVE),
    *(Column.DRAM_ACTIVE, Column.FP64_ACTIVE, Column.FP32_ACTIVE, Column.FP16_ACTIVE, Column.PCIE_TX_RATE),
    *(Column.PCIE_RX_RATE, Column.NVLINK_TX_RATE, Column.NVLINK_RX_RATE, Column.GPM_INTERVAL),
}


def _clean(items: Iterable[Item]) -> list[Sample]:
    samples = []
    for item in items:
        assert not isinstance(item, Rejection), item
        if isinstance(item, Miss):
            assert item.reason is Reason.UNSUPPORTED, item
            assert any(lacks in item.what for lacks in LACKING), item
        else:
            samples.append(item)
    return samples


def _value(samples: Iterable[Sample], metric: Metric, *tail: str) -> float:
    found = [s.value for s in samples if s.metric is metric and (not tail or s.labels[-len(tail) :] == tail)]
    (value,) = found
    assert isinstance(value, (int, float))
    return value


def _targets(world: World, files: SimFiles, at_s: float) -> tuple[Target, ...]:
    holding = [
        GpuProcess(task.pid, str(task.gpu), GpuUuid(world.boards[task.gpu].uuid), task.gpu_mib * 2.0**20, 0.5)
        for task in world.tasks(at_s)
        if task.gpu is not None
    ]
    selection = select_targets(holding, files)
    assert selection.misses == ()
    return selection.targets


@pytest.mark.parametrize(("model", "absent"), [("h200", set()), ("h100", set()), ("a100", WITHOUT_GPM)])
def test_the_fast_rows_are_full_and_possible(model: str, absent: set[Column]) -> None:
    clock = clock_at(0.0)
    world = node("kind: thermal_throttle, at_s: 5, for_s: 40, gpu: 3, strength: 0.3", model=model)
    nvml = opened(world, clock)
    fast = [GpuFast(nvml, nvml.device(i), Capabilities(f"gpu {i}")) for i in range(GPUS)]
    for reader in fast:
        reader.row(clock.now_s())
    rows: list[list[list[float | None]]] = []
    while clock.now_s() < STARTED_S + 45:
        clock.step(0.1)
        rows.append([reader.row(clock.now_s()) for reader in fast])
    assert {
        Column(place) for tick in rows for row in tick for place, value in enumerate(row) if value is None
    } == absent
    assert [reader.take_rejections() for reader in fast] == [[]] * GPUS
    throttled_s = [
        (rows[-1][i][Column.THROTTLED_SW_THERMAL] or 0) - (rows[0][i][Column.THROTTLED_SW_THERMAL] or 0)
        for i in range(GPUS)
    ]
    assert throttled_s[3] > 5
    assert throttled_s[:3] == [0, 0, 0]
    clocks = [row[3][Column.CLOCK_SM] or 0 for row in rows]
    assert min(clocks) < 0.8 * max(clocks)


def test_rows_of_the_same_moment_are_the_same_for_everyone_who_asks() -> None:
    worlds = [node("kind: power_throttle, at_s: 3, for_s: 40, gpu: 1") for _ in range(2)]
    tables = []
    for world, steps_s in zip(worlds, ([0.1] * 100, [0.5] * 20), strict=True):
        clock = ManualClock(at_s=STARTED_S)
        nvml = opened(world, clock)
        fast = GpuFast(nvml, nvml.device(1), Capabilities("gpu 1"))
        rows = {}
        for number, step_s in enumerate(steps_s):
            clock.move_to(STARTED_S + (number + 1) * step_s)
            rows[round(clock.now_s() - STARTED_S, 3)] = fast.row(clock.now_s())
        tables.append(rows)
    first, second = tables
    counters = (Column.ENERGY, Column.PCIE_TX, Column.NVLINK_RX, Column.THROTTLED_SW_POWER_CAP, Column.CLOCK_SM)
    for at_s, row in second.items():
        assert [row[column] for column in counters] == [first[at_s][column] for column in counters]


@pytest.mark.parametrize("model", ["h200", "a100"])
def test_the_slow_source_reads_everything_a_board_has(model: str) -> None:
    clock = clock_at(2.0)
    world = node(model=model)
    nvml = opened(world, clock)
    for index, board in enumerate(world.boards):
        labels = (str(index), board.uuid)
        slow = GpuSlow(nvml, nvml.device(index), labels, Capabilities(f"gpu {index}"), GpuState())
        first = _clean(slow.read(clock.now_s()))
        assert _value(first, catalogue.GPU_NVLINKS, "active") == world.model.nvlinks
        assert _value(first, catalogue.GPU_POWER_LIMIT, "enforced") == world.model.limit_w
        assert _value(first, catalogue.GPU_RECOVERY_ACTION) == 0
        assert _value(first, catalogue.GPU_PCIE_WIDTH, "current") == 16


def test_the_slow_source_sees_hardware_that_fails() -> None:
    clock = clock_at(2.0)
    world = node(
        "kind: nvlink_degraded, at_s: 5, for_s: 60, gpu: 0, strength: 6",
        "kind: pcie_degraded, at_s: 5, for_s: 60, gpu: 1, strength: 2",
        "kind: ecc_corrected, at_s: 5, for_s: 60, gpu: 2, strength: 2",
        "kind: row_remap_failed, at_s: 5, for_s: 60, gpu: 3",
    )
    nvml = opened(world, clock)
    slow = [
        GpuSlow(nvml, nvml.device(i), (str(i), world.boards[i].uuid), Capabilities(f"gpu {i}"), GpuState())
        for i in range(GPUS)
    ]
    before = [_clean(reader.read(clock.now_s())) for reader in slow]
    clock.step(20.0)
    after = [_clean(reader.read(clock.now_s())) for reader in slow]
    assert _value(after[0], catalogue.GPU_NVLINKS, "inactive") == 6
    assert _value(after[1], catalogue.GPU_PCIE_GENERATION, "current") == 3
    tail = ("corrected", "volatile")
    grown = _value(after[2], catalogue.GPU_ECC_ERRORS, *tail) - _value(before[2], catalogue.GPU_ECC_ERRORS, *tail)
    assert grown == pytest.approx(30, abs=12)
    assert _value(after[3], catalogue.GPU_ROW_REMAP_FAILED) == 1
    assert _value(before[3], catalogue.GPU_ROW_REMAP_FAILED) == 0


def test_inventory_tells_hopper_gpus_on_their_nodes() -> None:
    clock = clock_at(1.0)
    world = node()
    nvml, files = opened(world, clock), SimFiles(world, clock)
    inventory = _clean(NodeInventory(nvml, files, lambda: 0).read(clock.now_s()))
    expected, present = (_value(inventory, catalogue.GPU_COUNT, state) for state in ("expected", "present"))
    assert expected == present == GPUS
    for index, board in enumerate(world.boards):
        reader = GpuInventory(nvml, nvml.device(index), (str(index), board.uuid), Capabilities("gpu"), files)
        (info,) = _clean(reader.read(clock.now_s()))
        facts = dict(zip(catalogue.GPU_INFO.labels, info.labels, strict=True))
        assert facts["name"] == "NVIDIA H200"
        assert facts["pci_bus_id"] == board.bdf
        assert facts["architecture"] == "hopper"
        assert facts["compute_capability"] == "9.0"
        assert facts["numa_node"] == str(board.node)
        assert facts["mig_mode"] == "disabled"
        assert facts["activity_source"] == "gpm"


def test_mig_is_off_and_processes_are_found_with_their_shares() -> None:
    clock = clock_at(8.0)
    world = node("kind: gpu_contention, at_s: 3, for_s: 40, gpu: 1, strength: 0.35")
    nvml = opened(world, clock)
    device, labels = nvml.device(1), ("1", world.boards[1].uuid)
    assert _clean(Mig(nvml, device, labels, Capabilities("gpu 1"), GpuState()).read(clock.now_s())) == []
    reader = GpuProcesses(nvml, device, labels, Capabilities("gpu 1"), lambda: ())
    reader.read_processes(clock.now_s())
    clock.step(5)
    processes, problems = reader.read_processes(clock.now_s())
    assert problems == []
    assert len(processes) == 2
    shares = {process.pid: process.sm_ratio or 0.0 for process in processes}
    guest = next(task.pid for task in world.gpu_tasks(1, clock.now_s()) if task.server == "job")
    assert shares[guest] / sum(shares.values()) == pytest.approx(0.35, abs=0.06)


def test_the_host_source_reads_both_nodes() -> None:
    clock = clock_at(1.0)
    world = node(f"kind: page_faults, at_s: 2, for_s: 60, server: {DENSE}, strength: 20000")
    source = HostSource(SimFiles(world, clock))
    before = _clean(source.read(clock.now_s()))
    after = before
    for _ in range(12):
        clock.step(5.0)
        after = _clean(source.read(clock.now_s()))
    majors = [_value(samples, catalogue.HOST_PAGE_FAULTS, "major") for samples in (before, after)]
    assert majors[1] - majors[0] > 500
    wanted = {
        catalogue.HOST_PAGE_FAULTS: 2,
        catalogue.HOST_PRESSURE: 5,  # nothing is fully stalled for CPU on a whole host
        catalogue.HOST_MEMORY: 6,
        catalogue.HOST_NUMA_PAGES: 12,
        catalogue.HOST_SWAP_PAGES: 2,
        catalogue.HOST_OOM_KILLS: 1,
    }
    assert {metric: sum(sample.metric is metric for sample in after) for metric in wanted} == wanted


def test_the_process_source_reads_every_worker_in_its_pod() -> None:
    clock = clock_at(8.0)
    world = node("kind: gpu_contention, at_s: 3, for_s: 40, gpu: 1")
    files = SimFiles(world, clock)
    targets = _targets(world, files, clock.now_s())
    assert len(targets) == GPUS + 1
    assert {target.workload.container for target in targets} == {pod.container_id[:12] for pod in world.pods.values()}
    source = ProcessSource(files, lambda: targets)
    samples = _clean(source.read(clock.now_s()))
    per_process = {
        catalogue.PROCESS_PAGE_FAULTS: 2,
        catalogue.PROCESS_CPU_SECONDS: 1,
        catalogue.PROCESS_RUNQUEUE_SECONDS: 1,
        catalogue.PROCESS_THREADS: 1,
        catalogue.PROCESS_RESIDENT: 1,
        catalogue.PROCESS_CPU_THROTTLED: 1,
        catalogue.PROCESS_PRESSURE: 6,
    }
    for metric, count in per_process.items():
        assert sum(sample.metric is metric for sample in samples) == len(targets) * count, metric.name


def test_the_numa_source_finds_the_server_with_remote_memory() -> None:
    clock = clock_at(8.0)
    world = node(f"kind: numa_remote, at_s: 3, for_s: 40, server: {DENSE}, strength: 0.8")
    files = SimFiles(world, clock)
    targets = _targets(world, files, clock.now_s())
    buses = {GpuUuid(board.uuid): board.bdf for board in world.boards}
    source = NumaSource(files, SimPages(world, clock), lambda: targets, lambda: buses)
    samples = _clean(source.read(clock.now_s()))
    local = {s.labels[0]: s.value for s in samples if s.metric is catalogue.PROCESS_NUMA_LOCAL}
    assert len(local) == GPUS
    assert {gpu for gpu, share in local.items() if isinstance(share, float) and share < 0.7} == {"0", "1"}
    near = [s.value for s in samples if s.metric is catalogue.PROCESS_CPUS_LOCAL]
    assert near == [1.0] * GPUS


def test_event_and_kernel_log_tell_the_same_xid() -> None:
    clock = clock_at(4.0)
    world = node("kind: xid, at_s: 5, gpu: 2, strength: 43")
    told: list[tuple[KernelXid, float]] = []
    source = KernelLogSource(SimKernelLog(world, clock), lambda xid, at_s: told.append((xid, at_s)))
    nvml = opened(world, clock)
    watcher = XidWatcher(nvml, [nvml.device(i) for i in range(GPUS)], lambda _: False)
    assert list(source.read(clock.now_s())) == []
    assert watcher.poll(clock.now_s(), 0) == []
    clock.step(2)
    assert list(source.read(clock.now_s())) == []
    assert told == [(KernelXid(world.boards[2].bdf, 43), clock.now_s())]
    assert [(event.uuid, event.data) for event in watcher.poll(clock.now_s(), 0)] == [(world.boards[2].uuid, 43)]
    assert watcher.take() == []


def test_the_server_source_reads_every_page() -> None:
    clock = clock_at(2.0)
    world = node()
    source = ServerSource(SimHttp(world, clock), server_urls(world), timeout_s=1.0)
    _clean(source.read(clock.now_s()))
    clock.step(2.0)
    samples = _clean(source.read(clock.now_s()))
    assert [
        _value(samples, catalogue.SERVER_UP, server, port)
        for server, port in (("vllm", "127.0.0.1:8000"), ("sglang", "127.0.0.1:8001"))
    ] == [1, 1]
    for metric in (catalogue.SERVER_RUNNING, catalogue.SERVER_KV_USAGE, catalogue.SERVER_KV_CAPACITY):
        assert len([sample for sample in samples if sample.metric is metric]) == 2, metric.name
