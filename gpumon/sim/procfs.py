"""The simulated host's /proc, byte for byte as Linux 6.8 writes it.

System-wide: vmstat, meminfo, pressure. Per process: stat, statm, status, schedstat, cgroup, maps, comm. Pages are
4 KiB, ticks 10 ms. ``files`` finds the way here.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumon.sim import noise
from gpumon.sim.sysfs import node_cpus
from gpumon.sim.tasks import (
    Stalled,
    host_faults,
    host_stalled,
    numa_pages,
    task_times,
    thread_ids,
    thread_shares,
    used_share,
)
from gpumon.sim.world import CPUS, MEMORY_KB_PER_NODE, Task, World

TICKS = 100
PAGE = 4096
PRESSURES = ("cpu", "io", "memory")

_WINDOWS_S = (10.0, 60.0, 300.0)
_HEAP = 0x5601_2F40_0000
_ARENA = 0x7F10_0000_0000
_SYSTEM_CGROUPS = {
    "systemd": "/init.scope",
    "nvidia-persiste": "/system.slice/nvidia-persistenced.service",
    "containerd": "/system.slice/containerd.service",
    "kubelet": "/system.slice/kubelet.service",
}


def vmstat(world: World, nodes: int, at_s: float) -> bytes:
    """/proc/vmstat, the keys of a NUMA kernel with swap, in the kernel's order."""
    minor, major = host_faults(world, at_s)
    free, file_pages = _memory_pages(world, nodes, at_s)
    hit, other = numa_pages(world, at_s)
    busy = int(world.load_total(at_s))
    rows = {
        "nr_free_pages": free,
        "nr_zone_inactive_anon": 1_204_511,
        "nr_zone_active_anon": 160_220_118,
        "nr_zone_inactive_file": file_pages * 3 // 5,
        "nr_zone_active_file": file_pages * 2 // 5,
        "nr_zone_unevictable": 7_340_032,
        "nr_mlock": 7_340_032,
        "numa_hit": hit * nodes,
        "numa_miss": other if nodes > 1 else 0,
        "numa_foreign": other if nodes > 1 else 0,
        "numa_interleave": 5_120 * nodes,
        "numa_local": hit * nodes - other if nodes > 1 else hit,
        "numa_other": other if nodes > 1 else 0,
        "nr_dirty": 1_000 + busy % 700,
        "nr_writeback": 0,
        "workingset_refault_anon": 0,
        "workingset_refault_file": major - 900_000,
        "pgpgin": 4 * major + 9_000_000,
        "pgpgout": 31_000_000 + 2_100 * busy,
        "pswpin": 1_205,
        "pswpout": 18_440,
        "allocstall_normal": 214,
        "allocstall_movable": 1_977,
        "pgfree": minor + 900_000_000,
        "pgfault": minor + major,
        "pgmajfault": major,
        "oom_kill": 0,
        "numa_pte_updates": 0,
        "numa_hint_faults": 0,
        "numa_hint_faults_local": 0,
        "numa_pages_migrated": 0,
        "pgmigrate_success": 8_120_455,
        "pgmigrate_fail": 12_204,
        "thp_fault_alloc": 3_104_220 + 4 * busy,
        "thp_fault_fallback": 10_457,
    }
    return "".join(f"{key} {value}\n" for key, value in rows.items()).encode()


def meminfo(world: World, nodes: int, at_s: float) -> bytes:
    """/proc/meminfo, kB."""
    free, file_pages = (pages * 4 for pages in _memory_pages(world, nodes, at_s))
    total = MEMORY_KB_PER_NODE * nodes
    rows = {
        "MemTotal": total,
        "MemFree": free,
        "MemAvailable": free + file_pages * 9 // 10,
        "Buffers": 1_204_488,
        "Cached": file_pages,
        "SwapCached": 3_120,
        "Active": (total - free) * 7 // 10,
        "Inactive": file_pages * 3 // 5,
        "Unevictable": 29_360_128,
        "Mlocked": 29_360_128,
        "SwapTotal": 8_388_604,
        "SwapFree": 8_314_844,
        "Dirty": 4_120,
        "Writeback": 0,
        "AnonPages": total - free - file_pages,
        "Shmem": 41_943_040,
    }
    return "".join(f"{key + ':':<16}{value:8} kB\n" for key, value in rows.items()).encode()


