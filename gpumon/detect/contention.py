"""Another process that takes a share of a GPU on which a server runs.

From the SM share and device memory of each process (read every 5 s), and which processes requests were bound to. The
server of a GPU is the process of those that requests are bound to, else the one that holds most of its memory. To it
belong the processes of its pod; where no pods are known, of its container; without containers, those of the same
program unless they came a minute after it; and all that requests are bound to. With MIG there is no SM share, and
nothing is said; a process that /proc never showed, and those past the cap of named ones (``other``), are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.hysteresis import Baseline, Held
from gpumon.detect.scene import Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

BOUND_MAX: Final = 256
"""Pids remembered because requests were bound to them."""
LATE_S: Final = 60.0
"""A server starts all its processes within this time."""
_MPS: Final = "nvidia-cuda-mps"
"""Beginning of the name of what runs other processes' work: no user of its own."""


class _Who(NamedTuple):
    """A process by its labels."""

    process: str
    namespace: str
    pod: str
    container: str


class _Holder(NamedTuple):
    """A process that holds the GPU."""

    pid: str
    who: _Who
    used_bytes: float
    sm: float

    @property
    def name(self) -> str:
        """For people."""
        process, namespace, pod, container = self.who
        where = f", {namespace}/{pod}" if pod else f", container {container}" if container else ""
        return f"{process or 'a process'} (pid {self.pid}{where})"


@dataclass(slots=True)
class _Shared:
    """What is known of one GPU over several readings."""

    at_s: float = 0.0
    """Of the newest."""
    first_s: dict[str, float] = field(default_factory=dict)
    """When each process was first seen, by pid."""
    names: dict[str, _Who] = field(default_factory=dict)
    """What each was called: a process that ends has no name any more, and the driver tells of it for a while."""
    usual: Baseline = field(default_factory=lambda: Baseline(60, 3))
    """SM share of the server without others."""
    finding: Finding | None = None
    """Of the newest reading."""


class GpuContention:
    """A process that is no part of the server takes SM time on its GPU."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "gpu_contention",
            "Processes that do not belong to the server on a GPU took more than `sm` of its SM time, for `on_s`. "
            "Information where the server itself is idle.",
            (Severity.WARNING, Severity.INFO),
            "Move the other workload to another GPU, or give each its own part (MIG, MPS with a limit of threads). In "
            "Kubernetes, look why two pods have the same GPU: time slicing, or NVIDIA_VISIBLE_DEVICES set by hand.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "sm": "SM share of all processes that are not the server's; ratio. A display or an idle notebook has 1 to 3 %.",
        "on_s": "Seen for this long, by the times of the readings; seconds. Processes are read every 5 s, so one that "
        "lives for less is seen once.",
        "off_s": "Not seen for this long, it is over; seconds. A reading or two.",
        "idle": "SM share of the server below which nobody is hurt; ratio.",
    }

    def __init__(self, *, sm: float = 0.05, on_s: float = 5.0, off_s: float = 6.0, idle: float = 0.02) -> None:
        self._sm = sm
        self._idle = idle
        self._held: Held[Gpu] = Held(on_s=on_s, off_s=off_s)
        self._bound: dict[str, None] = {}
        """Pids that requests were bound to, the newest last."""
        self._gpus: dict[Gpu, _Shared] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        self._remember_bound(scene)
        shares = scene.values(catalogue.PROCESS_GPU_SM)
        holders: dict[Gpu, list[_Holder]] = {}
        times: dict[Gpu, float] = {}
        for labels, used_bytes, at_s in scene.read(catalogue.PROCESS_GPU_MEMORY):
            sm = shares.get(labels)
            if sm is not None and labels[2] != "other":
                holders.setdefault(labels[:2], []).append(_Holder(labels[2], _Who(*labels[3:7]), used_bytes, sm))
                times[labels[:2]] = at_s
        for gone in self._gpus.keys() - holders.keys():
            del self._gpus[gone]
        self._held.keep(holders)
        for gpu, present in holders.items():
            shared = self._gpus.setdefault(gpu, _Shared())
            if times[gpu] > shared.at_s:
                shared.at_s = times[gpu]
                shared.finding = self._judge(gpu, shared, present)
            if shared.finding is not None:
                yield shared.finding

    def _remember_bound(self, scene: Scene) -> None:
        for record in scene.requests[-BOUND_MAX:]:
            if record.binding.pid is not None:
                pid = str(record.binding.pid)
                self._bound.pop(pid, None)
                self._bound[pid] = None
        while len(self._bound) > BOUND_MAX:
            del self._bound[next(iter(self._bound))]

    def _judge(self, gpu: Gpu, shared: _Shared, given: Sequence[_Holder]) -> Finding | None:
        """A new reading."""
        present = [
            each if each.who.process else each._replace(who=shared.names.get(each.pid, each.who)) for each in given
        ]
        shared.names = {each.pid: each.who for each in present}
        shared.first_s = {each.pid: shared.first_s.get(each.pid, shared.at_s) for each in present}
        server = max(present, key=lambda each: (each.pid in self._bound, each.used_bytes, each.pid))
        others = [each for each in present if not self._belongs(each, server, shared.first_s)]
        taken = min(1.0, sum([each.sm for each in others]))
        since_s = self._held.feed(gpu, taken > self._sm, shared.at_s)
        if taken <= self._sm / 2:
            shared.usual.feed(server.sm)
        if since_s is None or taken <= self._sm:
            return None
        most = max(others, key=lambda each: (each.sm, each.pid))
        more = "" if len(others) == 1 else f" and {len(others) - 1} more"
        return Finding(
            "gpu_contention",
            gpu_entity(gpu),
            Severity.WARNING if server.sm > self._idle else Severity.INFO,
            since_s,
            f"{most.name}{more} takes {100 * taken:.0f} % of SM time beside {server.name}",
            (
                Evidence("others_sm", taken, Unit.RATIO, 0.0),
                Evidence("server_sm", server.sm, Unit.RATIO, shared.usual.median),
                Evidence("others_memory", sum([each.used_bytes for each in others]), Unit.BYTES),
            ),
        )

    def _belongs(self, each: _Holder, server: _Holder, first_s: Mapping[str, float]) -> bool:
        """Whether it is the server, or a part of one."""
        one, other = each.who, server.who
        if each.pid == server.pid or each.pid in self._bound or one.process.startswith(_MPS):
            return True
        if one.pod and other.pod:
            return one[1:3] == other[1:3]
        if one.container and other.container:
            return one.container == other.container
        if not one.process and other.process:
            return True
        # vLLM and SGLang name their processes after the program: VLLM::EngineCor, VLLM::Worker_TP.
        same = one.process.partition("::")[0] == other.process.partition("::")[0]
        return same and first_s[each.pid] - first_s[server.pid] <= LATE_S
