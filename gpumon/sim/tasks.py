"""What the processes and the kernel of the simulated host count, as closed forms of time.

Everything follows the day's load; the page-fault burst of the story is on top. A counter of the whole host holds at
least what its processes count, and a cgroup exactly what its processes use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpumon.sim.story import Event, Kind, events, load, load_total, rate_total
from gpumon.sim.world import Task, World

_USER_SHARE = 0.82
_WAIT_SHARE = 0.035  # of running time that threads wait for a CPU in the ordinary course
_MINOR_PER_CPU_S = 900.0
_MAJOR_PER_S = 0.15
_HOST_MINOR_PER_S = 60_000.0
_HOST_MAJOR_PER_S = 3.0
_STALL_PER_FAULT_S = {"memory": 58e-6, "io": 72e-6, "cpu": 0.0}
_STALL_SHARE = {"memory": 0.0006, "io": 0.0021, "cpu": 0.011}
"""Share of time in which something was stalled, at full load."""


class TaskTimes(NamedTuple):
    """Counters of one process since it began."""

    user_s: float
    system_s: float
    wait_s: float
    """Ready to run without a CPU, all threads."""
    minor_faults: int
    major_faults: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """Totals of one pressure file, seconds."""

    some_s: float
    full_s: float


def task_times(world: World, task: Task, at_s: float) -> TaskTimes:
    """Counters of a process at a moment of its life."""
    begun, now = world.story_s(task.began_s), world.story_s(at_s)
    busy_s = task.cpus * max(0.0, load_total(now) - load_total(begun))
    major = _MAJOR_PER_S * max(0.0, load_total(now) - load_total(begun))
    if task.server in ("a", "b") and task.gpu is not None:
        rows = events(Kind.PAGE_FAULTS, task.gpu)
        major += rate_total(rows, now) - rate_total(rows, begun)
    return TaskTimes(
        user_s=_USER_SHARE * busy_s,
        system_s=(1 - _USER_SHARE) * busy_s,
        wait_s=_WAIT_SHARE * busy_s,
        minor_faults=2_400 * task.threads + int(_MINOR_PER_CPU_S * busy_s),
        major_faults=4 + int(major),
    )


def thread_shares(task: Task) -> list[float]:
    """How a process's CPU time is spread over its threads; the first is the main thread."""
    if task.threads == 1:
        return [1.0]
    return [0.6, *[0.4 / (task.threads - 1)] * (task.threads - 1)]


def thread_ids(task: Task) -> list[int]:
    """Thread ids; the main thread's is the pid."""
    first = 200_000 + task.pid % 10_000 * 150
    return [task.pid, *range(first, first + task.threads - 1)]


def host_faults(world: World, at_s: float) -> tuple[int, int]:
    """Minor and major page faults of the whole host since it booted."""
    busy_s = world.load_total(at_s)
    burst = rate_total(_page_fault_rows(world), world.story_s(at_s))
    minor = 4_000_000_000 + int(_HOST_MINOR_PER_S * busy_s)
    return minor, 1_000_000 + int(_HOST_MAJOR_PER_S * busy_s + burst)


def host_stalled(world: World, resource: str, at_s: float) -> Stalled:
    """Pressure totals of the host: ``cpu``, ``memory`` or ``io``."""
    burst = rate_total(_page_fault_rows(world), world.story_s(at_s)) * _STALL_PER_FAULT_S[resource]
    some_s = 40_000.0 + _STALL_SHARE[resource] * world.load_total(at_s) + burst
    # A task that runs is never fully stalled for the CPU: the kernel writes that line as zeros for the host.
    return Stalled(some_s, 0.0 if resource == "cpu" else 0.55 * some_s)


def numa_pages(world: World, at_s: float) -> tuple[int, int]:
    """Pages allocated per node as wanted, and from the wrong node over all nodes, since boot."""
    busy_s = world.load_total(at_s)
    return 2_000_000_000 + int(31_000 * busy_s), 120_000 + int(14 * busy_s)


def pod_stalled(world: World, server: str, resource: str, at_s: float) -> Stalled:
    """Pressure totals of a pod's cgroup."""
    rows = [row for row in _page_fault_rows(world) if any(t.gpu == row.gpu for t in members(world, server, at_s))]
    burst = rate_total(rows, world.story_s(at_s)) * _STALL_PER_FAULT_S[resource]
    some_s = 900.0 + 0.5 * _STALL_SHARE[resource] * world.load_total(at_s) + burst
    return Stalled(some_s, 0.7 * some_s)


def pod_times(world: World, server: str, at_s: float) -> TaskTimes:
    """Sum of the counters of a pod's processes."""
    rows = [task_times(world, task, at_s) for task in members(world, server, at_s)]
    return TaskTimes(
        user_s=sum(row.user_s for row in rows),
        system_s=sum(row.system_s for row in rows),
        wait_s=sum(row.wait_s for row in rows),
        minor_faults=sum(row.minor_faults for row in rows),
        major_faults=sum(row.major_faults for row in rows),
    )


def used_share(world: World, at_s: float) -> float:
    """Share of a node's memory in use by programs: a third, a little more under load."""
    return 0.31 + 0.05 * load(world.story_s(at_s))


def members(world: World, server: str, at_s: float) -> list[Task]:
    """Processes of a pod alive at a moment."""
    return [task for task in world.tasks(at_s) if task.server == server]


def _page_fault_rows(world: World) -> list[Event]:
    return [row for row in events(Kind.PAGE_FAULTS) if row.gpu < len(world.boards)]
