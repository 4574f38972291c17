from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumon.host.files import Files, ReadError
from gpumon.host.kmsg import KernelLog
from gpumon.host.pages import Pages
from gpumon.model import Reason
from gpumon.sim.files import SimFiles
from gpumon.sim.kmsg import SimKernelLog
from gpumon.sim.pages import SimPages
from gpumon.sim.story import STORY_S, Kind, events
from gpumon.sources.procfs import (
    parse_counters,
    parse_cpulist,
    parse_maps,
    parse_meminfo,
    parse_pressure,
    parse_schedstat,
    parse_stat,
    parse_statm,
    parse_status,
)
from tests.sim.nodes import STARTED_S, clock_at, world

WORKER = 41_402
NODE = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"

PRESSURE = re.compile(
    rb"some avg10=\d+\.\d\d avg60=\d+\.\d\d avg300=\d+\.\d\d total=\d+\n"
    rb"full avg10=\d+\.\d\d avg60=\d+\.\d\d avg300=\d+\.\d\d total=\d+\n"
)
COUNTERS = re.compile(rb"([a-z_]+ \d+\n)+")
SHAPES = {
    "proc/vmstat": COUNTERS,
    "proc/meminfo": re.compile(rb"(\w+: +\d+ kB\n)+"),
    "proc/pressure/cpu": PRESSURE,
    "proc/pressure/io": PRESSURE,
    "proc/pressure/memory": PRESSURE,
    f"proc/{WORKER}/stat": re.compile(rb"\d+ \(.{1,15}\) [RS]( -?\d+){49}\n"),
    f"proc/{WORKER}/statm": re.compile(rb"\d+( \d+){6}\n"),
    f"proc/{WORKER}/status": re.compile(rb"(\w+:\t.*\n)+"),
    f"proc/{WORKER}/schedstat": re.compile(rb"\d+ \d+ \d+\n"),
    f"proc/{WORKER}/comm": re.compile(rb".{1,15}\n"),
    f"proc/{WORKER}/cgroup": re.compile(rb"0::(/[\w.-]+)+\n"),
    f"proc/{WORKER}/maps": re.compile(
        rb"([0-9a-f]{8,16}-[0-9a-f]{8,16} [r-][w-][x-][ps] [0-9a-f]{8,} [0-9a-f]{2}:[0-9a-f]{2} \d+ ( *\S.*)?\n)+"
    ),
    f"{NODE}/online": re.compile(rb"0-1\n"),
    f"{NODE}/node1/numastat": COUNTERS,
    f"{NODE}/node1/meminfo": re.compile(rb"(Node 1 \w+(\(\w+\))?: +\d+ kB\n)+"),
    f"{NODE}/node1/cpulist": re.compile(rb"48-95,144-191\n"),
    f"{PCI}/0000:19:00.0/vendor": re.compile(rb"0x10de\n"),
    f"{PCI}/0000:19:00.0/class": re.compile(rb"0x030200\n"),
    f"{PCI}/0000:19:00.0/numa_node": re.compile(rb"0\n"),
    f"{PCI}/0000:db:00.0/numa_node": re.compile(rb"1\n"),
    f"{PCI}/0000:db:00.0/local_cpulist": re.compile(rb"48-95,144-191\n"),
}


def files_at(story_s: float, numa_nodes: int = 2) -> SimFiles:
    return SimFiles(world(), clock_at(story_s), numa_nodes)


@pytest.mark.parametrize("path", SHAPES)
def test_files_have_the_kernel_s_shape(path: str) -> None:
    files: Files = files_at(12.0)
    assert SHAPES[path].fullmatch(files.read(path))


def test_the_mapping_lines_align_their_names_at_the_kernel_s_column() -> None:
    named = [line for line in files_at(0).read(f"proc/{WORKER}/maps").splitlines() if b"/" in line or b"[" in line]
    assert len(named) >= 7
    for line in named:
        assert line[72:73] == b" "
        assert line[73:74] in b"/["


