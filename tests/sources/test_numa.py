"""NumaSource: placement, locality to the GPU, exact mode and its refusal, denial, rotation."""

from __future__ import annotations

import os

import pytest

from gpumon import catalogue
from gpumon.host.files import ReadError
from gpumon.host.host_files import HostFiles
from gpumon.host.move_pages import MovePages
from gpumon.model import GpuProcess, GpuUuid, Item, Metric, Miss, Pid, Reason, Sample, SourceError
from gpumon.sources.numa import NumaSource
from gpumon.sources.procfs import parse_stat
from gpumon.sources.targets import Target, Workload
from tests.fakes import FakeFiles, FakePages
from tests.fixtures.hosts import fixture_files

PCI = {
    GpuUuid(f"GPU-{i}"): f"0000:{bus}:00.0" for i, bus in enumerate(("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"))
}
RESIDENT = 2_000_000 * 4096


def worker(i: int, *gpus: int) -> Target:
    held = tuple(GpuProcess(41_001 + i, str(gpu), GpuUuid(f"GPU-{gpu}"), 1e9, None) for gpu in gpus or (i,))
    return Target(Pid(41_001 + i, 90_100 + i), "VLLM::Worker_TP", Workload(container="c"), held)


WORKERS = [worker(i) for i in range(8)]


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles(fixture_files("h200"))


