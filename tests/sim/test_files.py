from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumon.host.clock import ManualClock
from gpumon.host.files import Files, ReadError
from gpumon.model import Reason
from gpumon.sim.files import SimFiles
from gpumon.sim.world import World
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
from tests.sim.nodes import DENSE, SPARSE, STARTED_S, clock_at, node

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
    "proc/WORKER/stat": re.compile(rb"\d+ \(.{1,15}\) [RST]( -?\d+){49}\n"),
    "proc/WORKER/statm": re.compile(rb"\d+( \d+){6}\n"),
    "proc/WORKER/status": re.compile(rb"(\w+:\t.*\n)+"),
    "proc/WORKER/schedstat": re.compile(rb"\d+ \d+ \d+\n"),
    "proc/WORKER/comm": re.compile(rb".{1,15}\n"),
    "proc/WORKER/cgroup": re.compile(rb"0::(/[\w.-]+)+\n"),
    "proc/WORKER/maps": re.compile(
        rb"([0-9a-f]{8,16}-[0-9a-f]{8,16} [r-][w-][x-][ps] [0-9a-f]{8,} [0-9a-f]{2}:[0-9a-f]{2} \d+ ( *\S.*)?\n)+"
    ),
    f"{NODE}/online": re.compile(rb"0-1\n"),
    f"{NODE}/node1/numastat": COUNTERS,
    f"{NODE}/node1/meminfo": re.compile(rb"(Node 1 \w+(\(\w+\))?: +\d+ kB\n)+"),
    f"{NODE}/node1/cpulist": re.compile(rb"48-95,144-191\n"),
    f"{PCI}/0000:19:00.0/vendor": re.compile(rb"0x10de\n"),
    f"{PCI}/0000:19:00.0/class": re.compile(rb"0x030200\n"),
    f"{PCI}/0000:19:00.0/numa_node": re.compile(rb"0\n"),
    f"{PCI}/0000:9c:00.0/numa_node": re.compile(rb"1\n"),
    f"{PCI}/0000:9c:00.0/local_cpulist": re.compile(rb"48-95,144-191\n"),
}


def worker_of(world: World, gpu: int, at_s: float = STARTED_S) -> int:
    """Pid of the server's process that holds a GPU."""
    return next(task.pid for task in world.gpu_tasks(gpu, at_s) if task.server != "job")


def folder_of(files: Files, pid: int) -> str:
    """Of the process's cgroup, below the cgroup root."""
    return files.read(f"proc/{pid}/cgroup").decode().strip().removeprefix("0::/")


@pytest.mark.parametrize("path", SHAPES)
def test_files_have_the_kernel_s_shape(path: str) -> None:
    world = node()
    files: Files = SimFiles(world, clock_at(2.0))
    assert SHAPES[path].fullmatch(files.read(path.replace("WORKER", str(worker_of(world, 1)))))


def test_the_mapping_lines_align_their_names_at_the_kernel_s_column() -> None:
    world = node()
    files = SimFiles(world, clock_at(0))
    lines = files.read(f"proc/{worker_of(world, 0)}/maps").splitlines()
    named = [line for line in lines if b"/" in line or b"[" in line]
    assert len(named) >= 7
    for line in named:
        assert line[72:73] == b" "
        assert line[73:74] in b"/["


def test_mappings_ascend_without_overlap_and_hold_what_is_resident() -> None:
    world = node()
    files = SimFiles(world, clock_at(0))
    for task in world.tasks(STARTED_S):
        vmas = parse_maps(files.read(f"proc/{task.pid}/maps"))
        assert all(one.end <= other.start for one, other in pairwise(vmas))
        anonymous = sum(vma.end - vma.start for vma in vmas if not vma.path)
        assert anonymous == pytest.approx(task.resident_mib << 20, rel=0.02)


