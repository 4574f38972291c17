"""Rows of gpumon-node: processes that hold GPUs, their page faults beside the time to first token, their NUMA places."""

from __future__ import annotations

from gpumon import catalogue as c
from gpumon.model import Metric
from grafana import panels
from grafana.columns import colored
from grafana.kit import Board
from grafana.queries import Query, quantile, rate, select, where

_MAJOR = where("kind", "major")
_PROCESS = "cluster, node, pid, process, namespace, pod, container"
_BY_PROCESS = f"by ({_PROCESS})"
_BY_HOLDER = f"by (gpu, {_PROCESS})"
_NAME = "{{node}} {{process}} {{pid}}"
_ON_GPU = "{{node}} GPU {{gpu}} {{process}} {{pid}}"


def add(board: Board) -> None:
    """Adds the rows."""
    board.row("Processes", (24, _table()), height=9)
    board.add((8, _sm_share()), (8, _cpu()), (8, _waiting()))
    board.add((12, _stalled()), (12, _stopped()), height=7)
    board.row("Page faults beside first tokens", (12, _faults_and_tokens()), (12, _faults()))
    board.row("NUMA locality", (8, _local("memory")), (8, _local("CPUs")), (8, _places()))


def _held(expr: str, by: str = "pid") -> str:
    """A figure of processes that hold a GPU now, once for each GPU, so that rows of tables come together.

    Without it, those that have ended in the time selected would be rows of their own.
    """
    holders = _where(f"group {_BY_HOLDER} ({select(c.PROCESS_GPU_MEMORY)})")
    return f"(sum by (cluster, node, {by}) ({expr})) * on (cluster, node, {by}) group_right () ({holders})"


def _where(expr: str) -> str:
    """The series with namespace, pod and container in one label, ``of``; outside of Kubernetes there is the last alone."""
    joined = f'label_join({expr}, "of", "/", "namespace", "pod", "container")'
    return f'label_replace({joined}, "of", "$1", "of", "/*(.*)")'


def _wait_share(window: str) -> str:
    waited = f"sum {_BY_PROCESS} ({rate(c.PROCESS_RUNQUEUE_SECONDS, window=window)})"
    ran = f"sum {_BY_PROCESS} ({rate(c.PROCESS_CPU_SECONDS, window=window)})"
    return f"{waited} / ({waited} + {ran})"


def _table() -> panels.Panel:
    window = "$__range"
    major = rate(c.PROCESS_PAGE_FAULTS, _MAJOR, window=window)
    columns = {
        "GPU memory": (_held(select(c.PROCESS_GPU_MEMORY), "gpu, pid"), "bytes"),
        "SM share": (_held(f"avg_over_time({select(c.PROCESS_GPU_SM)}[{window}])", "gpu, pid"), "percentunit"),
        "CPUs": (_held(rate(c.PROCESS_CPU_SECONDS, window=window)), "short"),
        "Waiting for a CPU": (_held(_wait_share(window)), "percentunit"),
        "Major faults/s": (_held(major), "short"),
        "Stopped": (_held(rate(c.PROCESS_STOPPED_SECONDS, window=window)), "percentunit"),
        "Memory near GPU": (_held(select(c.PROCESS_NUMA_LOCAL), "gpu, pid"), "percentunit"),
        "Host memory": (_held(select(c.PROCESS_RESIDENT)), "bytes"),
        "Threads": (_held(select(c.PROCESS_THREADS)), "short"),
    }
    values = {f"Value #{chr(ord('A') + index)}": heading for index, heading in enumerate(columns)}
    panel = panels.rows(
        "Processes that hold a GPU",
        "One row for each GPU that a process holds; figures of its CPU are then the same in each. GPU memory, places, "
        "host memory and threads are of now, the others means over the time selected, in which a young process was not "
        "there for long. Two servers on one GPU share its SMs. Waiting for a CPU: of the time in which its threads wanted one; healthy servers are below 5 %.",
        *(Query(expr) for expr, _ in columns.values()),
        rename={"node": "Node", "gpu": "GPU", "process": "Process", "pid": "PID", "of": "Container"} | values,
        order=("node", "gpu", "process", "pid", *values, "of"),
        units={heading: unit for heading, (_, unit) in columns.items()},
        sort_by="GPU memory",
        empty="no process holds a GPU, or the source gpu_processes is down: see What is missing",
    )
    colored(panel, "Waiting for a CPU", steps=((None, "transparent"), (0.05, "orange"), (0.15, "red")))
    colored(panel, "Stopped", steps=((None, "transparent"), (0.001, "red")))
    return colored(panel, "Memory near GPU", steps=((None, "red"), (0.7, "transparent")))


def _sm_share() -> panels.Panel:
    return panels.graph(
        "SM share by process",
        "Of the GPU's SMs, over the driver's last samples. A process that is not of the server and takes more than 5 % "
        "slows it down: move it, or give each its own part (MIG, MPS).",
        Query(f"sum {_BY_HOLDER} ({select(c.PROCESS_GPU_SM)})", _ON_GPU),
        unit="percentunit",
    )


