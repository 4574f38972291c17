"""HostSource on fixture hosts and on fakes with one thing wrong at a time."""

from __future__ import annotations

import pytest

from gpumon import catalogue
from gpumon.host.host_files import HostFiles
from gpumon.model import Item, Metric, Miss, Reason, Rejection, Sample, SourceError
from gpumon.sources.host import HostSource
from tests.fakes import FakeFiles
from tests.fixtures.hosts import fixture_files, fixture_host


def values(items: list[Item], metric: Metric) -> dict[tuple[str, ...], object]:
    return {item.labels: item.value for item in items if isinstance(item, Sample) and item.metric is metric}


def misses(items: list[Item]) -> dict[str, Reason]:
    return {item.what: item.reason for item in items if isinstance(item, Miss)}


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles(fixture_files("h200"))


def read(files: FakeFiles | HostFiles) -> list[Item]:
    return list(HostSource(files).read(0.0))


def test_a_two_node_host_has_every_family_and_no_miss() -> None:
    items = read(fixture_host("h200"))
    assert misses(items) == {}
    assert values(items, catalogue.HOST_PAGE_FAULTS) == {("major",): 120_345, ("minor",): 9_000_000_000 - 120_345}
    assert values(items, catalogue.HOST_SWAP_PAGES) == {("in",): 0, ("out",): 0}
    assert values(items, catalogue.HOST_OOM_KILLS) == {(): 1}
    assert values(items, catalogue.HOST_PRESSURE)["io", "full"] == 76.0
    assert values(items, catalogue.HOST_NUMA_PAGES)["1", "foreign"] == 12_000
    assert len(values(items, catalogue.HOST_NUMA_PAGES)) == 12


def test_memory_states_add_up_to_the_nodes_memory() -> None:
    memory = values(read(fixture_host("h200")), catalogue.HOST_MEMORY)
    sizes = [memory["0", state] for state in ("used", "file", "free")]
    assert all(isinstance(size, float) for size in sizes)
    assert sum(size for size in sizes if isinstance(size, float)) == 1_056_770_048 * 1024


def test_nodes_with_holes_between_keep_their_numbers() -> None:
    memory = values(read(fixture_host("a100-mig")), catalogue.HOST_MEMORY)
    assert {labels[0] for labels in memory} == {"0", "2"}


def test_cpu_full_of_the_host_means_nothing_and_is_left_out() -> None:
    assert set(values(read(fixture_host("h200")), catalogue.HOST_PRESSURE)) == {
        ("cpu", "some"),
        ("memory", "some"),
        ("memory", "full"),
        ("io", "some"),
        ("io", "full"),
    }


def test_keys_that_the_kernel_lacks_are_absent_and_no_zero() -> None:
    items = read(fixture_host("sick"))
    assert values(items, catalogue.HOST_SWAP_PAGES) == {("out",): 0}
    assert values(items, catalogue.HOST_OOM_KILLS) == {}


def test_what_is_sick_is_missed_and_its_neighbours_are_read() -> None:
    items = read(fixture_host("sick"))
    assert misses(items) == {
        "pressure cpu": Reason.UNSUPPORTED,
        "pressure io": Reason.MALFORMED,
        "node 0 numastat": Reason.MALFORMED,
        "node 1 numastat": Reason.UNAVAILABLE,
        "node 1 meminfo": Reason.MALFORMED,
    }
    assert Rejection("host_memory", Reason.OUT_OF_RANGE) in items
    assert set(values(items, catalogue.HOST_MEMORY)) == {("2", "used"), ("2", "file"), ("2", "free")}
    assert values(items, catalogue.HOST_PRESSURE) == {("memory", "some"): 1e-5}


def test_more_major_faults_than_faults_cannot_be(files: FakeFiles) -> None:
    files.put("proc/vmstat", "pgfault 5\npgmajfault 6\n")
    items = read(files)
    assert Rejection("vmstat_pgfault", Reason.OUT_OF_RANGE) in items
    assert values(items, catalogue.HOST_PAGE_FAULTS) == {("major",): 6}


def test_psi_switched_off_at_boot_is_unsupported(files: FakeFiles) -> None:
    files.deny("proc/pressure", Reason.UNSUPPORTED)
    items = read(files)
    assert set(misses(items).values()) == {Reason.UNSUPPORTED}
    assert len(misses(items)) == 3


def test_a_kernel_without_numa_has_one_memory_from_meminfo() -> None:
    items = read(fixture_host("gb10"))
    assert misses(items) == {}
    assert values(items, catalogue.HOST_MEMORY) == {
        ("0", "free"): 30_000_000 * 1024,
        ("0", "file"): 40_300_000 * 1024,
        ("0", "used"): (125_000_000 - 30_000_000 - 40_300_000) * 1024,
    }
    assert values(items, catalogue.HOST_NUMA_PAGES) == {}


def test_hidden_sysfs_is_no_kernel_without_numa(files: FakeFiles) -> None:
    files.vanish("sys")
    items = read(files)
    assert misses(items) == {"numa nodes": Reason.UNAVAILABLE}
    assert values(items, catalogue.HOST_MEMORY) == {}


def test_denied_nodes_are_no_kernel_without_numa(files: FakeFiles) -> None:
    files.deny("sys/devices/system/node")
    assert misses(read(files)) == {"numa nodes": Reason.DENIED}


def test_a_node_without_memory_tells_no_memory(files: FakeFiles) -> None:
    files.put(
        "sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\nNode 1 FilePages: 0 kB\n"
    )
    memory = values(read(files), catalogue.HOST_MEMORY)
    assert {labels[0] for labels in memory} == {"0"}


def test_denied_vmstat_loses_only_vmstat(files: FakeFiles) -> None:
    files.deny("proc/vmstat")
    items = read(files)
    assert misses(items) == {"vmstat": Reason.DENIED}
    assert values(items, catalogue.HOST_PRESSURE)


def test_nothing_at_all_is_an_error_of_the_whole_source() -> None:
    with pytest.raises(SourceError) as caught:
        read(FakeFiles({}))
    assert caught.value.reason is Reason.UNAVAILABLE


def test_this_very_machine_is_read() -> None:
    items = read(HostFiles())
    assert ("major",) in values(items, catalogue.HOST_PAGE_FAULTS)
    assert values(items, catalogue.HOST_MEMORY)
