"""What the kernel of the simulated host counts: of processes, of cgroups, and of the whole machine.

Made from the sums of ``hostload``. A counter of the whole host holds at least what its processes count, and a pod's
cgroup what its processes use. Times are steady seconds, but for what is said to be of the story.
"""

from __future__ import annotations

from gpumon.sim.hostload import FAULT_MEMORY_S, Sum
from gpumon.sim.population import AGE_S, JOB, OOM_STRENGTH, Life, Population, Task
from gpumon.sim.scenario import Scenario
from gpumon.sim.simulation import Simulation
from gpumon.sim.state import CgroupTimes, HostTotals, Stalled, TaskTimes
from gpumon.sim.timeline import Timeline

_USER_SHARE = 0.82
_WAIT_SHARE = 0.035  # of running time that threads wait for a CPU in the ordinary course
_MINOR_PER_CPU_S = 900.0
_MAJOR_PER_S = 0.15  # of a process in the ordinary course, at full load
_FIRST_MINOR, _FIRST_MAJOR = 2_400, 4  # of each thread, and of each process, when it starts
_HOST_MINOR_PER_S, _HOST_MAJOR_PER_S = 60_000.0, 3.0  # per second and server
_EARLIER_LOAD = 0.5  # of the servers, in the time before the world began
_JOB_CPUS = 1.4
_NUMA_HITS_PER_S, _NUMA_MISSES_PER_S = 31_000.0, 14.0
_USED_SHARE, _USED_BY_LOAD, _USED_BY_PRESSURE = 0.31, 0.05, 0.36
_REMOTE_SHARE = 0.02
_FULL_SHARE = 0.7  # of the time in which something was stalled, everything was