def test_every_listed_file_can_be_read_and_every_listed_folder_listed() -> None:
    files = SimFiles(node(), clock_at(10.0))
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
        "proc/WORKER",
        "proc/WORKER/task/1/schedstat",
        "proc/WORKER/task/x/schedstat",
        "proc/WORKER/environ",
        "proc/WORKER/stat/more",
        f"proc/{'9' * 400}/stat",
        "proc/²/stat",
        "proc/vmstat/more",
        "proc/pressure/irq",
        f"{NODE}/node2/numastat",
        f"{NODE}/node0/nothing",
        f"{PCI}/0000:ff:00.0/vendor",
        f"{PCI}/0000:19:00.0/physfn",
        "cgroup/nothing/cpu.stat",
        "cgroup/../proc/vmstat",
        "etc/passwd",
        "",
        "/",
    ],
)
def test_what_is_not_simulated_is_not_there(path: str) -> None:
    world = node()
    files = SimFiles(world, clock_at(0))
    path = path.replace("WORKER", str(worker_of(world, 0)))
    for ask in (files.read, files.list, files.link):
        if ask == files.list and re.fullmatch(r"proc(/\d{4,6})?", path):
            continue
        with pytest.raises(ReadError) as error:
            ask(path)
        assert error.value.reason is Reason.UNAVAILABLE


def test_a_file_over_the_limit_is_malformed() -> None:
    with pytest.raises(ReadError) as error:
        SimFiles(node(), clock_at(0)).read("proc/vmstat", limit=10)
    assert error.value.reason is Reason.MALFORMED


@settings(max_examples=20)  # each makes a world
@given(st.lists(st.floats(0, 6), min_size=1, max_size=5))
def test_counters_never_fall_and_the_host_holds_what_its_processes_count(steps_s: list[float]) -> None:
    clock = clock_at(0)
    world = node(
        f"kind: page_faults, at_s: 1, for_s: 30, server: {DENSE}, strength: 6000",
        f"kind: memory_pressure, at_s: 5, for_s: 30, server: {SPARSE}",
        f"kind: cpu_starvation, at_s: 2, for_s: 30, server: {DENSE}",
        f"kind: numa_remote, at_s: 3, for_s: 30, server: {DENSE}",
    )
    files = SimFiles(world, clock)
    before, old = _host(files), _processes(files)
    for step_s in steps_s:
        clock.step(step_s)
        after, new = _host(files), _processes(files)
        assert all(after[key] >= before[key] for key in after)
        common = old.keys() & new.keys()
        assert all(new[pid][place] >= old[pid][place] for pid in common for place in range(len(old[pid])))
        # Each of the counters is a whole number by itself.
        majors = sum(new[pid][0] - old[pid][0] for pid in common)
        assert after["pgmajfault"] - before["pgmajfault"] + len(common) + 1 >= majors
        assert after["pgfault"] - before["pgfault"] + 1 >= after["pgmajfault"] - before["pgmajfault"]
        before, old = after, new


def _host(files: SimFiles) -> dict[str, float]:
    keys = ("pgfault", "pgmajfault", "numa_hit", "numa_miss", "pgpgin", "pswpin", "pswpout", "oom_kill")
    found: dict[str, float] = {**parse_counters(files.read("proc/vmstat"), keys, "vmstat")}
    assert len(found) == len(keys)
    for resource in ("cpu", "memory", "io"):
        pressure = parse_pressure(files.read(f"proc/pressure/{resource}"))
        found |= {f"{resource} some": pressure.some_s or 0.0, f"{resource} full": pressure.full_s or 0.0}
        assert (pressure.full_s or 0.0) <= (pressure.some_s or 0.0)
    for number in range(2):
        numastat = parse_counters(files.read(f"{NODE}/node{number}/numastat"), ("numa_miss", "other_node"), "numastat")
        found |= {f"node{number} {key}": value for key, value in numastat.items()}
    return found


def _processes(files: SimFiles) -> dict[int, tuple[float, ...]]:
    found: dict[int, tuple[float, ...]] = {}
    for name in files.list("proc"):
        if name.isdecimal():
            stat = parse_stat(files.read(f"proc/{name}/stat"))
            found[int(name)] = (stat.major_faults, stat.minor_faults, stat.cpu_ticks)
    return found


@settings(max_examples=20)  # each makes a world
@given(st.floats(0, 20))
def test_threads_add_up_to_their_process(story_s: float) -> None:
    world = node()
    files = SimFiles(world, clock_at(story_s))
    pid = worker_of(world, 2)
    threads = [
        parse_schedstat(files.read(f"proc/{pid}/task/{tid}/schedstat")) for tid in files.list(f"proc/{pid}/task")
    ]
    stat = parse_stat(files.read(f"proc/{pid}/stat"))
    assert stat.threads == len(threads)
    assert stat.cpu_ticks / 100 == pytest.approx(sum(thread.run_ns for thread in threads) / 1e9, abs=0.03)
    task = next(task for task in world.tasks(STARTED_S + story_s) if task.pid == pid)
    wait_s = world.task_times(task, STARTED_S + story_s).wait_s
    assert sum(thread.wait_ns for thread in threads) / 1e9 == pytest.approx(wait_s, abs=1e-6)


