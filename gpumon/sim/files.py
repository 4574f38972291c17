"""The simulated host's files: ``host.files.Files`` for what gpumon reads below /proc, /sys and the cgroup tree.

This file finds the way; ``procfs``, ``sysfs`` and ``cgroupfs`` write the contents. What is not simulated is not
there (UNAVAILABLE), as on a kernel without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.host.clock import Clock
from gpumon.host.files import ReadError
from gpumon.model import Reason
from gpumon.sim import procfs, sysfs
from gpumon.sim.cgroupfs import Cgroups
from gpumon.sim.counters import Counters
from gpumon.sim.tasks import Census, Living, thread_ids
from gpumon.sim.world import CPUS, Task, World

_NODES = "sys/devices/system/node"
_PCI = "sys/bus/pci/devices"
_TASK_FILES = ("cgroup", "comm", "maps", "schedstat", "stat", "statm", "status", "task")
_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO: the pods share the node's


class SimFiles:
    """The port over a simulated host. Holds no descriptors: ``keep`` has nothing to keep. May be shared by threads."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world = world
        self._clock = clock
        self._nodes = world.numa_nodes
        self._census = Census(world)
        self._counters = Counters(world)
        self._cgroups = Cgroups(world, self._counters)
        self._devices = sysfs.devices(world)

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:  # noqa: ARG002 - the port's
        content = self._content(path, self._clock.now_s())
        if content is None:
            raise ReadError(path, Reason.UNAVAILABLE, "no such file")
        if len(content) > limit:
            raise ReadError(path, Reason.MALFORMED, f"larger than {limit} bytes")
        return content

    def link(self, path: str) -> str:
        living = self._census.at(self._clock.now_s())
        match path.split("/"):
            case ["proc", pid, "exe"] if _task(living, pid) is not None:
                return "/usr/bin/python3.12"
            case ["proc", pid, "ns", "pid"] if _task(living, pid) is not None:
                return _PID_NAMESPACE
            case ["sys", "bus", "pci", "devices", bdf] if bdf in self._devices:
                return f"../../../devices/pci{bdf[:7]}/{bdf}"
        raise ReadError(path, Reason.UNAVAILABLE, "no such link")

    def list(self, path: str) -> list[str]:
        names = self._names(path, self._census.at(self._clock.now_s()))
        if names is None:
            raise ReadError(path, Reason.UNAVAILABLE, "no such folder")
        return sorted(names)

    def _content(self, path: str, at_s: float) -> bytes | None:
        root, _, rest = path.partition("/")
        if root == "proc":
            first, _, rest = rest.partition("/")
            task = _task(self._census.at(at_s), first)
            return self._task_file(task, rest, at_s) if task is not None else self._system_file(first, rest, at_s)
        folder, _, file = path.rpartition("/")
        if root == "cgroup":
            return self._cgroups.read(self._census.at(at_s), folder[len("cgroup/") :], file, at_s)
        if folder == _NODES and file in {"online", "possible", "has_memory"}:
            return b"0-1\n" if self._nodes == 2 else b"0\n"
        above, _, name = folder.rpartition("/")
        if above == _NODES and name in self._node_names():
            node = int(name.removeprefix("node"))
            return sysfs.node_file(self._counters.host(at_s), self._nodes, node, file)
        if above == _PCI and name in self._devices:
            return sysfs.device_file(self._devices[name], self._nodes, file)
        return None

    def _system_file(self, name: str, rest: str, at_s: float) -> bytes | None:
        if name == "vmstat" and not rest:
            return procfs.vmstat(self._counters.host(at_s), self._nodes)
        if name == "meminfo" and not rest:
            return procfs.meminfo(self._counters.host(at_s), self._nodes)
        if name == "pressure" and rest in procfs.PRESSURES:
            return procfs.pressure(self._counters.stalled("", rest, at_s), self._counters.averages("", rest, at_s))
        return None

    def _task_file(self, task: Task, file: str, at_s: float) -> bytes | None:
        world = self._world
        match file:
            case "stat":
                stopped = world.task_stopped(task.pid, at_s)
                return procfs.stat(task, world.task_times(task, at_s), stopped=stopped)
            case "statm":
                return procfs.statm(task)
            case "status":
                stopped = world.task_stopped(task.pid, at_s)
                return procfs.status(task, self._cpus(task), self._nodes, stopped=stopped)
            case "comm":
                return f"{task.comm}\n".encode()
            case "cgroup":
                return procfs.cgroup(task, world.pods[task.server].cgroup if task.server else None)
            case "maps":
                return procfs.maps(task)
            case "schedstat":
                return procfs.schedstat(task, world.task_times(task, at_s), None)
        folder, _, rest = file.partition("/")
        tid, _, name = rest.partition("/")
        if folder == "task" and name == "schedstat" and _is_number(tid):
            return procfs.schedstat(task, world.task_times(task, at_s), int(tid))
        return None

    def _cpus(self, task: Task) -> str:
        """CPUs it may run on: those beside its GPU, as the kubelet's topology manager deals them out."""
        if task.gpu is None:
            return f"0-{CPUS - 1}"
        return sysfs.node_cpus(min(self._world.boards[task.gpu].node, self._nodes - 1), self._nodes)

    def _names(self, path: str, living: Living) -> Sequence[str] | None:
        match path.split("/"):
            case ["proc"]:
                return [*(str(task.pid) for task in living.tasks), "meminfo", "pressure", "vmstat"]
            case ["proc", "pressure"]:
                return procfs.PRESSURES
            case ["proc", pid] if _task(living, pid) is not None:
                return _TASK_FILES
            case ["proc", pid, "task"] if (task := _task(living, pid)) is not None:
                return [pid, *map(str, thread_ids(task))]
            case ["cgroup", *folder]:
                return self._cgroups.names(living, "/".join(folder))
        above, _, name = path.rpartition("/")
        if path == _NODES:
            return [*self._node_names(), "has_memory", "online", "possible"]
        if above == _NODES and name in self._node_names():
            return sysfs.NODE_FILES
        if path == _PCI:
            return [*self._devices]
        if above == _PCI and name in self._devices:
            return sysfs.DEVICE_FILES
        return None

    def _node_names(self) -> Sequence[str]:
        return ("node0", "node1")[: self._nodes]


def _task(living: Living, pid: str) -> Task | None:
    return living.by_pid.get(int(pid)) if _is_number(pid) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10
