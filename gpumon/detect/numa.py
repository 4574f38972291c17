"""Processes whose memory or CPUs are far from their GPU: ``numa_remote``.

From the shares that the source ``numa`` estimates every ten seconds. A process with GPUs of several nodes is judged by
what is near any of them. The share of CPUs is compared with that of a process that may run anywhere: one that nobody
pinned has half of the CPUs of two sockets near its GPU, and that alone is no incident. The number of nodes is that of
``gpumon_host_memory_bytes``; where it is not known, nothing is said of CPUs.

Processes of one cgroup are one incident, for one cause put them there; where there is no container, each is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity
from gpumon.detect.scene import Labels, Reading, Scene
from gpumon.detect.serving import cgroup_of, group_entity, main_process
from gpumon.detect.spoken import percent
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


class _Remote(NamedTuple):
    """A process that is far from its GPU."""

    process: Labels
    since_s: float
    page: Reading | None
    cpu: Reading | None

    def near(self, nodes: int) -> float:
        """The lower of its shares, that of CPUs over that of a process without a mask."""
        pages = [self.page.value] if self.page is not None else []
        return min([*pages, *([min(1.0, self.cpu.value * nodes)] if self.cpu is not None and nodes else [])])


class NumaRemote:
    """Finds ``numa_remote``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "numa_remote",
            "Less than `local` of a process's resident pages are on the NUMA node of a GPU that it holds, or of the "
            "CPUs that it may use less than `local` of the share that a process without a mask has near its GPU; "
            "`readings` times running. It ends at `local_again`.",
            (Severity.WARNING,),
            "Start the server with its memory and CPUs on the GPU's node: numactl --cpunodebind --membind, in "
            "Kubernetes the topology manager (single-numa-node) with whole CPUs. It needs a restart: pages stay.",
            hold_s=30.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "local": "Of pages or CPUs, what is near the GPU; ratio. Samples of 1,024 pages have a deviation of 0.014.",
        "local_again": "Ratio from which it is over: a few deviations above.",
        "readings": "Readings running, ten seconds apart by default: memory moves while a server starts.",
    }

    def __init__(self, *, local: float = 0.7, local_again: float = 0.75, readings: int = 2) -> None:
        self._local = local
        self._local_again = max(local, local_again)
        self._readings = readings
        self._states: dict[tuple[Labels, str], _State] = {}
        self._named: dict[Labels, Labels] = {}
        """By cgroup, the process that an incident is named after."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        pages = _shares(scene, catalogue.PROCESS_NUMA_LOCAL)
        cpus = _shares(scene, catalogue.PROCESS_CPUS_LOCAL)
        nodes = len({labels[0] for labels in scene.values(catalogue.HOST_MEMORY)}) if cpus else 0
        self._states = {key: state for key, state in self._states.items() if key[0] in pages or key[0] in cpus}
        members: dict[Labels, list[Labels]] = {}
        remote: dict[Labels, list[_Remote]] = {}
        for process in sorted({*pages, *cpus}):
            members.setdefault(cgroup_of(process), []).append(process)
            page, cpu = pages.get(process), cpus.get(process)
            since = [self._feed((process, "pages"), page.value, page.at_s)] if page is not None else []
            if cpu is not None and nodes:
                since.append(self._feed((process, "cpus"), cpu.value * nodes, cpu.at_s))
            held = [since_s for since_s in since if since_s is not None]
            if held:
                remote.setdefault(cgroup_of(process), []).append(_Remote(process, min(held), page, cpu))
        self._named = {group: named for group, named in self._named.items() if group in remote}
        return [self._finding(scene, group, of, members[group], nodes) for group, of in remote.items()]

    def _finding(
        self, scene: Scene, group: Labels, remote: list[_Remote], members: list[Labels], nodes: int
    ) -> Finding:
        """Of a cgroup, with the figures of its worst process."""
        named = self._named.get(group)
        if named not in members:
            named = self._named[group] = main_process(scene, [each.process for each in remote])
        worst = min(remote, key=lambda each: each.near(nodes))
        evidence, told = [], []
        if worst.page is not None:
            evidence.append(Evidence("local_pages", worst.page.value, Unit.RATIO, 1.0))
            told.append(f"{percent(worst.page.value)} of its pages")
        if worst.cpu is not None:
            evidence.append(Evidence("local_cpus", worst.cpu.value, Unit.RATIO, 1 / nodes if nodes else None))
            told.append(f"{percent(worst.cpu.value)} of its CPUs")
        evidence.append(Evidence("processes", float(len(remote)), Unit.NONE))
        gpus = "+".join(gpu.gpu for gpu in scene.holders(worst.process[0]))
        others = f", the worst of {len(remote)} processes" if len(remote) > 1 else ""
        return Finding(
            "numa_remote",
            group_entity(scene, named, members),
            Severity.WARNING,
            min(each.since_s for each in remote),
            f"{' and '.join(told)} on the NUMA node of {f'GPU {gpus}' if gpus else 'its GPU'}{others}",
            tuple(evidence),
            weight=1.0 - worst.near(nodes),
        )

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
