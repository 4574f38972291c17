"""The simulated node: eight H200 with NVLink in a two-socket host that serves two models.

A ``World`` is a pure function of its seed and the steady time: it keeps nothing, so any number of processes that
build one with the same seed and start see the same node at the same moment. ``story`` says what happens,
``timeline`` how a GPU answers, ``tasks`` what the processes on the host do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpumon.sim import noise
from gpumon.sim.story import SERVER_OF_GPU, STORY_S, Event, Kind, events, load_total
from gpumon.sim.timeline import Moment, Timeline

MIB = 1 << 20
MEMORY_MIB = 143_771  # of an H200 SXM, as NVML tells it
RESERVED_MIB = 607
BAR1_MIB = 262_144
NVLINKS = 18
CPUS = 192
MEMORY_KB_PER_NODE = 1_056_764_928  # 2 TiB in two sockets, less what the kernel keeps

_BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")  # of an HGX board
_SERVING_SHARE = 0.9  # of the GPU's memory that the inference server takes for weights and KV cache
_WORKER_PIDS = (41_401, 41_402, 41_403, 41_404, 52_301, 52_302, 52_303, 52_304)
_ENGINE_PIDS = {"a": 41_305, "b": 52_214}
_FRONT_PIDS = {"a": 41_207, "b": 52_110}
_JOB_PID = 61_000
_JOB_MIB = 6_144
_AGE_S = 7_340.0  # how long the servers had run when the world began, where the host was up that long


@dataclass(frozen=True, slots=True)
class Board:
    """What a GPU is: never changes."""

    index: int
    uuid: str
    bdf: str
    """PCI address as the kernel spells it."""
    node: int
    """NUMA node, on a host of two."""


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
    """``a`` or ``b`` for the inference servers, ``job`` for what shares a GPU, empty for the system."""
    gpu: int | None
    gpu_mib: int
    """Device memory it holds."""
    began_s: float
    """Steady time of its start."""
    threads: int
    resident_mib: int
    cpus: float
    """CPUs it keeps busy at full load."""


class World:
    """One simulated node. Immutable; may be shared by threads."""

    def __init__(self, seed: int, gpus: int = 8, *, started_at_s: float) -> None:
        """``started_at_s``: steady seconds at which the story begins. ``gpus``: 1 to 8."""
        if not 1 <= gpus <= len(_BUSES):
            raise ValueError(f"gpus must be 1 to {len(_BUSES)}, not {gpus}")
        self.seed = seed
        self.started_at_s = started_at_s
        self.boards = tuple(_board(seed, index) for index in range(gpus))
        self.timelines = tuple(Timeline(seed, index) for index in range(gpus))
        self.pods = {
            "a": _pod(seed, 1, "inference", "llama-70b-0", "vllm"),
            "b": _pod(seed, 2, "inference", "qwen-32b-0", "vllm"),
            "job": _pod(seed, 3, "research", "embed-nightly-x7k2p", "embed"),
        }
        self._began_s = max(1.0, started_at_s - _AGE_S)
        self._residents = tuple(self._system_tasks() + self._server_tasks(gpus))

    def story_s(self, at_s: float) -> float:
        """Seconds since the story first began; negative before."""
        return at_s - self.started_at_s

    def gpu(self, index: int, at_s: float) -> Moment:
        """A GPU at a moment: gauges and integrals."""
        return self.timelines[index].at(at_s - self.started_at_s)

    def load_total(self, at_s: float) -> float:
        """Seconds of full load since the servers began to serve: what the host's counters follow."""
        return load_total(at_s - self.started_at_s) - load_total(self._began_s - self.started_at_s)

    def tasks(self, at_s: float) -> tuple[Task, ...]:
        """Processes alive at a moment, by pid."""
        job = self.job(at_s)
        return self._residents if job is None else (*self._residents, job)

    def job(self, at_s: float) -> Task | None:
        """The process that shares a GPU for a part of each story; another pid each time."""
        cycle, rest = divmod(self.story_s(at_s), STORY_S)
        for event in events(Kind.JOB):
            if event.start_s <= rest < event.end_s and event.gpu < len(self.boards):
                began_s = self.started_at_s + cycle * STORY_S + event.start_s
                pid = _JOB_PID + int(cycle) * 7 % 9000
                return Task(pid, 1, "python3", "job", event.gpu, _JOB_MIB, began_s, 9, 5_200, 1.4)
        return None

    def gpu_tasks(self, index: int, at_s: float) -> list[Task]:
        """Processes that hold the GPU."""
        return [task for task in self.tasks(at_s) if task.gpu == index]

    def occurrences(self, kind: Kind, since_s: float, until_s: float) -> list[tuple[float, Event]]:
        """When events of a kind begin, from ``since_s`` (not itself) to ``until_s``, steady seconds; by time."""
        rows = [event for event in events(kind) if event.gpu < len(self.boards)]
        first = int((since_s - self.started_at_s) // STORY_S)
        last = int((until_s - self.started_at_s) // STORY_S)
        found: list[tuple[float, Event]] = []
        for cycle in range(max(first, 0), last + 1):
            for event in rows:
                at_s = self.started_at_s + cycle * STORY_S + event.start_s
                if since_s < at_s <= until_s:
                    found.append((at_s, event))
        return found

    def _system_tasks(self) -> list[Task]:
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

    def _server_tasks(self, gpus: int) -> list[Task]:
        tasks = []
        for server in sorted(set(SERVER_OF_GPU[:gpus])):
            front, engine = _FRONT_PIDS[server], _ENGINE_PIDS[server]
            tasks.append(Task(front, 1, "vllm", server, None, 0, self._began_s, 37, 1_900, 1.6))
            tasks.append(Task(engine, front, "VLLM::EngineCor", server, None, 0, self._began_s + 9, 24, 3_400, 1.1))
        for index in range(gpus):
            server = SERVER_OF_GPU[index]
            share = int(MEMORY_MIB * _SERVING_SHARE) - 211 * index
            pid, began_s = _WORKER_PIDS[index], self._began_s + 14 + 0.03 * index
            parent = _ENGINE_PIDS[server]
            tasks.append(Task(pid, parent, "VLLM::Worker_TP", server, index, share, began_s, 16, 9_800, 1.3))
        return sorted(tasks)


def _board(seed: int, index: int) -> Board:
    word = noise.digits(32, seed, 77, index)
    uuid = f"GPU-{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}"
    return Board(index, uuid, f"0000:{_BUSES[index]}:00.0", index // 4)


def _pod(seed: int, key: int, namespace: str, name: str, container: str) -> Pod:
    word = noise.digits(32, seed, 88, key)
    uid = f"{word[:8]}-{word[8:12]}-4{word[13:16]}-a{word[17:20]}-{word[20:]}"
    return Pod(namespace, name, uid, container, noise.digits(64, seed, 99, key))