def pressure(total: Callable[[float], Stalled], at_s: float) -> bytes:
    """A pressure file. ``total``: its totals at a moment; the averages are those of the time before."""
    now = total(at_s)
    before = [total(at_s - window) for window in _WINDOWS_S]
    lines = (
        _pressure_line("some", now.some_s, [moment.some_s for moment in before]),
        _pressure_line("full", now.full_s, [moment.full_s for moment in before]),
    )
    return "".join(lines).encode()


def host_pressure(world: World, resource: str, at_s: float) -> bytes:
    """/proc/pressure/<resource>."""
    return pressure(lambda moment: host_stalled(world, resource, moment), at_s)


def _pressure_line(kind: str, now_s: float, before_s: list[float]) -> str:
    shares = [
        min(100.0, max(0.0, 100 * (now_s - before) / window))
        for before, window in zip(before_s, _WINDOWS_S, strict=True)
    ]
    return "{} avg10={:.2f} avg60={:.2f} avg300={:.2f} total={}\n".format(kind, *shares, int(now_s * 1e6))


def stat(world: World, task: Task, at_s: float) -> bytes:
    """/proc/<pid>/stat, 52 fields."""
    times = task_times(world, task, at_s)
    fields: list[int | str] = [
        *(task.pid, f"({task.comm})", "R" if task.cpus > 1 else "S", task.parent, task.pid, task.pid, 0, -1),
        *(4_194_304, times.minor_faults, 0, times.major_faults, 0),
        *(int(times.user_s * TICKS), int(times.system_s * TICKS), 0, 0, 20, 0, task.threads, 0),
        *(start_ticks(task), 6 * task.resident_mib << 20, (task.resident_mib << 20) // PAGE, (1 << 64) - 1),
        *(0x55D0_0000_1000, 0x55D0_0020_0000, 0x7FFC_1000_0000, 0, 0, 0, 0, 16_781_312, 16_386, 0, 0, 0),
        *(17, task.pid % CPUS, 0, 0, 0, 0, 0, 0x55D0_0040_0000, 0x55D0_0042_0000, _HEAP),
        *(0x7FFC_1000_2000, 0x7FFC_1000_2040, 0x7FFC_1000_2040, 0x7FFC_1000_2FE0, 0),
    ]
    return (" ".join(map(str, fields)) + "\n").encode()


def statm(task: Task) -> bytes:
    """/proc/<pid>/statm, pages."""
    resident = (task.resident_mib << 20) // PAGE
    return f"{6 * resident} {resident} {resident // 4} 512 0 {3 * resident} 0\n".encode()


def status(task: Task, nodes: int) -> bytes:
    """/proc/<pid>/status."""
    resident = task.resident_mib << 10
    last = nodes - 1
    rows = (
        ("Name", task.comm),
        ("Umask", "0022"),
        ("State", "R (running)" if task.cpus > 1 else "S (sleeping)"),
        ("Tgid", task.pid),
        ("Ngid", 0),
        ("Pid", task.pid),
        ("PPid", task.parent),
        ("TracerPid", 0),
        ("Uid", "0\t0\t0\t0"),
        ("Gid", "0\t0\t0\t0"),
        ("FDSize", 256),
        ("Groups", " "),
        ("NStgid", f"{task.pid}\t1" if task.server else task.pid),
        ("NSpid", f"{task.pid}\t1" if task.server else task.pid),
        ("VmPeak", f"{6 * resident:8} kB"),
        ("VmSize", f"{6 * resident:8} kB"),
        ("VmLck", f"{0:8} kB"),
        ("VmHWM", f"{resident:8} kB"),
        ("VmRSS", f"{resident:8} kB"),
        ("RssAnon", f"{resident * 3 // 4:8} kB"),
        ("RssFile", f"{resident // 8:8} kB"),
        ("RssShmem", f"{resident // 8:8} kB"),
        ("VmSwap", f"{0:8} kB"),
        ("Threads", task.threads),
        ("Cpus_allowed_list", _task_cpus(task, nodes)),
        ("Mems_allowed_list", f"0-{last}" if last else "0"),
        ("voluntary_ctxt_switches", 1_204_118),
        ("nonvoluntary_ctxt_switches", 30_977),
    )
    return "".join(f"{key}:\t{value}\n" for key, value in rows).encode()


def schedstat(world: World, task: Task, tid: int | None, at_s: float) -> bytes | None:
    """/proc/<pid>/schedstat (the main thread's) and task/<tid>/schedstat; None for a thread it does not have."""
    tids = thread_ids(task)
    if tid is not None and tid not in tids:
        return None
    share = thread_shares(task)[0 if tid is None else tids.index(tid)]
    times = task_times(world, task, at_s)
    running = (times.user_s + times.system_s) * share
    return f"{int(running * 1e9)} {int(times.wait_s * share * 1e9)} {int(running * 410)}\n".encode()


def cgroup(world: World, task: Task) -> bytes:
    """/proc/<pid>/cgroup, version 2."""
    if task.server:
        return f"0::/{world.pods[task.server].cgroup}\n".encode()
    return f"0::{_SYSTEM_CGROUPS[task.comm]}\n".encode()


def maps(task: Task) -> bytes:
    """/proc/<pid>/maps: program, heap, libraries, the arenas that hold what is resident, device windows, stack."""
    lines = [
        _map(0x55D0_0000_0000, 0x55D0_0000_1000, "r--p", 0, "fd:00", 393_801, "/usr/bin/python3.12"),
        _map(0x55D0_0000_1000, 0x55D0_0020_0000, "r-xp", 0x1000, "fd:00", 393_801, "/usr/bin/python3.12"),
        _map(_HEAP, _HEAP + 96 * (1 << 20), "rw-p", 0, "00:00", 0, "[heap]"),
    ]
    lines.extend(_map(arena.start, arena.stop, "rw-p", 0, "00:00", 0, "") for arena in arenas(task))
    if task.gpu is not None:
        device = f"/dev/nvidia{task.gpu}"
        lines.append(_map(0x7FB0_0000_0000, 0x7FB0_1000_0000, "rw-s", 0, "00:06", 921, device))
        lines.append(_map(0x7FB0_2000_0000, 0x7FB0_2040_0000, "rw-s", 0, "00:06", 925, "/dev/nvidia-uvm"))
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.590.48.01"
    lines.append(_map(0x7FC0_0000_0000, 0x7FC0_0120_0000, "r-xp", 0x1A_0000, "fd:00", 400_213, library))
    lines.append(_map(0x7FFC_1000_0000, 0x7FFC_1002_1000, "rw-p", 0, "00:00", 0, "[stack]"))
    lines.append(_map(0x7FFC_101F_F000, 0x7FFC_1020_1000, "r-xp", 0, "00:00", 0, "[vdso]"))
    return "".join(lines).encode()


def arenas(task: Task) -> list[range]:
    """Address ranges of the process's large anonymous memory: twelve, together what is resident."""
    size = (task.resident_mib << 20) // 12 // PAGE * PAGE
    return [range(_ARENA + i * 0x8_0000_0000, _ARENA + i * 0x8_0000_0000 + size) for i in range(12)]


def start_ticks(task: Task) -> int:
    """Field 22 of stat: ticks since boot."""
    return int(task.began_s * TICKS)


def _task_cpus(task: Task, nodes: int) -> str:
    # The job is bound to the first node by its device plugin; servers may run anywhere.
    return node_cpus(0, nodes) if task.server == "job" else f"0-{CPUS - 1}"


def _memory_pages(world: World, nodes: int, at_s: float) -> tuple[int, int]:
    total = MEMORY_KB_PER_NODE // 4 * nodes
    file_pages = total // 4
    wobble = noise.bits(world.seed, int(at_s)) % 4096
    return total - file_pages - int(total * used_share(world, at_s)) - wobble, file_pages


def _map(start: int, stop: int, mode: str, offset: int, device: str, inode: int, name: str) -> str:
    head = f"{start:08x}-{stop:08x} {mode} {offset:08x} {device} {inode} "
    return f"{head.ljust(73)}{name}\n" if name else f"{head}\n"
