"""The host, or a server's cgroup, is short of memory: ``memory_pressure``.

The host: pages swapped in and out, the time in which tasks waited for memory (PSI), and what the kernel killed. A
cgroup: PSI alone; its processes are one incident, named after the first of them. While a server warms up
(``detect.serving``), it and the host are left alone. The host's figures are taken over five seconds; a cgroup's are
read every five.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.hysteresis import Held
from gpumon.detect.rates import RepeatedRates
from gpumon.detect.scene import Labels, Reading, Scene
from gpumon.detect.serving import Serving, cgroup_of, process_entity
from gpumon.detect.spoken import figure, percent
from gpumon.model import Metric, Unit

OVER_S: Final = 5.0
OFF_S: Final = 10.0
_HOST: Final = Entity("host", "host")
_KILLED_S: Final = 30.0
_KILLED_WEIGHT: Final = 1e6
"""Of a killed process: it outweighs any waiting."""
_LEAST_OF_ALL: Final = 1e-9
"""What a threshold is taken for that is 0."""
"""How long a kill is told of."""

_SERIES: Final[tuple[tuple[str, Metric, Labels], ...]] = (
    ("swapped_in_per_second", catalogue.HOST_SWAP_PAGES, ("in",)),
    ("swapped_out_per_second", catalogue.HOST_SWAP_PAGES, ("out",)),
    ("stalled", catalogue.HOST_PRESSURE, ("memory", "some")),
    ("stalled_all", catalogue.HOST_PRESSURE, ("memory", "full")),
)


class MemoryPressure:
    """Finds ``memory_pressure``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "memory_pressure",
            "Over five seconds the host swapped in more than `swap_in_per_s` or out more than `swap_out_per_s` pages a "
            "second, or some of its tasks, or of those of a watched process's cgroup, waited for memory over "
            "`stalled_share` of the time, or all of them over `stalled_all_share`. Critical when the kernel killed a "
            "process for lack of memory. Else not before servers are older than `warm_up_s` and serve.",
            (Severity.WARNING, Severity.CRITICAL),
            "Free memory or raise the pod's limit: look at what grew, at offloaded KV cache and pinned buffers, and "
            "turn swap off for the server. After a kill, the kernel log says whom and why.",
            hold_s=15.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "swap_in_per_s": "Pages a second: 1 MB/s of 4 KiB pages; each is waited for.",
        "swap_out_per_s": "Pages a second: 8 MB/s; a trickle of cold pages is healthy.",
        "stalled_share": "Ratio of time, PSI some.",
        "stalled_all_share": "Ratio of time, PSI full.",
        "warm_up_s": "Seconds after which a process may serve.",
    }

    def __init__(
        self,
        *,
        swap_in_per_s: float = 256.0,
        swap_out_per_s: float = 2048.0,
        stalled_share: float = 0.15,
        stalled_all_share: float = 0.1,
        warm_up_s: float = 60.0,
    ) -> None:
        self._serving = Serving(warm_up_s=warm_up_s)
        self._least = {
            "swapped_in_per_second": swap_in_per_s,
            "swapped_out_per_second": swap_out_per_s,
            "stalled": stalled_share,
            "stalled_all": stalled_all_share,
        }
        self._points: dict[str, deque[tuple[float, float]]] = {}
        """Readings of the host's series over the last seconds."""
        self._shown: dict[str, float] = {}
        """What is told of the host."""
        self._held: Held[tuple[str, ...]] = Held(on_s=0.0, off_s=OFF_S)
        self._killed: tuple[float, float] | None = None
        """When the kernel began to kill, and how many it killed."""
        self._killed_s = float("-inf")
        self._groups = {
            "stalled": RepeatedRates(catalogue.PROCESS_PRESSURE, "memory", "some"),
            "stalled_all": RepeatedRates(catalogue.PROCESS_PRESSURE, "memory", "full"),
        }
        self._named: dict[Labels, Labels] = {}
        """By cgroup, the process it is named after."""
        self._shares: dict[Labels, dict[str, float]] = {}
        """By cgroup, as last read."""
        self._since: dict[tuple[str, ...], float] = {}
        """What is too much now, and since when."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        self._serving.feed(scene)
        yield from self._of_host(scene)
        yield from self._of_cgroups(scene)

    def _of_host(self, scene: Scene) -> Iterator[Finding]:
        evidence: list[Evidence] = []
        since: list[float] = []
        for name, metric, labels in _SERIES:
            found = next((reading for reading in scene.read(metric) if reading.labels == labels), None)
            rate = self._rate(name, found)
            if rate is None:
                continue
            is_bad = rate > self._least[name] and self._serving.is_settled(scene)
            since_s = self._held.feed((name,), is_bad, scene.at_s)
            since += [since_s] if since_s is not None else []
            if is_bad or since_s is None:
                self._shown[name] = rate  # what ends is told of with what it was
            evidence.append(Evidence(name, self._shown[name], Unit.RATIO if name in self._groups else Unit.NONE))
        for growth in scene.grown(catalogue.HOST_OOM_KILLS):
            if growth.amount > 0:
                began_s, before = self._killed or (growth.at_s - growth.dt_s, 0.0)
                self._killed, self._killed_s = (began_s, before + growth.amount), growth.at_s
        if self._killed is not None and scene.at_s - self._killed_s > _KILLED_S:
            self._killed = None
        if self._killed is not None:
            since.append(self._killed[0])
            evidence.insert(0, Evidence("killed", self._killed[1], Unit.NONE))
        if since:
            severity = Severity.CRITICAL if self._killed is not None else Severity.WARNING
            yield self._finding(_HOST, severity, min(since), evidence)

    def _rate(self, name: str, reading: Reading | None) -> float | None:
        """Of a series of the host over the last seconds; None where it is not known yet."""
        if reading is None:
            self._points.pop(name, None)
            return None
        points = self._points.setdefault(name, deque(maxlen=64))
        if points and reading.value < points[-1][1]:
            points.clear()
        if not points or reading.at_s > points[-1][0]:
            points.append((reading.at_s, reading.value))
        while len(points) > 2 and points[1][0] <= reading.at_s - OVER_S:
            points.popleft()
        seconds = points[-1][0] - points[0][0]
        return (points[-1][1] - points[0][1]) / seconds if seconds >= OVER_S / 2 else None

    def _of_cgroups(self, scene: Scene) -> Iterator[Finding]:
        for name, rates in self._groups.items():
            for labels, rate in rates.step(scene).items():
                group = cgroup_of(labels)
                if self._named.setdefault(group, labels[:5]) != labels[:5]:
                    continue  # another process of it tells the same
                key = (name, *group)
                is_bad = rate.per_s > self._least[name] and self._serving.is_warm(scene, labels[0])
                since_s = self._held.feed(key, is_bad, scene.at_s, rate.since_s)
                shares = self._shares.setdefault(group, {})
                if is_bad or since_s is None:
                    shares[name] = rate.per_s
                self._since.pop(key, None)
                if since_s is not None:
                    self._since[key] = since_s
        self._forget(scene)
        if not self._since:
            return
        for group, shares in self._shares.items():
            since = [since_s for name in shares if (since_s := self._since.get((name, *group))) is not None]
            if since:
                entity = process_entity(scene, self._named[group])
                evidence = [Evidence(name, share, Unit.RATIO) for name, share in shares.items()]
                yield self._finding(entity, Severity.WARNING, min(since), evidence)

    def _finding(self, entity: Entity, severity: Severity, since_s: float, evidence: Sequence[Evidence]) -> Finding:
        weights = [
            _KILLED_WEIGHT * each.observed
            if each.name == "killed"
            else each.observed / max(self._least[each.name], _LEAST_OF_ALL)
            for each in evidence
        ]
        return Finding(
            "memory_pressure", entity, severity, since_s, _told(evidence), tuple(evidence), weight=max(weights)
        )

    def _forget(self, scene: Scene) -> None:
        """Cgroups whose process is gone; another one takes its place at the next reading."""
        there = scene.values(catalogue.PROCESS_CPU_SECONDS)
        gone = [group for group, labels in self._named.items() if labels not in there]
        for group in gone:
            del self._named[group]
            self._shares.pop(group, None)
            for name in self._groups:
                self._since.pop((name, *group), None)
        if gone:
            hosts = [(name,) for name in self._least]
            self._held.keep([*hosts, *((name, *group) for group in self._named for name in self._groups)])


def _told(evidence: Iterable[Evidence]) -> str:
    values = {each.name: each.observed for each in evidence}
    parts = []
    if "killed" in values:
        parts.append(f"{values['killed']:.0f} killed for lack of memory")
    if values.get("swapped_in_per_second") or values.get("swapped_out_per_second"):
        told = [values.get(f"swapped_{way}_per_second", 0.0) for way in ("in", "out")]
        parts.append(f"{figure(told[0])} pages/s swapped in, {figure(told[1])} out")
    if "stalled" in values or "stalled_all" in values:
        stalled = max(values.get(name, 0.0) for name in ("stalled", "stalled_all"))
        parts.append(f"waited for memory {percent(stalled)} of the time")
    return "; ".join(parts)