@pytest.mark.parametrize("pid", [1, WORKER, 52_304])
def test_mappings_ascend_without_overlap(pid: int) -> None:
    vmas = parse_maps(files_at(0).read(f"proc/{pid}/maps"))
    assert all(one.end <= other.start for one, other in pairwise(vmas))


def test_every_listed_file_can_be_read_and_every_listed_folder_listed() -> None:
    files = files_at(160.0)
    pending = ["proc", NODE, PCI, "cgroup"]
    seen = 0
    while pending:
        folder = pending.pop()
        for name in files.list(folder):
            path = f"{folder}/{name}"
            try:
                pending.append(path) if files.list(path) else None
            except ReadError:
                assert _leaf(files, path), path
                seen += 1
    assert seen > 300


def _leaf(files: SimFiles, path: str) -> bool:
    if re.fullmatch(r"proc/\d+/task/\d+", path):
        path += "/schedstat"
    return bool(files.read(path))


@pytest.mark.parametrize(
    "path",
    [
        "proc",
        "proc/999999/stat",
        "proc/self/status",
        f"proc/{WORKER}/task/1/schedstat",
        f"proc/{WORKER}/environ",
        f"proc/{'9' * 400}/stat",
        "proc/pressure/irq",
        f"{NODE}/node2/numastat",
        f"{NODE}/node0/nothing",
        f"{PCI}/0000:ff:00.0/vendor",
        f"{PCI}/0000:19:00.0/physfn",
        "cgroup/nothing/cpu.stat",
        "etc/passwd",
        "",
        "/",
    ],
)
def test_what_is_not_simulated_is_not_there(path: str) -> None:
    files = files_at(0)
    for ask in (files.read, files.list, files.link):
        if path == "proc" and ask == files.list:
            continue
        with pytest.raises(ReadError) as error:
            ask(path)
        assert error.value.reason is Reason.UNAVAILABLE


def test_a_file_over_the_limit_is_malformed() -> None:
    with pytest.raises(ReadError) as error:
        files_at(0).read("proc/vmstat", limit=10)
    assert error.value.reason is Reason.MALFORMED


@given(st.floats(0, 3000), st.floats(0, 400))
def test_counters_of_the_host_never_fall_and_hold_what_its_processes_count(story_s: float, step_s: float) -> None:
    clock = clock_at(story_s)
    files = SimFiles(world(), clock)
    before, old = _faults(files), _majors(files)
    clock.step(step_s)
    after, new = _faults(files), _majors(files)
    grown = {key: after[key] - before[key] for key in after}
    assert min(grown.values()) >= 0
    assert grown["pgfault"] >= grown["pgmajfault"]
    common = old.keys() & new.keys()
    # Each of the counters is a whole number by itself.
    assert grown["pgmajfault"] + len(common) + 1 >= sum(new[pid] - old[pid] for pid in common)
    assert all(new[pid] >= old[pid] for pid in common)


def _faults(files: SimFiles) -> dict[str, int]:
    keys = ("pgfault", "pgmajfault", "numa_hit", "numa_miss", "pgpgin")
    return dict(parse_counters(files.read("proc/vmstat"), keys, "vmstat"))


def _majors(files: SimFiles) -> dict[int, int]:
    pids = [int(name) for name in files.list("proc") if name.isdecimal()]
    return {pid: parse_stat(files.read(f"proc/{pid}/stat")).major_faults for pid in pids}


@given(st.floats(0, 3000), st.floats(0, 400))
def test_counters_of_a_process_never_fall_and_threads_add_up_to_it(story_s: float, step_s: float) -> None:
    clock = clock_at(story_s)
    files = SimFiles(world(), clock)
    before = _times(files)
    clock.step(step_s)
    after = _times(files)
    assert all(new >= old for old, new in zip(before, after, strict=True))
    ticks, running_ns, _ = after
    assert ticks / 100 == pytest.approx(running_ns / 1e9, abs=0.03)


