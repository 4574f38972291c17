"""The simulated host's files: ``host.files.Files`` for what gpumon reads below /proc, /sys and the cgroup tree.

This file finds the way; ``procfs``, ``sysfs`` and ``cgroupfs`` write the contents. What is not simulated is not
there (UNAVAILABLE), as on a kernel without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumon.host.clock import Clock
from gpumon.host.files import ReadError
from gpumon.model import Reason
from gpumon.sim import cgroupfs, procfs, sysfs
from gpumon.sim.tasks import thread_ids
from gpumon.sim.world import Task, World

_NODES = ("sys", "devices", "system", "node")
_PCI = ("sys", "bus", "pci", "devices")
_TASK_FILES = ("cgroup", "comm", "maps", "schedstat", "stat", "statm", "status", "task")
_FIRST_PID_NAMESPACE = 4_026_531_836  # PROC_PID_INIT_INO


class SimFiles:
    """The port over a simulated host. Holds no descriptors: ``keep`` has nothing to keep."""

    def __init__(self, world: World, clock: Clock, numa_nodes: int = 2) -> None:
        """``numa_nodes``: 1 or 2."""
        if numa_nodes not in (1, 2):
            raise ValueError(f"numa_nodes must be 1 or 2, not {numa_nodes}")
        self._world = world
        self._clock = clock
        self._nodes = numa_nodes

    def read(self, path: str, *, keep: bool = False, limit: int = 1 << 20) -> bytes:  # noqa: ARG002 - the port's
        content = self._content(tuple(path.split("/")), self._clock.now_s())
        if content is None:
            raise ReadError(path, Reason.UNAVAILABLE, "no such file")
        if len(content) > limit:
            raise ReadError(path, Reason.MALFORMED, f"larger than {limit} bytes")
        return content

    def link(self, path: str) -> str:
        at_s = self._clock.now_s()
        match path.split("/"):
            case ["proc", pid, "exe"] if self._task(pid, at_s) is not None:
                return "/usr/bin/python3.12"
            case ["proc", pid, "ns", "pid"] if (task := self._task(pid, at_s)) is not None:
                return f"pid:[{_FIRST_PID_NAMESPACE + 1000 * ('', 'a', 'b', 'job').index(task.server)}]"
            case ["sys", "bus", "pci", "devices", bdf] if bdf in sysfs.devices(self._world):
                return f"../../../devices/pci{bdf[:7]}/{bdf}"
        raise ReadError(path, Reason.UNAVAILABLE, "no such link")

    def list(self, path: str) -> list[str]:
        names = self._names(path.split("/"), self._clock.now_s())
        if names is None:
            raise ReadError(path, Reason.UNAVAILABLE, "no such folder")
        return sorted(names)

    def _content(self, parts: tuple[str, ...], at_s: float) -> bytes | None:
        match parts:
            case ("proc", "vmstat"):
                return procfs.vmstat(self._world, self._nodes, at_s)
            case ("proc", "meminfo"):
                return procfs.meminfo(self._world, self._nodes, at_s)
            case ("proc", "pressure", resource) if resource in procfs.PRESSURES:
                return procfs.host_pressure(self._world, resource, at_s)
            case ("proc", pid, *rest) if (task := self._task(pid, at_s)) is not None:
                return self._task_file(task, rest, at_s)
            case (*folder, "online" | "possible" | "has_memory") if tuple(folder) == _NODES:
                return b"0-1\n" if self._nodes == 2 else b"0\n"
            case (*folder, name, file) if tuple(folder) == _NODES and name in self._node_names():
                return sysfs.node_file(self._world, self._nodes, int(name.removeprefix("node")), file, at_s)
            case (*folder, bdf, file) if tuple(folder) == _PCI:
                return sysfs.device_file(self._world, self._nodes, bdf, file)
            case ("cgroup", *folder, file):
                return cgroupfs.read(self._world, "/".join(folder), file, at_s)
        return None

    def _task_file(self, task: Task, parts: Sequence[str], at_s: float) -> bytes | None:
        match parts:
            case ["stat"]:
                return procfs.stat(self._world, task, at_s)
            case ["statm"]:
                return procfs.statm(task)
            case ["status"]:
                return procfs.status(task, self._nodes)
            case ["comm"]:
                return f"{task.comm}\n".encode()
            case ["cgroup"]:
                return procfs.cgroup(self._world, task)
            case ["maps"]:
                return procfs.maps(task)
            case ["schedstat"]:
                return procfs.schedstat(self._world, task, None, at_s)
            case ["task", tid, "schedstat"] if _is_number(tid):
                return procfs.schedstat(self._world, task, int(tid), at_s)
        return None

    def _names(self, parts: Sequence[str], at_s: float) -> Sequence[str] | None:
        match parts:
            case ["proc"]:
                return [*(str(task.pid) for task in self._world.tasks(at_s)), "meminfo", "pressure", "vmstat"]
            case ["proc", "pressure"]:
                return procfs.PRESSURES
            case ["proc", pid] if self._task(pid, at_s) is not None:
                return _TASK_FILES
            case ["proc", pid, "task"] if (task := self._task(pid, at_s)) is not None:
                return [str(tid) for tid in thread_ids(task)]
            case ["cgroup", *folder]:
                return cgroupfs.names(self._world, "/".join(folder), at_s)
        if tuple(parts) == _NODES:
            return [*self._node_names(), "has_memory", "online", "possible"]
        if tuple(parts[:-1]) == _NODES and parts[-1] in self._node_names():
            return sysfs.NODE_FILES
        if tuple(parts) == _PCI:
            return [*sysfs.devices(self._world)]
        if tuple(parts[:-1]) == _PCI and parts[-1] in sysfs.devices(self._world):
            return sysfs.DEVICE_FILES
        return None

    def _task(self, pid: str, at_s: float) -> Task | None:
        if not _is_number(pid):
            return None
        return next((task for task in self._world.tasks(at_s) if task.pid == int(pid)), None)

    def _node_names(self) -> Sequence[str]:
        return [f"node{node}" for node in range(self._nodes)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10
