"""gpumon's own sources on the simulated node: nothing is missing but what an H200 lacks, nothing is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpumon import catalogue
from gpumon.model import GpuProcess, GpuUuid, Item, Metric, Miss, Reason, Rejection, Sample
from gpumon.sim.files import SimFiles
from gpumon.sim.kmsg import SimKernelLog
from gpumon.sim.pages import SimPages
from gpumon.sim.story import STORY_S, Kind, events
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
from gpumon.sources.targets import Target, select_targets
from tests.sim.nodes import STARTED_S, clock_at, opened, world

H200_LACKS = {"retired_pages", "retired_pages_pending", "fan", "temperature_limit", "nvlink_links"}


def _clean(items: Iterable[Item]) -> list[Sample]:
    samples = []
    for item in items:
        assert not isinstance(item, Rejection), item
        if isinstance(item, Miss):
            assert item.reason is Reason.UNSUPPORTED, item
            assert any(lacks in item.what for lacks in H200_LACKS), item
        else:
            samples.append(item)
    return samples


def _value(samples: Iterable[Sample], metric: Metric, *tail: str) -> float:
    found = [s.value for s in samples if s.metric is metric and (not tail or s.labels[-len(tail) :] == tail)]
    (value,) = found
    assert isinstance(value, (int, float))
    return value


def _targets(files: SimFiles, at_s: float) -> tuple[Target, ...]:
    holding = [
        GpuProcess(task.pid, str(task.gpu), GpuUuid(world().boards[task.gpu].uuid), task.gpu_mib * 2.0**20, 0.5)
        for task in world().tasks(at_s)
        if task.gpu is not None
    ]
    selection = select_targets(holding, files)
    assert selection.misses == ()
    return selection.targets


def test_the_fast_rows_of_a_whole_story_are_full_and_possible() -> None:
    clock = clock_at(0.0)
    nvml = opened(clock)
    fast = [GpuFast(nvml, nvml.device(i), Capabilities(f"gpu {i}")) for i in range(8)]
    for reader in fast:
        reader.row(clock.now_s())
    rows: list[list[list[float | None]]] = []
    while clock.now_s() < STARTED_S + STORY_S:
        clock.step(0.7)
        rows.append([reader.row(clock.now_s()) for reader in fast])
    assert all(value is not None for tick in rows for row in tick for value in row)
    assert [reader.take_rejections() for reader in fast] == [[]] * 8
    (row,) = events(Kind.THERMAL_THROTTLE)
    throttled_s = [(tick[row.gpu][Column.THROTTLED_SW_THERMAL] or 0) for tick in (rows[0], rows[-1])]
    assert throttled_s[1] - throttled_s[0] == pytest.approx(row.end_s - row.start_s, abs=1e-6)


def test_the_slow_source_reads_everything_an_h200_has() -> None:
    clock = clock_at(20.0)
    nvml = opened(clock)
    for index, board in enumerate(world().boards):
        labels = (str(index), board.uuid)
        slow = GpuSlow(nvml, nvml.device(index), labels, Capabilities(f"gpu {index}"), GpuState())
        first = _clean(slow.read(clock.now_s()))
        assert _value(first, catalogue.GPU_NVLINKS, "active") == 18
        assert _value(first, catalogue.GPU_POWER_LIMIT, "enforced") == 700
        assert _value(first, catalogue.GPU_RECOVERY_ACTION) == 0


def test_inventory_tells_eight_hopper_gpus_on_two_nodes() -> None:
    clock = clock_at(5.0)
    nvml, files = opened(clock), SimFiles(world(), clock)
    node = _clean(NodeInventory(nvml, files, lambda: 0).read(clock.now_s()))
    assert _value(node, catalogue.GPU_COUNT, "expected") == _value(node, catalogue.GPU_COUNT, "present") == 8
    for index, board in enumerate(world().boards):
        inventory = GpuInventory(nvml, nvml.device(index), (str(index), board.uuid), Capabilities("gpu"), files)
        (info,) = _clean(inventory.read(clock.now_s()))
        facts = dict(zip(catalogue.GPU_INFO.labels, info.labels, strict=True))
        assert facts["name"] == "NVIDIA H200"
        assert facts["pci_bus_id"] == board.bdf
        assert facts["architecture"] == "hopper"
        assert facts["compute_capability"] == "9.0"
        assert facts["numa_node"] == str(board.node)
        assert facts["mig_mode"] == "disabled"
        assert facts["activity_source"] == "gpm"


def test_mig_is_off_and_processes_are_found() -> None:
    clock = clock_at(160.0)
    nvml = opened(clock)
    device, labels = nvml.device(5), ("5", world().boards[5].uuid)
    assert _clean(Mig(nvml, device, labels, Capabilities("gpu 5"), GpuState()).read(clock.now_s())) == []
    reader = GpuProcesses(nvml, device, labels, Capabilities("gpu 5"), lambda: ())
    reader.read_processes(clock.now_s())
    clock.step(5)
    processes, problems = reader.read_processes(clock.now_s())
    assert problems == []
    assert len(processes) == 2
    assert all((process.sm_ratio or 0) > 0.05 for process in processes)


def test_the_host_source_reads_both_nodes() -> None:
    clock = clock_at(30.0)
    source = HostSource(SimFiles(world(), clock))
    before = _clean(source.read(clock.now_s()))
    clock.step(STORY_S)
    after = _clean(source.read(clock.now_s()))
    majors = [_value(samples, catalogue.HOST_PAGE_FAULTS, "major") for samples in (before, after)]
    assert majors[1] - majors[0] > 7000
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
    clock = clock_at(160.0)
    files = SimFiles(world(), clock)
    targets = _targets(files, clock.now_s())
    assert len(targets) == 9
    assert {target.workload.container for target in targets} == {
        world().pods[server].container_id[:12] for server in ("a", "b", "job")
    }
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
        assert sum(sample.metric is metric for sample in samples) == 9 * count, metric.name


def test_the_numa_source_finds_the_one_process_with_remote_memory() -> None:
    clock = clock_at(20.0)
    files = SimFiles(world(), clock)
    targets = _targets(files, clock.now_s())
    buses = {GpuUuid(board.uuid): board.bdf for board in world().boards}
    source = NumaSource(files, SimPages(world(), clock), lambda: targets, lambda: buses)
    samples = _clean(source.read(clock.now_s()))
    local = {s.labels[0]: s.value for s in samples if s.metric is catalogue.PROCESS_NUMA_LOCAL}
    assert len(local) == 8
    remote = {gpu for gpu, share in local.items() if isinstance(share, float) and share < 0.7}
    assert remote == {str(row.gpu) for row in events(Kind.REMOTE_MEMORY)}


def test_the_kernel_log_source_understands_the_xid_line() -> None:
    (row,) = events(Kind.XID)
    clock = clock_at(row.start_s - 1)
    told: list[tuple[KernelXid, float]] = []
    source = KernelLogSource(SimKernelLog(world(), clock), lambda xid, at_s: told.append((xid, at_s)))
    assert list(source.read(clock.now_s())) == []
    clock.step(2)
    assert list(source.read(clock.now_s())) == []
    assert told == [(KernelXid(world().boards[row.gpu].bdf, 31), clock.now_s())]