def _times(files: SimFiles) -> tuple[int, int, int]:
    threads = [
        parse_schedstat(files.read(f"proc/{WORKER}/task/{tid}/schedstat")) for tid in files.list(f"proc/{WORKER}/task")
    ]
    stat = parse_stat(files.read(f"proc/{WORKER}/stat"))
    assert stat.threads == len(threads)
    return stat.cpu_ticks, sum(thread.run_ns for thread in threads), sum(thread.wait_ns for thread in threads)


def test_the_story_s_page_faults_are_in_process_cgroup_host_and_pressure() -> None:
    burst, *_ = events(Kind.PAGE_FAULTS)
    clock = clock_at(burst.start_s)
    files = SimFiles(world(), clock)
    folder = files.read(f"proc/{WORKER}/cgroup").decode().strip().removeprefix("0::/")

    def look() -> list[float]:
        return [
            parse_stat(files.read(f"proc/{WORKER}/stat")).major_faults,
            parse_counters(files.read(f"cgroup/{folder}/memory.stat"), ("pgmajfault",), "memory.stat")["pgmajfault"],
            parse_counters(files.read("proc/vmstat"), ("pgmajfault",), "vmstat")["pgmajfault"],
            parse_pressure(files.read("proc/pressure/memory")).some_s or 0.0,
            parse_pressure(files.read(f"cgroup/{folder}/memory.pressure")).some_s or 0.0,
            parse_stat(files.read("proc/41403/stat")).major_faults,
        ]

    before = look()
    clock.step(1.0)
    process, cgroup, host, pressure, pod_pressure, neighbour = (
        new - old for old, new in zip(before, look(), strict=True)
    )
    assert process == pytest.approx(6000, abs=3)
    assert cgroup == pytest.approx(6000, abs=8)
    assert host == pytest.approx(6000, abs=8)
    assert pressure == pytest.approx(0.35, abs=0.02)
    assert pod_pressure == pytest.approx(0.35, abs=0.02)
    assert neighbour <= 1
    assert b"some avg10=3." in files.read("proc/pressure/memory")


def test_the_cgroup_s_cpu_time_is_that_of_its_processes() -> None:
    files = files_at(77.0)
    folder = files.read(f"proc/{WORKER}/cgroup").decode().strip().removeprefix("0::/")
    pids = files.read(f"cgroup/{folder}/cgroup.procs").split()
    assert str(WORKER).encode() in pids
    assert len(pids) == 6
    used = parse_counters(files.read(f"cgroup/{folder}/cpu.stat"), ("usage_usec",), "cpu.stat")["usage_usec"] / 1e6
    ticks = sum(parse_stat(files.read(f"proc/{int(pid)}/stat")).cpu_ticks for pid in pids)
    assert ticks / 100 == pytest.approx(used, abs=0.2)


def test_a_process_that_ended_is_gone_with_its_cgroup() -> None:
    (row,) = events(Kind.JOB)
    clock = clock_at(row.end_s - 0.5)
    files = SimFiles(world(), clock)
    job = world().job(clock.now_s())
    assert job is not None
    folder = files.read(f"proc/{job.pid}/cgroup").decode().strip().removeprefix("0::")
    stat = parse_stat(files.read(f"proc/{job.pid}/stat"))
    assert stat.comm == "python3"
    assert stat.start_ticks == int((STARTED_S + row.start_s) * 100)
    assert files.read(f"cgroup{folder}/cpu.stat")
    clock.step(0.5)
    for path in (f"proc/{job.pid}/stat", f"cgroup{folder}/cpu.stat"):
        with pytest.raises(ReadError) as error:
            files.read(path, keep=True)
        assert error.value.reason is Reason.UNAVAILABLE