def _cpu() -> panels.Panel:
    return panels.graph(
        "CPUs used by process",
        "CPU seconds per second, all threads: 1 is one CPU. A server that feeds its GPU polls, so a steady 1 for each "
        "worker is normal; a fall to nothing with requests open is a process that is stopped or stuck.",
        Query(f"sum {_BY_PROCESS} ({rate(c.PROCESS_CPU_SECONDS)})", _NAME),
        unit="short",
    )


def _waiting() -> panels.Panel:
    return panels.graph(
        "CPU that was wanted and not had",
        "Share of the time in which threads wanted a CPU and waited in the run queue, and seconds in which the cgroup's "
        "CPU quota held the process back. Above 15 % tokens wait for the host: give the server whole CPUs, or raise "
        "the pod's limit.",
        Query(_wait_share("$__rate_interval"), f"{_NAME} waits"),
        Query(f"sum {_BY_PROCESS} ({rate(c.PROCESS_CPU_THROTTLED)})", f"{_NAME} quota"),
        unit="percentunit",
        steps=((None, "green"), (0.15, "red")),
    )


def _stalled() -> panels.Panel:
    some = rate(c.PROCESS_PRESSURE, where("kind", "some"))
    by = "by (cluster, node, namespace, pod, container, resource)"
    return panels.graph(
        "Pressure in the processes' cgroups",
        "Share of time in which some task of the cgroup waited for CPU, memory or storage. Processes of one container "
        "have the same figure. Memory above 0: the limit of the pod is near.",
        Query(_where(f"max {by} ({some})"), "{{node}} {{of}} {{resource}}"),
        unit="percentunit",
    )


def _stopped() -> panels.Panel:
    return panels.graph(
        "Stopped by a signal or a tracer",
        "Share of time in which the process was stopped (state T or t). Anything but 0: find who stopped it (a "
        "debugger, a profiler, the cgroup freezer); kill -CONT lets it go on.",
        Query(f"sum {_BY_PROCESS} ({rate(c.PROCESS_STOPPED_SECONDS)})", _NAME),
        unit="percentunit",
        steps=((None, "green"), (0.01, "red")),
    )


def _faults_and_tokens() -> panels.Panel:
    major = rate(c.PROCESS_PAGE_FAULTS, _MAJOR)
    panel = panels.graph(
        "Major page faults and time to first token",
        "Faults that waited for storage or a migration (left), and the P99 of the time to first token by model (right). "
        "Peaks of both together: keep the server's pages in memory (no swap, locked weights, a larger limit of the "
        "pod). A P99 of few requests is the slowest of them, within a bucket of the histogram; with no request there "
        "is none.",
        Query(f"sum by (cluster, node) ({major})", "{{node}} faults of GPU processes"),
        Query(f"max by (cluster, node) ({rate(c.HOST_PAGE_FAULTS, _MAJOR)})", "{{node}} faults of the host"),
        Query(
            quantile(0.99, c.REQUEST_FIRST_TOKEN, by=("cluster", "node", "model")),
            "{{node}} P99 to first token {{model}}",
        ),
        unit="short",
    )
    panel.axis_label("major faults per second")
    return panels.right_axis(panel, "/P99/", "s", "P99 time to first token")


def _faults() -> panels.Panel:
    return panels.graph(
        "Major page faults by process",
        "Each one waits 0.1 to 10 ms for storage. Below 50 a second nobody notices; a burst stops the server for as "
        "long as it lasts. Minor faults cost next to nothing, and are left out.",
        Query(f"sum {_BY_PROCESS} ({rate(c.PROCESS_PAGE_FAULTS, _MAJOR)})", _NAME),
        unit="short",
        steps=((None, "green"), (50, "orange")),
    )


def _local(what: str) -> panels.Panel:
    metric: Metric = c.PROCESS_NUMA_LOCAL if what == "memory" else c.PROCESS_CPUS_LOCAL
    return panels.graph(
        f"Process {what} near the GPU",
        f"Share of the process's {what} on the NUMA node of its GPU. Below 0.7, what goes to the GPU crosses sockets: "
        "start the server with `numactl --cpunodebind --membind`, in Kubernetes with the topology manager "
        "(`single-numa-node`). Pages do not move by themselves: it needs a restart.",
        Query(f"sum {_BY_HOLDER} ({select(metric)})", _ON_GPU),
        unit="percentunit",
        most=1,
        steps=((None, "red"), (0.7, "green")),
        empty="no data: one NUMA node only, or the source numa is down (it needs CAP_SYS_PTRACE)",
    )


def _places() -> panels.Panel:
    return panels.graph(
        "Where the processes' memory lies",
        "Resident host memory of all followed processes by NUMA node, estimated from about 1,024 pages of each. Memory "
        "that moves from one node to the other is a server that was started anew, or pages that were migrated.",
        Query(
            f"sum by (cluster, node, numa_node) ({select(c.PROCESS_NUMA_RESIDENT)})",
            "{{node}} NUMA node {{numa_node}}",
        ),
        unit="bytes",
        stacked=True,
        empty="no data: the source numa is down, or needs CAP_SYS_PTRACE",
    )