def quarter_remote(address: int) -> int:
    return int((address // 4096 * 2654435761 & 0xFFFFFFFF) / 2**32 < 0.25)


def source(
    files: FakeFiles, pages: FakePages, targets: list[Target], *, seed: int = 0, limit: int = 16, exact: bool = False
) -> NumaSource:
    return NumaSource(files, pages, lambda: targets, lambda: PCI, page_bytes=4096, seed=seed, limit=limit, exact=exact)


def values(items: list[Item], metric: Metric) -> dict[tuple[str, ...], float]:
    return {
        item.labels: item.value
        for item in items
        if isinstance(item, Sample) and item.metric is metric and isinstance(item.value, int | float)
    }


def misses(items: list[Item]) -> dict[str, Reason]:
    return {item.what: item.reason for item in items if isinstance(item, Miss)}


def test_resident_bytes_by_node_add_up_to_the_resident_size(files: FakeFiles) -> None:
    items = list(source(files, FakePages(quarter_remote), WORKERS[:1]).read(0.0))
    resident = {labels[-1]: size for labels, size in values(items, catalogue.PROCESS_NUMA_RESIDENT).items()}
    assert misses(items) == {}
    assert sum(resident.values()) == pytest.approx(RESIDENT)
    assert resident["1"] / RESIDENT == pytest.approx(0.25, abs=0.05)


def test_the_local_share_is_that_of_the_gpus_node(files: FakeFiles) -> None:
    items = list(source(files, FakePages(quarter_remote), [WORKERS[0], WORKERS[4]]).read(0.0))
    local = {labels[0]: share for labels, share in values(items, catalogue.PROCESS_NUMA_LOCAL).items()}
    assert local["0"] == pytest.approx(0.75, abs=0.05)
    assert local["4"] == pytest.approx(0.25, abs=0.05)


def test_a_process_on_gpus_of_both_nodes_has_a_share_for_each(files: FakeFiles) -> None:
    items = list(source(files, FakePages(quarter_remote), [worker(0, 0, 7)]).read(0.0))
    local = values(items, catalogue.PROCESS_NUMA_LOCAL)
    assert {labels[:2] for labels in local} == {("0", "GPU-0"), ("7", "GPU-7")}
    assert sum(local.values()) == pytest.approx(1.0)


def test_a_worker_on_the_cpus_of_the_other_node_has_no_local_cpu(files: FakeFiles) -> None:
    items = list(source(files, FakePages(quarter_remote), WORKERS).read(0.0))
    cpus = {labels[0]: share for labels, share in values(items, catalogue.PROCESS_CPUS_LOCAL).items()}
    assert cpus == {"0": 1, "1": 1, "2": 1, "3": 1, "4": 1, "5": 0, "6": 1, "7": 1}


def test_cpus_that_do_not_exist_do_not_count(files: FakeFiles) -> None:
    files.put("proc/41001/status", files.files["proc/41001/status"].replace(b"0-47,96-143", b"0-1023"))
    items = list(source(files, FakePages(quarter_remote), WORKERS[:1]).read(0.0))
    assert list(values(items, catalogue.PROCESS_CPUS_LOCAL).values()) == [0.5]


def test_a_gpu_whose_node_is_not_told_has_no_locality(files: FakeFiles) -> None:
    files.put("sys/bus/pci/devices/0000:18:00.0/numa_node", "-1\n")
    items = list(source(files, FakePages(quarter_remote), WORKERS[:1]).read(0.0))
    assert values(items, catalogue.PROCESS_NUMA_LOCAL) == values(items, catalogue.PROCESS_CPUS_LOCAL) == {}
    assert values(items, catalogue.PROCESS_NUMA_RESIDENT)
    assert misses(items) == {}


@pytest.mark.parametrize("text", ["x", "", "0-1", "-2"])
def test_a_garbled_node_is_malformed(files: FakeFiles, text: str) -> None:
    files.put("sys/bus/pci/devices/0000:18:00.0/numa_node", text)
    items = list(source(files, FakePages(quarter_remote), WORKERS[:2]).read(0.0))
    assert misses(items) == {"gpu 0 numa node": Reason.MALFORMED}
    assert len(values(items, catalogue.PROCESS_NUMA_LOCAL)) == 1


@pytest.mark.parametrize("bus_id", ["../../../etc", "00000000:18:00.0/..", "", "0000:18:00"])
def test_an_address_that_is_none_is_never_a_path(files: FakeFiles, bus_id: str) -> None:
    numa = NumaSource(files, FakePages(quarter_remote), lambda: WORKERS[:1], lambda: {GpuUuid("GPU-0"): bus_id})
    assert misses(list(numa.read(0.0))) == {"gpu 0 numa node": Reason.MALFORMED}


def test_a_host_with_one_node_is_never_sampled(files: FakeFiles) -> None:
    files.put("sys/devices/system/node/online", "0\n")
    pages = FakePages(quarter_remote)
    items = list(source(files, pages, WORKERS[:1]).read(0.0))
    assert pages.asked == 0
    assert list(values(items, catalogue.PROCESS_NUMA_RESIDENT).values()) == [RESIDENT]
    assert list(values(items, catalogue.PROCESS_NUMA_LOCAL).values()) == [1.0]


def test_hugetlb_pages_are_part_of_what_is_placed(files: FakeFiles) -> None:
    status = files.files["proc/41001/status"].replace(b"HugetlbPages:\t0 kB", b"HugetlbPages:\t4096 kB")
    files.put("proc/41001/status", status)
    items = list(source(files, FakePages(quarter_remote), WORKERS[:1]).read(0.0))
    assert sum(values(items, catalogue.PROCESS_NUMA_RESIDENT).values()) == pytest.approx(RESIDENT + (4 << 20))


def test_without_ptrace_rights_the_cpus_still_come(files: FakeFiles) -> None:
    pages = FakePages(quarter_remote)
    pages.error = ReadError("move_pages 41001", Reason.DENIED, "CAP_SYS_PTRACE")
    items = list(source(files, pages, WORKERS[:1]).read(0.0))
    assert misses(items) == {"pid 41001 placement": Reason.DENIED}
    assert values(items, catalogue.PROCESS_NUMA_RESIDENT) == {}
    assert list(values(items, catalogue.PROCESS_CPUS_LOCAL).values()) == [1.0]


def test_denied_maps_lose_one_process_and_not_its_neighbours(files: FakeFiles) -> None:
    files.deny("proc/41001/maps")
    items = list(source(files, FakePages(quarter_remote), WORKERS[:2]).read(0.0))
    assert misses(items) == {"pid 41001 placement": Reason.DENIED}
    assert {labels[0] for labels in values(items, catalogue.PROCESS_NUMA_RESIDENT)} == {"41002"}


@pytest.mark.parametrize(("path", "needs"), [("proc/41001/maps", "CAP_SYS_PTRACE"), ("move_pages 41001", "seccomp")])
def test_what_is_denied_says_what_would_help(files: FakeFiles, path: str, needs: str) -> None:
    pages = FakePages(quarter_remote)
    if path.startswith("proc/"):
        files.deny(path)
    else:
        pages.error = ReadError(path, Reason.DENIED, "Operation not permitted")
    [miss] = [item for item in source(files, pages, WORKERS[:1]).read(0.0) if isinstance(item, Miss)]
    assert path in miss.detail
    assert needs in miss.detail


def test_maps_that_are_too_large_are_refused(files: FakeFiles) -> None:
    files.put("proc/41001/maps", b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n" * 100_000)
    items = list(source(files, FakePages(quarter_remote), WORKERS[:1]).read(0.0))
    assert misses(items) == {"pid 41001 placement": Reason.MALFORMED}


def test_pages_that_do_not_account_for_the_resident_size_are_no_answer(files: FakeFiles) -> None:
    items = list(source(files, FakePages(lambda address: None), WORKERS[:1]).read(0.0))
    assert misses(items) == {"pid 41001 placement": Reason.UNAVAILABLE}
    assert values(items, catalogue.PROCESS_NUMA_RESIDENT) == values(items, catalogue.PROCESS_NUMA_LOCAL) == {}


def test_a_reborn_pid_is_not_placed(files: FakeFiles) -> None:
    files.put("proc/41001/stat", files.files["proc/41001/stat"].replace(b" 90100 ", b" 99999 "))
    pages = FakePages(quarter_remote)
    items = list(source(files, pages, WORKERS[:1]).read(0.0))
    assert misses(items) == {"pid 41001": Reason.ENDED}
    assert pages.asked == 0
    assert not any(isinstance(item, Sample) for item in items)


NUMA_MAPS = "7f00 default anon=3 N0=768 N1=256 kernelpagesize_kB=4\n"


def test_numa_maps_and_smaps_are_not_read_unless_asked_for(files: FakeFiles) -> None:
    list(source(files, FakePages(quarter_remote), WORKERS).read(0.0))
    assert not any("numa_maps" in path or "smaps" in path for path in files.reads)


def test_exact_counts_every_page_of_a_small_process(files: FakeFiles) -> None:
    files.put("proc/41001/numa_maps", NUMA_MAPS)
    files.put("proc/41001/statm", "9999 1024 1 1 0 1 0\n")
    pages = FakePages(quarter_remote)
    items = list(source(files, pages, WORKERS[:1], exact=True).read(0.0))
    assert pages.asked == 0
    assert list(values(items, catalogue.PROCESS_NUMA_RESIDENT).values()) == [768 * 4096, 256 * 4096]
    assert list(values(items, catalogue.PROCESS_NUMA_LOCAL).values()) == [0.75]


def test_exact_is_refused_for_a_large_process_which_is_sampled_instead(files: FakeFiles) -> None:
    files.put("proc/41001/numa_maps", NUMA_MAPS)
    items = list(source(files, FakePages(quarter_remote), WORKERS[:1], exact=True).read(0.0))
    assert misses(items) == {"pid 41001 numa_maps": Reason.UNSUPPORTED}
    assert not any("numa_maps" in path or "smaps" in path for path in files.reads)
    assert sum(values(items, catalogue.PROCESS_NUMA_RESIDENT).values()) == pytest.approx(RESIDENT)


def test_mappings_are_reused_and_read_again_when_old(files: FakeFiles) -> None:
    numa = source(files, FakePages(quarter_remote), WORKERS[:1])
    for at_s, expected in ((0.0, 1), (10.0, 1), (20.0, 1), (30.0, 2)):
        list(numa.read(at_s))
        assert files.reads.count("proc/41001/maps") == expected


def test_more_processes_than_a_pass_may_place_take_turns(files: FakeFiles) -> None:
    numa = source(files, FakePages(quarter_remote), WORKERS, limit=3)
    for at_s, known in ((0.0, 3), (10.0, 6), (20.0, 8), (30.0, 8)):
        files.reads.clear()
        items = list(numa.read(at_s))
        assert len({path for path in files.reads if path.endswith("/statm")}) == 3
        assert len({labels[0] for labels in values(items, catalogue.PROCESS_NUMA_RESIDENT)}) == known


def test_the_same_seed_gives_the_same_answer(files: FakeFiles) -> None:
    def read(seed: int) -> list[Item]:
        return list(source(files, FakePages(quarter_remote), WORKERS, seed=seed).read(0.0))

    assert read(1) == read(1)
    assert read(1) != read(2)


def test_no_node_list_is_an_error_of_the_whole_source(files: FakeFiles) -> None:
    files.vanish("sys/devices/system/node")
    with pytest.raises(SourceError) as caught:
        list(source(files, FakePages(quarter_remote), WORKERS).read(0.0))
    assert caught.value.reason is Reason.UNAVAILABLE


class TwoNodes(FakeFiles):
    """The real host, said to have a second node, so that its one node is sampled."""

    def __init__(self) -> None:
        super().__init__({"sys/devices/system/node/online": "0-1\n"})
        self.host = HostFiles()

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:
        return self.files[path] if path in self.files else self.host.read(path, keep=keep, limit=limit)


def test_this_very_process_is_placed_by_the_kernel() -> None:
    files = TwoNodes()
    stat = parse_stat(files.read("proc/self/stat"))
    me = Target(Pid(os.getpid(), stat.start_ticks), "pytest")
    items = list(NumaSource(files, MovePages(), lambda: [me], dict).read(0.0))
    files.host.close()
    assert misses(items) == {}
    assert sum(values(items, catalogue.PROCESS_NUMA_RESIDENT).values()) > 20 << 20
