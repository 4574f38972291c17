"""The simulated node, for its faces: what every part of it is at any moment that is asked for.

Deterministic: the same scenario, seed and start give the same node in any process, whoever asks for what and when.
Advances as far as the newest moment asked for and remembers LOOK_BACK_S before it; an older moment is answered by the
oldest that is kept. Thread-safe. Times are steady seconds.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from gpumon.sim.boards import MIB, MODELS, Board, Model, boards
from gpumon.sim.hardware import driver_at, driver_changes, hardware_at, hardware_changes, xids_between
from gpumon.sim.hostcounts import HostCounts
from gpumon.sim.outbox import Outbox
from gpumon.sim.physics import Moment
from gpumon.sim.population import Pod, Population, Task
from gpumon.sim.scenario import Scenario, ServerSpec
from gpumon.sim.servercounts import server_state
from gpumon.sim.simulation import Simulation
from gpumon.sim.state import (
    CgroupTimes,
    CollectiveStep,
    FinishedRequest,
    GpuMoment,
    Hardware,
    HostTotals,
    ServerState,
    TaskTimes,
    XidEvent,
)
from gpumon.sim.timeline import Timeline

__all__ = ["CPUS", "MEMORY_KB_PER_NODE", "MIB", "Board", "Model", "Pod", "ServerSpec", "Task", "World"]

CPUS: Final = 192
MEMORY_KB_PER_NODE: Final = 1_056_764_928  # 2 TiB in two sockets, less what the kernel keeps
_MOST_TOKENS = 400_000  # of requests that nobody takes
_MOST_REQUESTS = 20_000
_MOST_COLLECTIVES = 20_000


class World:
    """One simulated node. See the module."""

    def __init__(self, scenario: Scenario, *, started_at_s: float, seed: int | None = None) -> None:
        """``started_at_s``: when the story begins. ``seed``: instead of the scenario's own."""
        self.scenario = scenario
        self.seed = scenario.seed if seed is None else seed
        self.started_at_s = started_at_s
        self.model: Model = MODELS[scenario.node.model]
        self.numa_nodes = scenario.node.numa_nodes
        self.boards: tuple[Board, ...] = boards(self.seed, scenario.node.gpus, self.numa_nodes)
        self.servers: tuple[ServerSpec, ...] = scenario.servers
        self._population = Population(scenario, self.seed, started_at_s)
        self.pods: dict[str, Pod] = self._population.pods
        self._timeline = Timeline(scenario)
        self._requests: Outbox[FinishedRequest] = Outbox(_MOST_REQUESTS, _MOST_TOKENS, _weight)
        self._collectives: Outbox[CollectiveStep] = Outbox(_MOST_COLLECTIVES, _MOST_COLLECTIVES, lambda _: 1)
        self._simulation = Simulation(
            scenario,
            self.seed,
            self.model,
            self._population,
            self._timeline,
            started_at_s,
            self._requests.add,
            self._collectives.add,
        )
        self._host = HostCounts(scenario, self._simulation, self._population, self._timeline, started_at_s)
        self._moments: dict[int, tuple[float, Moment]] = {}
        self._hardware: dict[int, tuple[float, Hardware]] = {}
        self._hardware_changes = [hardware_changes(scenario, board.index) for board in self.boards]
        self._driver_changes = driver_changes(scenario)
        self._holders: tuple[tuple[Task, ...], list[list[Task]]] = ((), [[] for _ in self.boards])
        """Processes alive, and those that hold each GPU."""
        self._times: tuple[float, dict[Task, TaskTimes]] = (started_at_s, {})
        """As last asked for, at which moment."""
        self._lock = Lock()

    @property
    def dropped(self) -> int:
        """Requests and collectives that were forgotten because nobody took them."""
        return self._requests.dropped + self._collectives.dropped

    def story_s(self, at_s: float) -> float:
        """Seconds since the story first began; negative before."""
        return at_s - self.started_at_s

    # --- GPUs ---------------------------------------------------------------------------------------------------------

    def gpu(self, index: int, at_s: float) -> GpuMoment:
        """One GPU."""
        known = self._moments.get(index)
        if known is not None and known[0] == at_s:
            return known[1]
        with self._lock:
            frame, begun_s = self._simulation.frame(at_s - self.started_at_s)
        moment = Moment(frame.gpus[index], begun_s, (self.seed, index, frame.number))
        self._moments[index] = (at_s, moment)
        return moment

    def hardware(self, index: int, at_s: float) -> Hardware:
        """What of it changes seldom."""
        known = self._hardware.get(index)
        if known is not None and (known[0] == at_s or not self._hardware_changes[index]):
            return known[1]
        hardware = hardware_at(self.scenario, self._timeline, self.model, self.seed, index, self.story_s(at_s))
        self._hardware[index] = (at_s, hardware)
        return hardware

    def xids(self, since_s: float, until_s: float) -> list[XidEvent]:
        """Errors that the driver reports, from ``since_s`` (not itself) to ``until_s``; by time."""
        start_s = self.started_at_s
        rows = xids_between(self._timeline, since_s - start_s, until_s - start_s)
        return [XidEvent(at_s + start_s, gpu, xid) for at_s, gpu, xid in rows]

    def driver(self, at_s: float) -> str:
        """``loaded``, ``unloaded`` or ``mismatch`` (the library is of another version)."""
        return driver_at(self._timeline, self.story_s(at_s)) if self._driver_changes else "loaded"

    # --- host ---------------------------------------------------------------------------------------------------------

    def tasks(self, at_s: float) -> tuple[Task, ...]:
        """Processes alive, by pid: the same tuple as before as long as nothing has changed."""
        with self._lock:
            return self._population.tasks(self.story_s(at_s))

    def gpu_tasks(self, index: int, at_s: float) -> list[Task]:
        """Processes that hold a GPU; the list is not to be changed."""
        tasks, holders = self.tasks(at_s), self._holders
        if tasks is not holders[0]:
            by_gpu = [[task for task in tasks if task.gpu == board.index] for board in self.boards]
            holders = self._holders = (tasks, by_gpu)
        return holders[1][index]

    def task_times(self, task: Task, at_s: float) -> TaskTimes:
        """Counters of a process that is alive."""
        known_s, known = self._times
        if known_s != at_s:
            known = {}
            self._times = (at_s, known)
        times = known.get(task)
        if times is None:  # a hundred threads are told of from the same counters
            with self._lock:
                times = known[task] = self._host.task_times(task, at_s)
        return times

    def task_stopped(self, pid: int, at_s: float) -> bool:
        """Whether the process is stopped by a signal."""
        if not self._timeline.at_work("process_stopped", self.story_s(at_s)):
            return False
        return any(task.pid == pid and self._host.stopped(task, at_s) for task in self.tasks(at_s))

    def remote_share(self, task: Task, at_s: float) -> float:
        """Share of the process's pages on another NUMA node than that of its GPU."""
        return self._host.remote_share(task, at_s)

    def cgroup(self, pod_key: str, at_s: float) -> CgroupTimes:
        """Counters of a pod's cgroup. Raises KeyError."""
        with self._lock:
            return self._host.cgroup(pod_key, at_s)

    def host(self, at_s: float) -> HostTotals:
        """The kernel's own counters."""
        with self._lock:
            return self._host.totals(at_s)

    # --- servers ------------------------------------------------------------------------------------------------------

    def server_state(self, index: int, at_s: float) -> ServerState:
        """What a server's metrics page says."""
        with self._lock:
            return server_state(self.scenario, index, self._simulation, self._population, self.story_s(at_s))

    def take_requests(self, until_s: float) -> list[FinishedRequest]:
        """Requests that ended up to a moment, each told once, by time of their end."""
        with self._lock:
            self._simulation.frame(until_s - self.started_at_s)
            return self._requests.take(until_s)

    def take_collectives(self, until_s: float) -> list[CollectiveStep]:
        """Collective operations that ended up to a moment, each told once, by time of their end."""
        with self._lock:
            self._simulation.frame(until_s - self.started_at_s)
            return self._collectives.take(until_s)


def _weight(request: FinishedRequest) -> int:
    return len(request.token_s)