@given(st.floats(0, 600), st.integers(0, 1))
def test_node_memory_adds_up_and_the_nodes_share_the_cpus(story_s: float, node: int) -> None:
    files = files_at(story_s)
    sizes = parse_meminfo(files.read(f"{NODE}/node{node}/meminfo"))
    assert sizes["MemUsed"] + sizes["MemFree"] == sizes["MemTotal"]
    assert sizes["FilePages"] < sizes["MemUsed"]
    lists = [parse_cpulist(files.read(f"{NODE}/node{i}/cpulist")) for i in range(2)]
    assert not lists[0] & lists[1]
    assert len(lists[0] | lists[1]) == 192


def test_a_host_of_one_node_tells_nothing_of_another() -> None:
    files = files_at(10.0, numa_nodes=1)
    assert files.read(f"{NODE}/online") == b"0\n"
    assert "node1" not in files.list(NODE)
    assert files.read(f"{PCI}/0000:db:00.0/numa_node") == b"-1\n"
    assert parse_counters(files.read(f"{NODE}/node0/numastat"), ("numa_miss",), "numastat") == {"numa_miss": 0}
    assert (
        SimPages(world(), clock_at(0), 1).nodes(52_303, [0x7F10_0000_0000 + i * 4096 for i in range(64)]).count(1) == 0
    )
    with pytest.raises(ValueError, match="numa_nodes"):
        files_at(0, numa_nodes=3)


def test_status_and_statm_agree_on_what_is_resident() -> None:
    files = files_at(10.0)
    status = parse_status(files.read(f"proc/{WORKER}/status"))
    assert parse_statm(files.read(f"proc/{WORKER}/statm")) * 4096 == status.resident_bytes


@pytest.mark.parametrize(("pid", "home", "local"), [(WORKER, 0, 0.97), (52_303, 1, 0.28), (52_302, 1, 0.97)])
def test_pages_lie_where_the_story_says(pid: int, home: int, local: float) -> None:
    pages: Pages = SimPages(world(), clock_at(10.0))
    vmas = [vma for vma in parse_maps(files_at(10.0).read(f"proc/{pid}/maps")) if not vma.path]
    addresses = [vma.start + (vma.end - vma.start) // 250 // 4096 * 4096 * i for vma in vmas for i in range(250)]
    nodes = pages.nodes(pid, addresses)
    assert nodes == pages.nodes(pid, addresses)
    present = [node for node in nodes if node is not None]
    assert len(present) / len(nodes) == pytest.approx(0.96, abs=0.02)
    assert present.count(home) / len(present) == pytest.approx(local, abs=0.04)


def test_device_windows_have_no_pages_and_gone_processes_no_answer() -> None:
    pages = SimPages(world(), clock_at(10.0))
    assert pages.nodes(WORKER, [0x7FB0_0000_1000]) == [None]
    with pytest.raises(ReadError) as error:
        pages.nodes(999_999, [0])
    assert error.value.reason is Reason.UNAVAILABLE


def test_links_lead_where_the_kernel_s_do() -> None:
    files = files_at(0)
    assert files.link(f"proc/{WORKER}/exe") == "/usr/bin/python3.12"
    assert files.link("proc/1/ns/pid") == "pid:[4026531836]"
    assert files.link(f"proc/{WORKER}/ns/pid") != files.link("proc/52301/ns/pid")
    assert files.link(f"{PCI}/0000:19:00.0") == "../../../devices/pci0000:19/0000:19:00.0"


def test_the_kernel_log_tells_the_xid_once_and_nothing_from_before() -> None:
    (row,) = events(Kind.XID)
    clock = clock_at(row.start_s + 1)
    log: KernelLog = SimKernelLog(world(), clock)
    assert log.read() == []
    clock.step(STORY_S)
    (line,) = log.read()
    assert log.read() == []
    assert log.overruns == 0
    assert line.at_s == STARTED_S + STORY_S + row.start_s
    job = world().job(line.at_s - 1)
    assert job is not None
    assert line.text.startswith(f"NVRM: Xid (PCI:0000:bb:00): 31, pid={job.pid}, name=python3, ")
