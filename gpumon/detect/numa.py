"""Processes whose memory or CPUs are far from their GPU: ``numa_remote``.

From the shares that the source ``numa`` estimates every ten seconds. A process with GPUs of several nodes is judged by
what is near any of them. The share of CPUs is compared with that of a process that may run anywhere: one that nobody
pinned has half of the CPUs of two sockets near its GPU, and that alone is no incident. The number of nodes is that of
``gpumon_host_memory_bytes``; where it is not known, nothing is said of CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity
from gpumon.detect.scene import Labels, Reading, Scene
from gpumon.detect.serving import process_entity
from gpumon.model import Metric, Unit

_NODE = catalogue.GPU_INFO.labels.index("numa_node")


@dataclass(slots=True)
class _State:
    """Of one process and one of its shares."""

    read_s: float
    low: int = 0
    """Readings running that were too low."""
    since_s: float = 0.0
    holds: bool = False


class NumaRemote:
    """Finds ``numa_remote``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "numa_remote",
            "Less than `local` of a process's resident pages are on the NUMA node of a GPU that it holds, or of the "
            "CPUs that it may use less than `local` of the share that a process without a mask has near its GPU; "
            "`readings` times running. It ends at `local_again`.",
            (Severity.WARNING,),
            "Start the server with its memory and CPUs on the GPU's node: `numactl --cpunodebind --membind`, in "
            "Kubernetes the topology manager (`single-numa-node`) with whole CPUs. It needs a restart: pages stay.",
            hold_s=30.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "local": "Ratio; DESIGN §6. A sample of 1,024 pages has a standard deviation of 0.014.",
        "local_again": "Ratio from which it is over: a few deviations above.",
        "readings": "Readings running, ten seconds apart by default: memory moves while a server starts.",
    }

    def __init__(self, *, local: float = 0.7, local_again: float = 0.75, readings: int = 2) -> None:
        self._local = local
        self._local_again = max(local, local_again)
        self._readings = readings
        self._states: dict[tuple[Labels, str], _State] = {}

    def step(self, scene: Scene) -> Iterable[Finding]:
        pages = _shares(scene, catalogue.PROCESS_NUMA_LOCAL)
        cpus = _shares(scene, catalogue.PROCESS_CPUS_LOCAL)
        nodes = len({labels[0] for labels in scene.values(catalogue.HOST_MEMORY)}) if cpus else 0
        found: list[Finding] = []
        self._states = {key: state for key, state in self._states.items() if key[0] in pages or key[0] in cpus}
        for process in sorted({*pages, *cpus}):
            page, cpu = pages.get(process), cpus.get(process)
            since = [self._feed((process, "pages"), page.value, page.at_s)] if page is not None else []
            if cpu is not None and nodes:
                since.append(self._feed((process, "cpus"), cpu.value * nodes, cpu.at_s))
            held = [since_s for since_s in since if since_s is not None]
            if held:
                found.append(_finding(scene, process, min(held), page, cpu, nodes))
        return found

    def _feed(self, key: tuple[Labels, str], share: float, read_s: float) -> float | None:
        """Since when the share has been too low, None while it is not. Readings count once."""
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(float("-inf"))
        if read_s > state.read_s:
            state.read_s = read_s
            state.holds = state.holds and share < self._local_again
            if share >= self._local:
                state.low = 0
            else:
                state.since_s = read_s if state.low == 0 and not state.holds else state.since_s
                state.low += 1
                state.holds = state.holds or state.low >= self._readings
        return state.since_s if state.holds else None


def _shares(scene: Scene, metric: Metric) -> dict[Labels, Reading]:
    """By process: what is near any of its GPUs, those of one node counted once."""
    readings = scene.read(metric)
    if not readings:
        return {}
    node_of = {labels[1]: labels[_NODE] for labels in scene.values(catalogue.GPU_INFO)}
    near: dict[Labels, dict[str, Reading]] = {}
    for reading in readings:
        by_node = near.setdefault(reading.labels[2:], {})
        node = node_of.get(reading.labels[1], "")
        if node not in by_node or reading.value > by_node[node].value:
            by_node[node] = reading
    return {
        process: Reading(process, min(1.0, sum(r.value for r in of.values())), max(r.at_s for r in of.values()))
        for process, of in near.items()
    }


def _finding(
    scene: Scene, process: Labels, since_s: float, page: Reading | None, cpu: Reading | None, nodes: int
) -> Finding:
    evidence = []
    told = []
    if page is not None:
        evidence.append(Evidence("local_pages", page.value, Unit.RATIO, 1.0))
        told.append(f"{page.value:.0%} of its pages")
    if cpu is not None:
        evidence.append(Evidence("local_cpus", cpu.value, Unit.RATIO, 1 / nodes if nodes else None))
        told.append(f"{cpu.value:.0%} of its CPUs")
    where = "GPU " + "+".join(gpu.gpu for gpu in scene.holders(process[0])) if scene.holders(process[0]) else "its GPU"
    return Finding(
        "numa_remote",
        process_entity(scene, process),
        Severity.WARNING,
        since_s,
        f"{' and '.join(told)} on the NUMA node of {where}",
        tuple(evidence),
    )
