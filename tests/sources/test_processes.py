"""ProcessSource: cadences, ends, reborn pids, denials, limits, and the real processes of this machine."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import pytest

from gpumon import catalogue
from gpumon.host.host_files import HostFiles
from gpumon.model import GpuProcess, GpuUuid, Item, Metric, Miss, Pid, Reason, Sample
from gpumon.sources.processes import ProcessSource
from gpumon.sources.procfs import parse_stat
from gpumon.sources.targets import Target, Workload
from tests.fakes import FakeFiles
from tests.fixtures.hosts import fixture_files, fixture_host

PASS_S = 0.5


def target(number: int, start: int, name: str = "server", gpu_bytes: float | None = None) -> Target:
    held = () if gpu_bytes is None else (GpuProcess(number, "0", GpuUuid("GPU-a"), gpu_bytes, None),)
    return Target(Pid(number, start), name, Workload(container="c"), held)


WORKERS = [target(41_001 + i, 90_100 + i) for i in range(8)]


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles(fixture_files("h200"))


def value(items: list[Item], metric: Metric, *labels: str) -> float | None:
    """The value of the one series of the metric that carries these label values."""
    found = [
        item.value
        for item in items
        if isinstance(item, Sample) and item.metric is metric and set(labels) <= set(item.labels)
    ]
    assert len(found) <= 1
    if not found:
        return None
    assert isinstance(found[0], int | float)
    return found[0]


def pids(items: list[Item]) -> set[str]:
    return {item.labels[0] for item in items if isinstance(item, Sample)}


def misses(items: list[Item]) -> dict[str, Reason]:
    return {item.what: item.reason for item in items if isinstance(item, Miss)}


def test_a_worker_has_every_family_with_the_kernels_totals() -> None:
    items = list(ProcessSource(fixture_host("h200"), lambda: WORKERS, page_bytes=4096).read(0.0))
    assert misses(items) == {}
    assert pids(items) == {str(worker.pid.number) for worker in WORKERS}
    pid = "41003"
    assert value(items, catalogue.PROCESS_PAGE_FAULTS, pid, "major") == 42
    assert value(items, catalogue.PROCESS_PAGE_FAULTS, pid, "minor") == 500_002
    assert value(items, catalogue.PROCESS_CPU_SECONDS, pid) == 890.02
    assert value(items, catalogue.PROCESS_THREADS, pid) == 3
    assert value(items, catalogue.PROCESS_RESIDENT, pid) == 2_000_000 * 4096
    assert value(items, catalogue.PROCESS_RUNQUEUE_SECONDS, pid) == pytest.approx(0.3)
    assert value(items, catalogue.PROCESS_CPU_THROTTLED, pid) == 2.5
    assert value(items, catalogue.PROCESS_PRESSURE, pid, "memory", "full") == 0.01
    assert value(items, catalogue.PROCESS_PRESSURE, pid, "cpu", "full") == 1.0
    assert all(len(item.labels) == len(item.metric.labels) for item in items if isinstance(item, Sample))


def test_a_version_1_container_is_throttled_in_its_controller_and_stalled_in_unified() -> None:
    items = list(ProcessSource(fixture_host("t4"), lambda: [target(3100, 7000)]).read(0.0))
    assert misses(items) == {}
    assert value(items, catalogue.PROCESS_CPU_THROTTLED, "3100") == 1.75
    assert value(items, catalogue.PROCESS_PRESSURE, "3100", "io", "some") == 0.011


def test_only_stat_is_read_between_the_slow_passes(files: FakeFiles) -> None:
    source = ProcessSource(files, lambda: WORKERS, slow_s=5.0)
    first = list(source.read(100.0))
    for step in range(1, 10):
        files.reads.clear()
        again = list(source.read(100.0 + step * PASS_S))
        assert files.reads == [f"proc/{worker.pid.number}/stat" for worker in WORKERS]
        assert len(again) == len(first)
    files.reads.clear()
    files.put("proc/41001/statm", "9 7 1 1 0 1 0\n")
    slow = list(source.read(105.0))
    assert value(slow, catalogue.PROCESS_RESIDENT, "41001") == 7 * mmap.PAGESIZE
    assert "proc/41001/cgroup" not in files.reads


def test_processes_of_one_container_read_its_cgroup_once(files: FakeFiles) -> None:
    list(ProcessSource(files, lambda: WORKERS).read(0.0))
    assert sum(path.endswith("/cpu.stat") for path in files.reads) == 1


def test_a_process_that_moved_is_followed_to_its_new_cgroup(files: FakeFiles) -> None:
    source = ProcessSource(files, lambda: WORKERS[:1], cgroup_s=30.0)
    list(source.read(0.0))
    files.put("proc/41001/cgroup", "0::/elsewhere\n")
    files.put("cgroup/elsewhere/cpu.stat", "throttled_usec 7000000\n")
    assert value(list(source.read(29.0)), catalogue.PROCESS_CPU_THROTTLED, "41001") == 2.5
    assert value(list(source.read(34.0)), catalogue.PROCESS_CPU_THROTTLED, "41001") == 7.0


def test_a_process_that_ended_is_one_miss_and_then_silence(files: FakeFiles) -> None:
    source = ProcessSource(files, lambda: WORKERS[:2])
    list(source.read(0.0))
    files.vanish("proc/41001")
    items = list(source.read(PASS_S))
    assert misses(items) == {"pid 41001": Reason.ENDED}
    assert pids(items) == {"41002"}
    items = list(source.read(2 * PASS_S))
    assert misses(items) == {}
    assert pids(items) == {"41002"}


def test_a_process_that_ends_in_the_middle_of_its_reading_keeps_what_was_read(files: FakeFiles) -> None:
    def end(path: str) -> None:
        if path == "proc/41001/statm":
            files.vanish("proc/41001")

    files.on_read = end
    items = list(ProcessSource(files, lambda: WORKERS[:2]).read(0.0))
    assert value(items, catalogue.PROCESS_PAGE_FAULTS, "41001", "major") == 40
    assert value(items, catalogue.PROCESS_RESIDENT, "41001") is None
    assert value(items, catalogue.PROCESS_RESIDENT, "41002") is not None
    assert misses(items)["pid 41001 statm"] is Reason.UNAVAILABLE


def test_a_reborn_pid_is_another_process_and_starts_anew_as_a_new_target(files: FakeFiles) -> None:
    targets = [WORKERS[0]]
    source = ProcessSource(files, lambda: targets)
    list(source.read(0.0))
    files.put("proc/41001/stat", files.files["proc/41001/stat"].replace(b" 90100 ", b" 99999 "))
    files.put("proc/41001/task/41001/schedstat", "1 1000000000 1\n")
    items = list(source.read(PASS_S))
    assert pids(items) == set()
    assert misses(items) == {"pid 41001": Reason.ENDED}
    targets[:] = [target(41_001, 99_999)]
    items = list(source.read(2 * PASS_S))
    # 1 s, and 0.1 s and 0.15 s of the fixture's other threads: nothing of what the old process had waited.
    assert value(items, catalogue.PROCESS_RUNQUEUE_SECONDS, "41001") == pytest.approx(1.25)


def test_a_zombie_has_ended(files: FakeFiles) -> None:
    files.put("proc/41001/stat", files.files["proc/41001/stat"].replace(b") S ", b") Z "))
    items = list(ProcessSource(files, lambda: WORKERS[:2]).read(0.0))
    assert misses(items) == {"pid 41001": Reason.ENDED}
    assert pids(items) == {"41002"}


def test_a_hidden_process_is_denied_each_time_and_seen_again_when_it_may_be(files: FakeFiles) -> None:
    source = ProcessSource(files, lambda: WORKERS[:2])
    files.deny("proc/41001")
    for step in range(2):
        items = list(source.read(step * PASS_S))
        assert misses(items) == {"pid 41001": Reason.DENIED}
        assert pids(items) == {"41002"}
    files.denied.clear()
    assert pids(list(source.read(2 * PASS_S))) == {"41001", "41002"}


@pytest.mark.parametrize("file", ["statm", "cgroup", "task"])
def test_one_denied_file_loses_only_what_is_in_it(files: FakeFiles, file: str) -> None:
    whole = list(ProcessSource(files, lambda: WORKERS[:1]).read(0.0))
    files.deny(f"proc/41001/{file}")
    items = list(ProcessSource(files, lambda: WORKERS[:1]).read(0.0))
    assert set(misses(items).values()) == {Reason.DENIED}
    lost = {"statm": 1, "cgroup": 7, "task": 1}[file]
    assert len([i for i in items if isinstance(i, Sample)]) == len(whole) - lost


def test_a_failed_slow_reading_takes_the_old_value_away(files: FakeFiles) -> None:
    source = ProcessSource(files, lambda: WORKERS[:1], slow_s=5.0)
    assert value(list(source.read(0.0)), catalogue.PROCESS_RESIDENT, "41001") is not None
    files.put("proc/41001/statm", "garbage")
    items = list(source.read(5.0))
    assert value(items, catalogue.PROCESS_RESIDENT, "41001") is None
    assert misses(items) == {"pid 41001 statm": Reason.MALFORMED}
    assert value(list(source.read(5.5)), catalogue.PROCESS_RESIDENT, "41001") is None


def test_a_cgroup_out_of_sight_is_denied_and_says_what_is_needed(files: FakeFiles) -> None:
    files.put("proc/41001/cgroup", "0::/../../kubepods\n")
    items = list(ProcessSource(files, lambda: WORKERS[:1]).read(0.0))
    (miss,) = [item for item in items if isinstance(item, Miss)]
    assert (miss.what, miss.reason) == ("pid 41001 cgroup", Reason.DENIED)
    assert "cgroup namespace" in miss.detail


def test_from_a_cgroup_namespace_of_its_own_gpumon_reads_the_server_that_is_beside_it(files: FakeFiles) -> None:
    path = files.files["proc/41001/cgroup"].decode().strip().removeprefix("0::/")
    expected = value(
        list(ProcessSource(files, lambda: WORKERS[:1]).read(0.0)), catalogue.PROCESS_CPU_THROTTLED, "41001"
    )
    files.put("proc/41001/cgroup", f"0::/../../../{path}\n")
    files.put("proc/self/cgroup", "0::/\n")
    files.put("proc/self/status", "Name:\tgpumon\nNSpid:\t77\n")
    files.put("cgroup/cgroup.procs", "1\n")
    for folder in ("kubepods.slice", "kubepods.slice/pod.slice"):
        files.put(f"cgroup/{folder}/cgroup.procs", "")
    files.put("cgroup/kubepods.slice/pod.slice/own.scope/cgroup.procs", "76\n77\n")
    items = list(ProcessSource(files, lambda: WORKERS[:1]).read(0.0))
    assert value(items, catalogue.PROCESS_CPU_THROTTLED, "41001") == expected is not None
    assert misses(items) == {}


def test_the_run_queue_counter_survives_threads_that_end(files: FakeFiles) -> None:
    source = ProcessSource(files, lambda: WORKERS[:1], slow_s=5.0)
    assert value(list(source.read(0.0)), catalogue.PROCESS_RUNQUEUE_SECONDS, "41001") == pytest.approx(0.3)
    files.vanish("proc/41001/task/41007")
    files.put("proc/41001/task/41001/schedstat", "1 60000000 1\n")
    assert value(list(source.read(5.0)), catalogue.PROCESS_RUNQUEUE_SECONDS, "41001") == pytest.approx(0.31)


def test_schedstat_that_counts_nothing_is_unsupported_and_no_zero(files: FakeFiles) -> None:
    for tid in (41_001, 41_004, 41_007):
        files.put(f"proc/41001/task/{tid}/schedstat", "0 0 0\n")
    items = list(ProcessSource(files, lambda: WORKERS[:1]).read(0.0))
    assert value(items, catalogue.PROCESS_RUNQUEUE_SECONDS, "41001") is None
    assert misses(items) == {"pid 41001 schedstat": Reason.UNSUPPORTED}


def with_threads(files: FakeFiles, number: int, count: int) -> None:
    files.vanish(f"proc/{number}/task")
    for i in range(count):
        files.put(f"proc/{number}/task/{number + i}/schedstat", "1000 1000000000 1\n")
    files.put(f"proc/{number}/stat", files.files[f"proc/{number}/stat"].replace(b" 20 0 3 0 ", b" 20 0 %d 0 " % count))


def test_threads_over_the_limit_are_told_once_and_not_read(files: FakeFiles) -> None:
    with_threads(files, 41_001, 30)
    source = ProcessSource(files, lambda: WORKERS[:1], slow_s=5.0, max_threads=20)
    items = list(source.read(0.0))
    assert misses(items) == {"pid 41001 threads over the limit": Reason.UNAVAILABLE}
    assert value(items, catalogue.PROCESS_RUNQUEUE_SECONDS, "41001") == 20
    assert sum("/task/" in path for path in files.reads) == 20
    assert misses(list(source.read(5.0))) == {}


def test_a_thread_that_comes_under_the_limit_brings_nothing_from_before(files: FakeFiles) -> None:
    with_threads(files, 41_001, 30)
    source = ProcessSource(files, lambda: WORKERS[:1], slow_s=5.0, max_threads=20)
    list(source.read(0.0))
    files.vanish("proc/41001/task/41001")
    assert value(list(source.read(5.0)), catalogue.PROCESS_RUNQUEUE_SECONDS, "41001") == 20


def test_the_thread_budget_of_a_pass_puts_the_rest_off_to_the_next(files: FakeFiles) -> None:
    for worker in WORKERS:
        with_threads(files, worker.pid.number, 40)
    source = ProcessSource(files, lambda: WORKERS, slow_s=5.0, thread_budget=100)
    for step, known in enumerate((3, 6, 8)):
        files.reads.clear()
        items = list(source.read(step * PASS_S))
        assert sum("/task/" in path for path in files.reads) <= 120
        counted = [i for i in items if isinstance(i, Sample) and i.metric is catalogue.PROCESS_RUNQUEUE_SECONDS]
        assert len(counted) == known


def test_over_the_limit_the_largest_by_gpu_memory_stay_and_the_rest_is_told_once(files: FakeFiles) -> None:
    targets: Sequence[Target] = [target(41_001 + i, 90_100 + i, gpu_bytes=float(i)) for i in range(8)]
    source = ProcessSource(files, lambda: targets, limit=3)
    items = list(source.read(0.0))
    assert pids(items) == {"41006", "41007", "41008"}
    assert misses(items) == {"processes over the limit": Reason.UNAVAILABLE}
    assert misses(list(source.read(PASS_S))) == {}
    targets = targets[:3]
    assert misses(list(source.read(2 * PASS_S))) == {}
    targets = [target(41_001 + i, 90_100 + i) for i in range(4)]
    assert misses(list(source.read(3 * PASS_S))) == {"processes over the limit": Reason.UNAVAILABLE}


def test_new_names_reach_values_that_were_read_before(files: FakeFiles) -> None:
    targets = [WORKERS[0]]
    source = ProcessSource(files, lambda: targets)
    list(source.read(0.0))
    targets[0] = Target(WORKERS[0].pid, "server", Workload("ns", "pod", "c"))
    labels = {item.labels[:5] for item in source.read(PASS_S) if isinstance(item, Sample)}
    assert labels == {("41001", "server", "ns", "pod", "c")}


def test_no_targets_is_nothing_to_say(files: FakeFiles) -> None:
    assert list(ProcessSource(files, list).read(0.0)) == []


def test_what_is_forgotten_is_not_held_in_memory(files: FakeFiles) -> None:
    targets: list[Target] = []
    source = ProcessSource(files, lambda: targets)
    for generation in range(50):
        targets[:] = [target(41_001, generation), target(41_002, 90_101)]
        list(source.read(generation * PASS_S))
    assert len(source._watched) == 2


def test_this_very_process_is_read_from_the_real_proc() -> None:
    files = HostFiles()
    stat = parse_stat(files.read("proc/self/stat"))
    me = target(os.getpid(), stat.start_ticks)
    source = ProcessSource(files, lambda: [me])
    items = list(source.read(0.0))
    pid = str(os.getpid())
    assert (value(items, catalogue.PROCESS_PAGE_FAULTS, pid, "minor") or 0) >= stat.minor_faults
    assert (value(items, catalogue.PROCESS_RESIDENT, pid) or 0) > 1 << 20
    assert (value(items, catalogue.PROCESS_RUNQUEUE_SECONDS, pid) or 0) > 0
    files.close()


def test_a_process_that_is_stopped_counts_the_time_between_its_looks(files: FakeFiles) -> None:
    running = files.files["proc/41001/stat"]
    stopped = running.replace(b") S ", b") T ").replace(b") R ", b") T ")
    assert stopped != running
    source = ProcessSource(files, lambda: WORKERS[:1])

    def seconds(at_s: float, state: bytes) -> float | None:
        files.put("proc/41001/stat", state)
        return value(list(source.read(at_s)), catalogue.PROCESS_STOPPED_SECONDS, "41001")

    assert seconds(100.0, running) == 0.0
    assert seconds(100.5, running) == 0.0
    assert seconds(101.0, stopped) == 0.25  # it stopped somewhere between the two looks
    assert seconds(101.5, stopped.replace(b") T ", b") t ")) == 0.75
    assert seconds(102.0, running) == 1.0
    assert seconds(102.5, running) == 1.0
