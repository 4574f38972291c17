"""The simulated host's cgroup tree, version 2: the pods' containers and the folders above them."""

from __future__ import annotations

from gpumon.sim.counters import Counters
from gpumon.sim.procfs import PRESSURES, pressure
from gpumon.sim.tasks import Living
from gpumon.sim.world import World

_FILES = (
    "cgroup.controllers",
    "cgroup.procs",
    "cpu.pressure",
    "cpu.stat",
    "io.pressure",
    "memory.current",
    "memory.events",
    "memory.pressure",
    "memory.stat",
)
_CONTROLLERS = b"cpuset cpu io memory hugetlb pids rdma misc\n"
_EVENTS = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")


class Cgroups:
    """The tree. A pod's folder is there as long as it has a process."""

    def __init__(self, world: World, counters: Counters) -> None:
        self._world = world
        self._counters = counters
        self._pods = {pod.cgroup: key for key, pod in world.pods.items()}

    def read(self, living: Living, folder: str, file: str, at_s: float) -> bytes | None:
        """A file of the tree; ``folder`` is below the root, without slashes at its ends. None where there is none."""
        pod = self._pods.get(folder)
        tasks = living.by_pod.get(pod) if pod is not None else None
        if pod is None or tasks is None:
            there = file == "cgroup.controllers" and self.names(living, folder) is not None
            return _CONTROLLERS if there else None
        resource, _, kind = file.partition(".")
        if kind == "pressure" and resource in PRESSURES:
            stalled = self._counters.stalled(pod, resource, at_s)
            return pressure(stalled, self._counters.averages(pod, resource, at_s))
        match file:
            case "cgroup.controllers":
                return _CONTROLLERS
            case "cgroup.procs":
                return "".join([f"{task.pid}\n" for task in tasks]).encode()
            case "cpu.stat":
                return self._cpu_stat(pod, at_s)
            case "memory.current":
                return f"{sum(task.resident_mib for task in tasks) << 20}\n".encode()
            case "memory.events":
                return "".join([f"{event} 0\n" for event in _EVENTS]).encode()
            case "memory.stat":
                resident = sum(task.resident_mib for task in tasks) << 20
                times = [self._world.task_times(task, at_s) for task in tasks]
                major = sum(row.major_faults for row in times)
                faults = sum(row.minor_faults for row in times) + major
                return (
                    f"anon {resident * 3 // 4}\nfile {resident // 4}\nkernel {resident // 60}\n"
                    f"shmem {resident // 8}\npgfault {faults}\npgmajfault {major}\n"
                ).encode()
        return None

    def names(self, living: Living, folder: str) -> list[str] | None:
        """Names in a folder; None where there is none."""
        if self._pods.get(folder) in living.by_pod:
            return [*_FILES]
        prefix = f"{folder}/" if folder else ""
        paths = [path for path, pod in self._pods.items() if pod in living.by_pod]
        below = {path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)}
        return [*below, "cgroup.controllers"] if below else None

    def _cpu_stat(self, pod: str, at_s: float) -> bytes:
        times = self._counters.cgroup(pod, at_s)
        # A quota is dealt out every 100 ms; about a third of the period is left when it is used up.
        periods, throttled = int(10 * (times.user_s + times.system_s)), int(30 * times.throttled_s)
        return (
            f"usage_usec {int((times.user_s + times.system_s) * 1e6)}\nuser_usec {int(times.user_s * 1e6)}\n"
            f"system_usec {int(times.system_s * 1e6)}\nnr_periods {periods}\nnr_throttled {throttled}\n"
            f"throttled_usec {int(times.throttled_s * 1e6)}\nnr_bursts 0\nburst_usec 0\n"
        ).encode()
