"""The simulated host's cgroup tree, version 2: the pods' containers and the folders above them."""

from __future__ import annotations

from gpumon.sim.procfs import PRESSURES, pressure
from gpumon.sim.tasks import members, pod_stalled, pod_times
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


def read(world: World, folder: str, file: str, at_s: float) -> bytes | None:
    """A file of the tree; ``folder`` is below the root, without slashes at its ends. None where there is none."""
    if file == "cgroup.controllers" and names(world, folder, at_s) is not None:
        return _CONTROLLERS
    server = _server_at(world, folder, at_s)
    if server is None:
        return None
    resource, _, kind = file.partition(".")
    if kind == "pressure" and resource in PRESSURES:
        return pressure(lambda moment: pod_stalled(world, server, resource, moment), at_s)
    tasks = members(world, server, at_s)
    resident = sum(task.resident_mib for task in tasks) << 20
    match file:
        case "cgroup.procs":
            return "".join(f"{task.pid}\n" for task in tasks).encode()
        case "cpu.stat":
            return _rows(_cpu_stat(world, server, at_s))
        case "memory.current":
            return f"{resident}\n".encode()
        case "memory.events":
            return _rows(dict.fromkeys(_EVENTS, 0))
        case "memory.stat":
            times = pod_times(world, server, at_s)
            rows = {
                "anon": resident * 3 // 4,
                "file": resident // 4,
                "kernel": resident // 60,
                "shmem": resident // 8,
                "pgfault": times.minor_faults + times.major_faults,
                "pgmajfault": times.major_faults,
            }
            return _rows(rows)
    return None


def names(world: World, folder: str, at_s: float) -> list[str] | None:
    """Names in a folder; None where there is none."""
    if _server_at(world, folder, at_s) is not None:
        return [*_FILES]
    prefix = f"{folder}/" if folder else ""
    paths = [world.pods[server].cgroup for server in _servers(world, at_s)]
    below = {path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)}
    return [*below, "cgroup.controllers"] if below else None


def _cpu_stat(world: World, server: str, at_s: float) -> dict[str, int]:
    times = pod_times(world, server, at_s)
    throttled_s = 0.004 * times.wait_s
    return {
        "usage_usec": int((times.user_s + times.system_s) * 1e6),
        "user_usec": int(times.user_s * 1e6),
        "system_usec": int(times.system_s * 1e6),
        "nr_periods": int(times.user_s * 2),
        "nr_throttled": int(throttled_s * 60),
        "throttled_usec": int(throttled_s * 1e6),
        "nr_bursts": 0,
        "burst_usec": 0,
    }


def _rows(rows: dict[str, int]) -> bytes:
    return "".join(f"{key} {value}\n" for key, value in rows.items()).encode()


def _servers(world: World, at_s: float) -> set[str]:
    return {task.server for task in world.tasks(at_s) if task.server}


def _server_at(world: World, folder: str, at_s: float) -> str | None:
    return next((server for server in _servers(world, at_s) if world.pods[server].cgroup == folder), None)