def test_page_faults_are_in_process_cgroup_host_and_pressure() -> None:
    world = node(f"kind: page_faults, at_s: 5, for_s: 60, server: {DENSE}, strength: 20000")
    clock = clock_at(5.0)
    files = SimFiles(world, clock)
    struck, spared = worker_of(world, 0), worker_of(world, 2)

    def look() -> list[float]:
        return [
            parse_stat(files.read(f"proc/{struck}/stat")).major_faults,
            parse_counters(files.read(f"cgroup/{folder_of(files, struck)}/memory.stat"), ("pgmajfault",), "")[
                "pgmajfault"
            ],
            parse_counters(files.read("proc/vmstat"), ("pgmajfault",), "vmstat")["pgmajfault"],
            parse_pressure(files.read("proc/pressure/memory")).some_s or 0.0,
            parse_pressure(files.read(f"cgroup/{folder_of(files, struck)}/memory.pressure")).some_s or 0.0,
            parse_stat(files.read(f"proc/{spared}/stat")).major_faults,
        ]

    before = look()
    while clock.now_s() < STARTED_S + 40:
        clock.step(5.0)
        look()
    process, cgroup, host, pressure, pod_pressure, neighbour = (
        new - old for old, new in zip(before, look(), strict=True)
    )
    assert process > 500
    assert process <= cgroup <= host
    assert host == pytest.approx(process, rel=0.2)
    assert pressure > 0.01
    assert pod_pressure > 0.01
    assert neighbour < process / 20


def test_the_pressure_s_averages_follow_its_totals() -> None:
    world = node(f"kind: cpu_starvation, at_s: 2, for_s: 60, server: {DENSE}, strength: 0.9")
    clock = clock_at(22.0)
    files = SimFiles(world, clock)
    folder = folder_of(files, worker_of(world, 0))
    before = parse_pressure(files.read(f"cgroup/{folder}/cpu.pressure")).some_s or 0.0
    clock.step(10.0)
    text = files.read(f"cgroup/{folder}/cpu.pressure").decode()
    share = ((parse_pressure(text.encode()).some_s or 0.0) - before) / 10
    found = re.match(r"some avg10=([\d.]+) avg60=([\d.]+) ", text)
    assert found is not None
    assert share > 0.05
    assert float(found[1]) == pytest.approx(100 * share, abs=0.02)
    assert 0 <= float(found[2]) <= 100


def test_a_starved_cgroup_is_throttled() -> None:
    world = node(f"kind: cpu_starvation, at_s: 2, for_s: 60, server: {DENSE}, strength: 0.9")
    clock = clock_at(1.0)
    files = SimFiles(world, clock)
    keys = ("throttled_usec", "nr_throttled", "nr_periods", "usage_usec")
    path = f"cgroup/{folder_of(files, worker_of(world, 0))}/cpu.stat"
    before = parse_counters(files.read(path), keys, "cpu.stat")
    clock.step(20.0)
    after = parse_counters(files.read(path), keys, "cpu.stat")
    assert all(after[key] >= before[key] for key in keys)
    assert after["throttled_usec"] - before["throttled_usec"] > 100_000


def test_the_cgroup_s_cpu_time_is_that_of_its_processes() -> None:
    world = node()
    files = SimFiles(world, clock_at(17.0))
    pid = worker_of(world, 0)
    folder = folder_of(files, pid)
    pids = files.read(f"cgroup/{folder}/cgroup.procs").split()
    assert str(pid).encode() in pids
    assert len(pids) == 4
    used = parse_counters(files.read(f"cgroup/{folder}/cpu.stat"), ("usage_usec",), "cpu.stat")["usage_usec"] / 1e6
    ticks = sum(parse_stat(files.read(f"proc/{int(pid)}/stat")).cpu_ticks for pid in pids)
    assert ticks / 100 == pytest.approx(used, rel=0.01, abs=0.2)


