"""The simulated host's /proc, byte for byte as Linux 6.8 writes it.

System-wide: vmstat, meminfo, pressure. Per process: stat, statm, status, schedstat, cgroup, maps, comm. Pages are
4 KiB, ticks 10 ms. Everything is made from what it is given; ``files`` finds the way here and asks the world. What
the world does not keep are constants: gpumon reads none of them.
"""

from __future__ import annotations

from gpumon.sim.state import HostTotals, Stalled, TaskTimes
from gpumon.sim.tasks import thread_share
from gpumon.sim.world import CPUS, MEMORY_KB_PER_NODE, Task

TICKS = 100
PAGE = 4096
PRESSURES = ("cpu", "io", "memory")

_SWAP_KB = 8_388_604
_SWAPPED_KB = 73_760  # what was out before anything was counted
_HEAP = 0x5601_2F40_0000
_ARENA = 0x7F10_0000_0000
_SYSTEM_CGROUPS = {
    "systemd": "/init.scope",
    "nvidia-persiste": "/system.slice/nvidia-persistenced.service",
    "containerd": "/system.slice/containerd.service",
    "kubelet": "/system.slice/kubelet.service",
}


def vmstat(host: HostTotals, nodes: int) -> bytes:
    """/proc/vmstat, the keys of a NUMA kernel with swap, in the kernel's order."""
    free, file_pages = _memory_pages(host, nodes)
    hit, other, major = host.numa_hits * nodes, host.numa_misses, host.major_faults
    swapped_in, swapped_out = host.swap_in_pages, host.swap_out_pages
    return (
        f"nr_free_pages {free}\nnr_zone_inactive_anon 1204511\nnr_zone_active_anon 160220118\n"
        f"nr_zone_inactive_file {file_pages * 3 // 5}\nnr_zone_active_file {file_pages * 2 // 5}\n"
        "nr_zone_unevictable 7340032\nnr_mlock 7340032\n"
        f"numa_hit {hit}\nnuma_miss {other}\nnuma_foreign {other}\nnuma_interleave {5_120 * nodes}\n"
        f"numa_local {hit - other}\nnuma_other {other}\nnr_dirty 1204\nnr_writeback 0\n"
        f"workingset_refault_anon {swapped_in}\nworkingset_refault_file {major}\n"
        f"pgpgin {4 * (major + swapped_in) + 9_000_000}\npgpgout {4 * swapped_out + 31_000_000}\n"
        f"pswpin {swapped_in}\npswpout {swapped_out}\nallocstall_normal 214\nallocstall_movable 1977\n"
        f"pgfree {host.minor_faults + 900_000_000}\npgfault {host.minor_faults + major}\npgmajfault {major}\n"
        f"oom_kill {host.oom_kills}\n"
        "numa_pte_updates 0\nnuma_hint_faults 0\nnuma_hint_faults_local 0\nnuma_pages_migrated 0\n"
        "pgmigrate_success 8120455\npgmigrate_fail 12204\nthp_fault_alloc 3104220\nthp_fault_fallback 10457\n"
    ).encode()


def meminfo(host: HostTotals, nodes: int) -> bytes:
    """/proc/meminfo, kB."""
    free, file_pages = (pages * 4 for pages in _memory_pages(host, nodes))
    total = MEMORY_KB_PER_NODE * nodes
    swapped = min(_SWAP_KB, max(0, _SWAPPED_KB + 4 * (host.swap_out_pages - host.swap_in_pages)))
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
        "SwapTotal": _SWAP_KB,
        "SwapFree": _SWAP_KB - swapped,
        "Dirty": 4_120,
        "Writeback": 0,
        "AnonPages": total - free - file_pages,
        "Shmem": 41_943_040,
    }
    return "".join(f"{key + ':':<16}{value:8} kB\n" for key, value in rows.items()).encode()


def pressure(now: Stalled, averages: tuple[str, str]) -> bytes:
    """A pressure file. averages: those of ``some`` and of ``full``, as the kernel writes them."""
    some, full = averages
    return f"some {some} total={int(now.some_s * 1e6)}\nfull {full} total={int(now.full_s * 1e6)}\n".encode()