class HostCounts:
    """See the module. Not for several threads at once."""

    def __init__(
        self,
        scenario: Scenario,
        simulation: Simulation,
        population: Population,
        timeline: Timeline,
        started_at_s: float,
    ) -> None:
        self._scenario = scenario
        self._simulation = simulation
        self._population = population
        self._timeline = timeline
        self._started_at_s = started_at_s
        self._index = {server.name: index for index, server in enumerate(scenario.servers)}
        self._jobs = [fault for fault in scenario.faults if fault.kind in ("gpu_contention", "short_job")]

    def task_times(self, task: Task, at_s: float) -> TaskTimes:
        """Counters of a process that is alive."""
        index = self._index.get(task.server)
        if index is None:
            busy_s = task.cpus * max(0.0, at_s - task.began_s)
            return _times(task, busy_s, 0.0, 0.0)
        story_s = at_s - self._started_at_s
        life = self._population.life(index, story_s)
        newer = self._simulation.host(index, story_s)
        older = self._simulation.host_at_start(index, life.number)
        now = [new - old for old, new in zip(older, newer, strict=True)]
        load_s = now[Sum.LOAD] + self._earlier_s(life, task)
        faults = 0.0
        if task.gpu is not None:
            faults = now[Sum.EACH_FAULTS]
            if task.gpu == self._scenario.servers[index].gpus[0]:
                faults += now[Sum.FIRST_FAULTS]
        return _times(task, task.cpus * load_s, task.cpus * now[Sum.STARVED], faults + _MAJOR_PER_S * load_s)

    def stopped(self, task: Task, at_s: float) -> bool:
        """Whether a process is stopped by a signal."""
        story_s = at_s - self._started_at_s
        return any(
            fault.server == task.server
            and (story_s % self._scenario.duration_s - fault.at_s + 1e-6) % 1.0 < fault.strength - 1e-6
            for fault in self._timeline.at_work("process_stopped", story_s)
        )

    def remote_share(self, task: Task, at_s: float) -> float:
        """Share of a process's pages on another NUMA node than that of its GPU."""
        if self._scenario.node.numa_nodes == 1:
            return 0.0
        faults = self._timeline.at_work("numa_remote", at_s - self._started_at_s)
        return max((fault.strength for fault in faults if fault.server == task.server), default=_REMOTE_SHARE)

    def cgroup(self, pod: str, at_s: float) -> CgroupTimes:
        """Counters of a pod's cgroup. It outlives the processes of a server that starts anew."""
        story_s = at_s - self._started_at_s
        index = self._index.get(pod)
        if index is None:
            if pod != JOB:
                raise KeyError(pod)
            busy_s = _JOB_CPUS * sum([self._timeline.seconds(job, story_s) for job in self._jobs])
            quiet = Stalled(0.002 * busy_s, 0.001 * busy_s)
            return CgroupTimes(_USER_SHARE * busy_s, (1 - _USER_SHARE) * busy_s, 0.0, quiet, quiet, quiet)
        now = self._simulation.host(index, story_s)
        cpus = 2.7 + 1.3 * len(self._scenario.servers[index].gpus)
        busy_s = cpus * (now[Sum.LOAD] + _EARLIER_LOAD * self._earlier_age_s())
        return CgroupTimes(
            user_s=_USER_SHARE * busy_s,
            system_s=(1 - _USER_SHARE) * busy_s,
            throttled_s=1.2 + now[Sum.THROTTLED],
            cpu=_stalled(now[Sum.CPU] + 20.0),
            memory=_stalled(now[Sum.MEMORY] + 1.0),
            io=_stalled(now[Sum.IO] + 6.0),
        )

    def totals(self, at_s: float) -> HostTotals:
        """The kernel's own counters since boot."""
        story_s = at_s - self._started_at_s
        rows = [self._simulation.host(index, story_s) for index in range(len(self._scenario.servers))]
        sums = [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * len(Sum)
        age_s = max(0.0, story_s + AGE_S)
        load_s = sums[Sum.LOAD] + _EARLIER_LOAD * AGE_S * len(rows)
        workers = [len(server.gpus) for server in self._scenario.servers]
        faults = sum([row[Sum.FIRST_FAULTS] + n * row[Sum.EACH_FAULTS] for row, n in zip(rows, workers, strict=True)])
        pressure = max([fault.strength for fault in self._timeline.at_work("memory_pressure", story_s)], default=0.0)
        frame, _ = self._simulation.frame(story_s)
        running = min(1.0, sum([reading.running for reading in frame.readings]) / 64)
        return HostTotals(
            minor_faults=4_000_000_000 + int(_HOST_MINOR_PER_S * load_s),
            major_faults=1_000_000 + int(_HOST_MAJOR_PER_S * load_s + faults),
            swap_in_pages=1_205 + int(0.4 * sums[Sum.SWAPPED]),
            swap_out_pages=18_440 + int(0.6 * sums[Sum.SWAPPED]),
            oom_kills=self._oom_kills(story_s),
            # A task that runs is never fully stalled for the CPU: the kernel writes that line as zeros for the host.
            cpu=Stalled(40_000.0 + sums[Sum.CPU] + 0.004 * age_s, 0.0),
            memory=_stalled(3_000.0 + sums[Sum.MEMORY] + FAULT_MEMORY_S * age_s),
            io=_stalled(9_000.0 + sums[Sum.IO] + 0.001 * age_s),
            used_share=_USED_SHARE + _USED_BY_LOAD * running + _USED_BY_PRESSURE * pressure,
            numa_hits=2_000_000_000 + int(_NUMA_HITS_PER_S * load_s),
            numa_misses=120_000 + int(_NUMA_MISSES_PER_S * load_s + sums[Sum.STRAYED]),
        )

    def _earlier_age_s(self) -> float:
        """How long the first lives had lasted when the simulation began; no longer than the host was up."""
        return max(0.0, min(AGE_S, self._started_at_s - 1.0))

    def _earlier_s(self, life: Life, task: Task) -> float:
        """Seconds of full load of a process before the simulation began."""
        return _EARLIER_LOAD * max(0.0, self._started_at_s - task.began_s) if life.number == 0 else 0.0

    def _oom_kills(self, story_s: float) -> int:
        return sum(
            self._timeline.passed(fault.at_s + fault.for_s / 2, story_s)
            for fault in self._scenario.faults
            if fault.kind == "memory_pressure" and fault.strength >= OOM_STRENGTH
        )


def _times(task: Task, busy_s: float, starved_s: float, faults: float) -> TaskTimes:
    return TaskTimes(
        user_s=_USER_SHARE * busy_s,
        system_s=(1 - _USER_SHARE) * busy_s,
        wait_s=_WAIT_SHARE * busy_s + starved_s,
        minor_faults=_FIRST_MINOR * task.threads + int(_MINOR_PER_CPU_S * busy_s),
        major_faults=_FIRST_MAJOR + int(faults),
    )


def _stalled(some_s: float) -> Stalled:
    return Stalled(some_s, _FULL_SHARE * some_s)
