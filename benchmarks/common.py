"""What the benchmarks share: a fake node at work, processes and what they cost, percentiles, the line of JSON.

Run each as ``python -m benchmarks.NAME`` from the root of the repository.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fakenvml.controller import FakeNode
from tests.fakenvml.gpu import Proc, ProcUtil

REAL = ("--procfs", "/proc", "--sysfs", "/sys", "--cgroupfs", "/sys/fs/cgroup")
"""This machine's own files: reading those costs what it costs in production."""
SIZED = {"GPUMON_PROCESSES__LIMIT": "64", "GPUMON_HOST__KERNEL_LOG": "null", "GPUMON_OTLP__ENABLED": "false"}
"""Metrics only."""
_TICKS = os.sysconf("SC_CLK_TCK")
_pause = threading.Event()  # never set


def report(benchmark: str, **figures: object) -> None:
    """The one line."""
    print(json.dumps({"benchmark": benchmark, **figures}))


def wait(seconds: float) -> None:
    """Let others work."""
    _pause.wait(seconds)


def environment(node: FakeNode) -> dict[str, str]:
    """For a process on the node, as it runs when installed: with compiled modules, which a first start writes."""
    env = node.env()
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH"):
        env.pop(name, None)
    return env


@contextlib.contextmanager
def idle_processes(count: int) -> Iterator[list[int]]:
    """Process ids of real processes that wait."""
    processes = [
        subprocess.Popen([sys.executable, "-S", "-E", "-c", "input()"], stdin=subprocess.PIPE) for _ in range(count)
    ]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def put_to_work(node: FakeNode, pids: Sequence[int]) -> None:
    """Every GPU busy, the processes spread over them; values stand still, counters run."""
    for slot, gpu in enumerate(node.gpus):
        gpu.set_utilization(0.8, 0.4)
        gpu.set_power(500.0)
        gpu.set_pcie(1e9, 2e9)
        gpu.set_nvlink(1e10, 1e10)
        gpu.throttle("sw_power_cap", 0.2)
        for metric in ("graphics", "sm", "sm_occupancy", "tensor", "dram", "fp16", "integer"):
            gpu.set_gpm(metric, 0.5)
        mine = pids[slot :: len(node.gpus)]
        gpu.set_memory(2**30 * (1 + len(mine)))
        gpu.set_processes([Proc(pid, 2**30) for pid in mine])
        gpu.set_process_utilization([ProcUtil(pid, sm=10, mem=5) for pid in mine])


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and system, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int) -> tuple[int, int]:
    """PSS and RSS of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name.rstrip(":"): int(size) * 1024 for name, size, *_ in map(str.split, lines)}
    return sizes["Pss"], sizes["Rss"]


def children(pid: int) -> list[int]:
    """Child processes, whichever of its threads began them."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """p50 and p99."""
    ordered = sorted(times_ms)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 3), "p99": round(p99, 3)}