def stat(task: Task, times: TaskTimes, *, stopped: bool) -> bytes:
    """/proc/<pid>/stat, 52 fields."""
    resident = task.resident_mib << 20
    return (
        f"{task.pid} ({task.comm}) {_state(task, stopped=stopped)} {task.parent} {task.pid} {task.pid} 0 -1 4194304 "
        f"{times.minor_faults} 0 {times.major_faults} 0 {int(times.user_s * TICKS)} {int(times.system_s * TICKS)} "
        f"0 0 20 0 {task.threads} 0 {start_ticks(task)} {6 * resident} {resident // PAGE} 18446744073709551615 "
        f"{0x55D0_0000_1000} {0x55D0_0020_0000} {0x7FFC_1000_0000} 0 0 0 0 16781312 16386 0 0 0 "
        f"17 {task.pid % CPUS} 0 0 0 0 0 {0x55D0_0040_0000} {0x55D0_0042_0000} {_HEAP} "
        f"{0x7FFC_1000_2000} {0x7FFC_1000_2040} {0x7FFC_1000_2040} {0x7FFC_1000_2FE0} 0\n"
    ).encode()


def statm(task: Task) -> bytes:
    """/proc/<pid>/statm, pages."""
    resident = (task.resident_mib << 20) // PAGE
    return f"{6 * resident} {resident} {resident // 4} 512 0 {3 * resident} 0\n".encode()


def status(task: Task, cpus: str, nodes: int, *, stopped: bool) -> bytes:
    """/proc/<pid>/status. The pods share the node's pid namespace: a process has one number.

    cpus: list of those it may run on.
    """
    resident = task.resident_mib << 10
    last = nodes - 1
    words = {"R": "R (running)", "S": "S (sleeping)", "T": "T (stopped)"}
    rows = (
        ("Name", task.comm),
        ("Umask", "0022"),
        ("State", words[_state(task, stopped=stopped)]),
        ("Tgid", task.pid),
        ("Ngid", 0),
        ("Pid", task.pid),
        ("PPid", task.parent),
        ("TracerPid", 0),
        ("Uid", "0\t0\t0\t0"),
        ("Gid", "0\t0\t0\t0"),
        ("FDSize", 256),
        ("Groups", " "),
        ("NStgid", task.pid),
        ("NSpid", task.pid),
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
        ("Cpus_allowed_list", cpus),
        ("Mems_allowed_list", f"0-{last}" if last else "0"),
        ("voluntary_ctxt_switches", 1_204_118),
        ("nonvoluntary_ctxt_switches", 30_977),
    )
    return "".join(f"{key}:\t{value}\n" for key, value in rows).encode()


def schedstat(task: Task, times: TaskTimes, tid: int | None) -> bytes | None:
    """/proc/<pid>/schedstat (the main thread's) and task/<tid>/schedstat; None for a thread it does not have."""
    share = thread_share(task, tid)
    if share is None:
        return None
    running_s = (times.user_s + times.system_s) * share
    return f"{int(running_s * 1e9)} {int(times.wait_s * share * 1e9)} {int(running_s * 410)}\n".encode()


def cgroup(task: Task, pod_path: str | None) -> bytes:
    """/proc/<pid>/cgroup, version 2. pod_path: below the cgroup root; None for a process of the system."""
    return f"0::{_SYSTEM_CGROUPS.get(task.comm, '/')}\n".encode() if pod_path is None else f"0::/{pod_path}\n".encode()


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


def _state(task: Task, *, stopped: bool) -> str:
    return "T" if stopped else "R" if task.cpus > 1 else "S"


def _memory_pages(host: HostTotals, nodes: int) -> tuple[int, int]:
    """Free pages, and pages of files: a quarter of the memory, and less where programs need it."""
    total = MEMORY_KB_PER_NODE // 4 * nodes
    rest = total - int(total * host.used_share)
    file_pages = min(total // 4, rest * 3 // 4)
    return rest - file_pages, file_pages


def _map(start: int, stop: int, mode: str, offset: int, device: str, inode: int, name: str) -> str:
    head = f"{start:08x}-{stop:08x} {mode} {offset:08x} {device} {inode} "
    return f"{head.ljust(73)}{name}\n" if name else f"{head}\n"