def test_a_stopped_process_says_so_in_stat_and_status() -> None:
    world = node(f"kind: process_stopped, at_s: 5, for_s: 10, server: {DENSE}, strength: 1.0")
    clock = clock_at(4.0)
    files = SimFiles(world, clock)
    struck, spared = worker_of(world, 0), worker_of(world, 2)

    def states() -> list[str]:
        return [parse_stat(files.read(f"proc/{pid}/stat")).state for pid in (struck, spared)]

    assert "T" not in states()
    clock.step(3.0)
    assert states()[0] == "T"
    assert states()[1] != "T"
    assert b"State:\tT (stopped)\n" in files.read(f"proc/{struck}/status")


def test_a_process_that_ended_is_gone_with_its_cgroup() -> None:
    world = node("kind: gpu_contention, at_s: 2, for_s: 8, gpu: 1")
    clock = ManualClock(at_s=STARTED_S + 9.5)
    files = SimFiles(world, clock)
    job = next(task for task in world.tasks(clock.now_s()) if task.server == "job")
    folder = folder_of(files, job.pid)
    stat = parse_stat(files.read(f"proc/{job.pid}/stat"))
    assert stat.comm == "python3"
    assert stat.start_ticks == int((STARTED_S + 2) * 100)
    assert files.read(f"cgroup/{folder}/cpu.stat")
    clock.step(0.5)
    for path in (f"proc/{job.pid}/stat", f"cgroup/{folder}/cpu.stat"):
        with pytest.raises(ReadError) as error:
            files.read(path, keep=True)
        assert error.value.reason is Reason.UNAVAILABLE
    with pytest.raises(ReadError):
        files.list(f"cgroup/{folder}")


@settings(max_examples=20)  # each makes a world
@given(st.floats(0, 20), st.integers(0, 1))
def test_node_memory_adds_up_and_the_nodes_share_the_cpus(story_s: float, number: int) -> None:
    world = node(f"kind: memory_pressure, at_s: 2, for_s: 30, server: {DENSE}, strength: 0.85")
    files = SimFiles(world, clock_at(story_s))
    sizes = parse_meminfo(files.read(f"{NODE}/node{number}/meminfo"))
    assert sizes["MemUsed"] + sizes["MemFree"] == sizes["MemTotal"]
    assert sizes["FilePages"] < sizes["MemUsed"]
    assert min(sizes.values()) >= 0
    whole = parse_meminfo(files.read("proc/meminfo"))
    assert whole["MemTotal"] == 2 * sizes["MemTotal"]
    assert whole["MemFree"] == pytest.approx(2 * sizes["MemFree"], rel=0.01)
    assert 0 < whole["SwapFree"] <= whole["SwapTotal"]
    lists = [parse_cpulist(files.read(f"{NODE}/node{i}/cpulist")) for i in range(2)]
    assert not lists[0] & lists[1]
    assert len(lists[0] | lists[1]) == 192


def test_a_host_of_one_node_tells_nothing_of_another() -> None:
    files = SimFiles(node(numa_nodes=1), clock_at(1.0))
    assert files.read(f"{NODE}/online") == b"0\n"
    assert "node1" not in files.list(NODE)
    assert files.read(f"{PCI}/0000:19:00.0/numa_node") == b"-1\n"
    assert parse_counters(files.read(f"{NODE}/node0/numastat"), ("numa_miss",), "numastat") == {"numa_miss": 0}


def test_status_tells_what_is_resident_and_the_cpus_beside_the_gpu() -> None:
    world = node()
    files = SimFiles(world, clock_at(1.0))
    pid = worker_of(world, 1)
    status = parse_status(files.read(f"proc/{pid}/status"))
    assert parse_statm(files.read(f"proc/{pid}/statm")) * 4096 == status.resident_bytes
    assert status.ns_pids == (pid,)
    near = parse_cpulist(files.read(f"{PCI}/{world.boards[1].bdf}/local_cpulist"))
    assert status.cpus_allowed == near
    assert len(parse_status(files.read("proc/1/status")).cpus_allowed) == 192


def test_links_lead_where_the_kernel_s_do() -> None:
    world = node()
    files = SimFiles(world, clock_at(0))
    assert files.link(f"proc/{worker_of(world, 0)}/exe") == "/usr/bin/python3.12"
    assert files.link("proc/1/ns/pid") == files.link(f"proc/{worker_of(world, 0)}/ns/pid") == "pid:[4026531836]"
    assert files.link(f"{PCI}/0000:19:00.0") == "../../../devices/pci0000:19/0000:19:00.0"
