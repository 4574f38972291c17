"""Who lives on the simulated host: pods, the processes in them, and when a server ends and starts anew.

All of it follows from the scenario alone, in closed form: ``Population`` answers for any moment of the story. Times
are seconds of the story here, except those of a Task, which are steady.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final, NamedTuple

from gpumon.sim import noise
from gpumon.sim.boards import MODELS
from gpumon.sim.scenario import Fault, Scenario, ServerSpec

JOB: Final = "job"
"""Key of the pod whose processes share GPUs with the servers."""
ENDING_XIDS: Final = frozenset((13, 31, 43, 45, 48, 62, 64, 74, 79, 94, 95, 109, 119, 120))
"""After these the process on the GPU is gone."""
OOM_STRENGTH: Final = 0.9
AGE_S: Final = 7_340.0
"""How long the servers had run when the world began."""

_RESTART_S = 2.0  # until the kubelet has started it again
_LOAD_S = 10.0  # until the weights are in
_SERVING_SHARE = 0.9  # of the GPU's memory that an inference server takes for weights and KV cache
_JOB_MIB = 6_144
_JOB_PID = 169_500
_NAMES = {
    "vllm": ("vllm", "VLLM::EngineCor", "VLLM::Worker_TP"),
    "sglang": ("sglang", "sglang::detoken", "sglang::schedul"),
}


class Pod(NamedTuple):
    """A Kubernetes pod with one container."""

    namespace: str
    name: str
    uid: str
    container: str
    """Name of the container."""
    container_id: str

    @property
    def cgroup(self) -> str:
        """Path below the cgroup root, as the kubelet and containerd make it with the systemd driver."""
        slice_ = "kubepods-burstable"
        pod = f"{slice_}-pod{self.uid.replace('-', '_')}.slice"
        return f"kubepods.slice/{slice_}.slice/{pod}/cri-containerd-{self.container_id}.scope"


class Task(NamedTuple):
    """A process of the simulated host."""

    pid: int
    parent: int
    comm: str
    """Name as the kernel keeps it, at most 15 bytes."""
    server: str
    """Key of its pod: the name of an inference server, ``job`` for what shares a GPU, empty for the system."""
    gpu: int | None
    gpu_mib: int
    """Device memory it holds."""
    began_s: float
    """Steady time of its start."""
    threads: int
    resident_mib: int
    cpus: float
    """CPUs it keeps busy at full load."""


class Life(NamedTuple):
    """A server between two ends."""

    number: int
    """Counts the lives of the server: 0 is the one that had begun before the world."""
    began_s: float
    """When its processes start; before, since the end of the last life, there is none."""
    ready_s: float
    """When its weights are loaded."""
    cause: str
    """Why requests that came meanwhile had to wait: one of CAUSES."""


class _Outage(NamedTuple):
    down_s: float
    began_s: float
    ready_s: float
    cause: str


class Population:
    """Pods, lives and processes of a scenario. Immutable but for a cache; not for several threads at once."""

    def __init__(self, scenario: Scenario, seed: int, started_at_s: float) -> None:
        self._scenario = scenario
        self._started_at_s = started_at_s
        self._outages = [_outages(scenario, server) for server in scenario.servers]
        self._jobs = [fault for fault in scenario.faults if fault.kind in ("gpu_contention", "short_job")]
        self.pods = {
            server.name: _pod(seed, index, server.namespace, server.name, server.kind)
            for index, server in enumerate(scenario.servers)
        }
        self.pods[JOB] = _pod(seed, 99, "research", "embed-nightly-x7k2p", "embed")
        self._system = _system_tasks()
        self._edges = self._changes()
        self._cached: tuple[float, float, tuple[Task, ...]] = (0.0, 0.0, ())

    def life(self, server: int, story_s: float) -> Life:
        """The life that a server is in, or that begins next where it is between two."""
        outages = self._outages[server]
        duration_s = self._scenario.duration_s
        if not outages or story_s < outages[0].down_s:
            return Life(0, -AGE_S, -AGE_S, "queueing")
        cycle = int(story_s // duration_s) if self._scenario.repeat else 0
        rest_s = story_s - cycle * duration_s
        done = sum(outage.down_s <= rest_s for outage in outages)
        if done == 0:
            cycle, done = cycle - 1, len(outages)
        outage, shift_s = outages[done - 1], cycle * duration_s
        number = cycle * len(outages) + done
        return Life(number, outage.began_s + shift_s, outage.ready_s + shift_s, outage.cause)

    def tasks(self, story_s: float) -> tuple[Task, ...]:
        """Processes alive, by pid."""
        since_s, until_s, tasks = self._cached
        if not since_s <= story_s < until_s:
            since_s, until_s = self._around(story_s)
            found = tuple(sorted(self._system + self._server_tasks(since_s) + self._job_tasks(since_s)))
            # The same tuple while nothing changes: callers keep what they made of it.
            tasks = tasks if found == tasks else found
            self._cached = (since_s, until_s, tasks)
        return tasks

    def _changes(self) -> list[float]:
        """Moments of a story at which processes come, go or grow."""
        edges = {0.0, self._scenario.duration_s}
        for outage in (outage for outages in self._outages for outage in outages):
            edges.update((outage.down_s, outage.began_s, outage.ready_s))
            # While weights load, device memory grows: a step a second is fine enough.
            edges.update(outage.began_s + second for second in range(int(outage.ready_s - outage.began_s) + 1))
        edges.update(edge for job in self._jobs for edge in (job.at_s, job.at_s + job.for_s))
        if self._scenario.repeat:
            # What is still loading when the story ends goes on in the next.
            edges = {edge % self._scenario.duration_s for edge in edges}
        return sorted(edges)

    def _around(self, story_s: float) -> tuple[float, float]:
        """The stretch around a moment in which nothing changes."""
        if story_s < 0:
            return -math.inf, 0.0
        duration_s, edges = self._scenario.duration_s, self._edges
        cycle = int(story_s // duration_s) if self._scenario.repeat else 0
        # Sums of the same numbers everywhere, so that a moment has one stretch.
        shifted = [cycle * duration_s + edge for edge in edges]
        after = bisect_right(shifted, story_s)
        since_s = shifted[after - 1] if after else shifted[0]
        if after < len(shifted):
            return since_s, shifted[after]
        return since_s, (cycle + 1) * duration_s if self._scenario.repeat else math.inf

    def _server_tasks(self, story_s: float) -> list[Task]:
        tasks = []
        for index, server in enumerate(self._scenario.servers):
            life = self.life(index, story_s)
            if story_s < life.began_s:
                continue
            names, began_s = _NAMES[server.kind], self._started_at_s + life.began_s
            if life.number == 0:
                began_s = max(1.0, began_s)  # no longer than the host has been up
            front = 41_207 + 11_000 * index + life.number * 24 % 960
            engine = front + 7
            tasks.append(Task(front, 1, names[0], server.name, None, 0, began_s, 37, 1_900, 1.6))
            tasks.append(Task(engine, front, names[1], server.name, None, 0, began_s, 24, 3_400, 1.1))
            loaded = 1.0
            if story_s < life.ready_s:
                loaded = min(1.0, max(0.05, (story_s - life.began_s) / (life.ready_s - life.began_s)))
            whole_mib = int(MODELS[self._scenario.node.model].memory_mib * _SERVING_SHARE)
            for rank, gpu in enumerate(server.gpus):
                mib = int(loaded * (whole_mib - 211 * rank))
                tasks.append(Task(engine + 2 + rank, engine, names[2], server.name, gpu, mib, began_s, 16, 9_800, 1.3))
        return tasks

    def _job_tasks(self, story_s: float) -> list[Task]:
        if story_s < 0:
            return []
        duration_s = self._scenario.duration_s
        cycle = int(story_s // duration_s) if self._scenario.repeat else 0
        rest_s = story_s - cycle * duration_s
        tasks = []
        for index, job in enumerate(self._jobs):
            if job.at_s <= rest_s < job.at_s + job.for_s:
                pid = _JOB_PID + (cycle * len(self._jobs) + index) % 400
                began_s = self._started_at_s + cycle * duration_s + job.at_s
                tasks.append(Task(pid, 1, "python3", JOB, job.gpu, _JOB_MIB, began_s, 9, 5_200, 1.4))
        return tasks


def _outages(scenario: Scenario, server: ServerSpec) -> list[_Outage]:
    found = (_outage(fault, server) for fault in scenario.faults)
    return sorted(outage for outage in found if outage is not None)


def _outage(fault: Fault, server: ServerSpec) -> _Outage | None:
    """What a fault does to the life of a server; None where it lives on."""
    down_s, end_s, cause = fault.at_s, fault.at_s + fault.for_s, fault.what.cause or "gpu_error"
    if fault.kind == "warm_up":
        return _Outage(down_s, down_s, end_s, cause) if fault.server == server.name else None
    if fault.kind == "driver_restart" or (fault.kind == "gpu_lost" and fault.gpu in server.gpus):
        return _Outage(down_s, end_s + _RESTART_S, end_s + _RESTART_S + _LOAD_S, cause)
    if fault.kind == "memory_pressure" and fault.server == server.name and fault.strength >= OOM_STRENGTH:
        down_s += fault.for_s / 2
    elif not (
        fault.gpu in server.gpus
        and (fault.kind == "ecc_uncorrected" or (fault.kind == "xid" and fault.strength in ENDING_XIDS))
    ):
        return None
    return _Outage(down_s, down_s + _RESTART_S, down_s + _RESTART_S + _LOAD_S, cause)


def _system_tasks() -> list[Task]:
    names = (
        (1, 0, "systemd", 1, 14, 0.002),
        (1204, 1, "nvidia-persiste", 1, 3, 0.0005),
        (1877, 1, "containerd", 96, 84, 0.05),
        (2091, 1, "kubelet", 142, 132, 0.12),
    )
    return [
        Task(pid, parent, comm, "", None, 0, 1.0, threads, resident, cpus)
        for pid, parent, comm, threads, resident, cpus in names
    ]


def _pod(seed: int, key: int, namespace: str, name: str, container: str) -> Pod:
    word = noise.digits(32, seed, 88, key)
    uid = f"{word[:8]}-{word[8:12]}-4{word[13:16]}-a{word[17:20]}-{word[20:]}"
    return Pod(namespace, name, uid, container, noise.digits(64, seed, 99, key))
