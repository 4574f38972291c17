"""Serving processes that stand still though they have work: ``process_stopped``.

Two ways to see it. Stopped by a signal or a debugger: ``gpumon_process_stopped_seconds_total``, which the source sums
from the process's state every half second, so that a stop of a second is seen for certain and one of a quarter perhaps.
Frozen by the cgroup freezer or stuck in the kernel, a process has no such state: then its CPU time does not move at
all, its GPUs do nothing, and requests are open on a model that runs on them. An idle server does not look like that: it
has no open requests. Without bound requests or readings of SM activity only the first way is left.

Processes of one cgroup are one incident, over when all of them run; where there is no container, each is its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity
from gpumon.detect.scene import Growth, Labels, Scene
from gpumon.detect.serving import cgroup_of, group_entity, main_process
from gpumon.detect.spoken import duration, figure
from gpumon.model import Unit

WITHIN_S: Final = 3.0
"""Stops are summed over so long."""
AGAIN_S: Final = 2.0
"""Not stopped for so long, it runs again."""
_BUSY: Final = 0.05
"""CPUs that a process used to use, for its standing still to mean anything."""
_REMEMBERS_S: Final = 30.0
_IDLE_SM: Final = 0.02


@dataclass(slots=True)
class _Stops:
    """Of one process, by the state that the kernel tells."""

    since_s: float
    stops: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=64))
    """When told, and how long."""
    total_s: float = 0.0
    found: bool = False


@dataclass(slots=True)
class _Pace:
    """CPU time of one process."""

    usual: float = 0.0
    """CPUs, over half a minute."""
    still_since_s: float | None = None
    found: bool = False


class _Seen(NamedTuple):
    """A process that stands still, or did until now."""

    process: Labels
    since_s: float
    lasted_s: float
    summary: str
    evidence: tuple[Evidence, ...]


@dataclass(slots=True)
class _Episode:
    """Of one cgroup, from the first of its processes that stands still until all run again."""

    named: Labels
    since_s: float
    worst: _Seen
    processes: dict[Labels, None] = field(default_factory=dict)


class ProcessStopped:
    """Finds ``process_stopped``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "process_stopped",
            "A watched process was in state T or t for `stopped_s` of three seconds; or one that holds a GPU and used "
            "to use CPU time used none for `still_s`, with its GPUs idle and requests open on a model that runs there.",
            (Severity.CRITICAL,),
            "Find who stopped it: SIGSTOP, a debugger or profiler, the cgroup freezer, a suspended container; "
            "kill -CONT PID lets a stopped one go on. One that is stuck in the kernel (state D) shows where in "
            "/proc/<pid>/stack.",
            hold_s=5.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "stopped_s": "Seconds of the last three: two looks that found it stopped, half a second apart.",
        "still_s": "Seconds without a clock tick of CPU time (10 ms); a server that works ticks every second.",
    }

    def __init__(self, *, stopped_s: float = 0.75, still_s: float = 5.0) -> None:
        self._stopped_s = stopped_s
        self._still_s = still_s
        self._stops: dict[Labels, _Stops] = {}
        self._paces: dict[Labels, _Pace] = {}
        self._episodes: dict[Labels, _Episode] = {}
        """By cgroup."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        seen: dict[Labels, list[_Seen]] = {}
        for each in (*self._by_state(scene), *self._by_time(scene)):
            seen.setdefault(cgroup_of(each.process), []).append(each)
        lasting = {cgroup_of(process) for process, state in self._all() if state.found}
        findings = [self._finding(scene, group, of, is_over=group not in lasting) for group, of in seen.items()]
        self._episodes = {group: episode for group, episode in self._episodes.items() if group in lasting}
        return findings

    def _all(self) -> Iterator[tuple[Labels, _Stops | _Pace]]:
        yield from self._stops.items()
        yield from self._paces.items()

    def _finding(self, scene: Scene, group: Labels, seen: list[_Seen], *, is_over: bool) -> Finding:
        """Of a cgroup, with the figures of the process that stood still for longest."""
        members = [each.process for each in seen]
        worst = max(seen, key=lambda each: each.lasted_s)
        episode = self._episodes.get(group)
        if episode is None:
            episode = self._episodes[group] = _Episode(main_process(scene, members), worst.since_s, worst)
        episode.since_s = min(episode.since_s, *(each.since_s for each in seen))
        episode.worst = worst if worst.lasted_s >= episode.worst.lasted_s else episode.worst
        episode.processes |= dict.fromkeys(members)
        told, count = episode.worst, len(episode.processes)
        return Finding(
            "process_stopped",
            group_entity(scene, episode.named, episode.processes),
            Severity.CRITICAL,
            episode.since_s,
            told.summary + (f", the longest of {count} processes" if count > 1 else ""),
            (*told.evidence, Evidence("processes", float(count), Unit.NONE)),
            over=is_over,
        )

    def _by_state(self, scene: Scene) -> Iterator[_Seen]:
        grown = scene.grown(catalogue.PROCESS_STOPPED_SECONDS)
        for labels, amount, dt_s, at_s in grown:
            if amount <= 0:
                continue
            stops = self._stops.get(labels)
            if stops is None:
                # Longer ago than the last reading it was not stopped, and stops are told to half a look.
                stops = self._stops[labels] = _Stops(at_s - min(amount, dt_s))
            stops.stops.append((at_s, amount))
            stops.total_s += amount
        if not self._stops:
            return
        there = scene.values(catalogue.PROCESS_STOPPED_SECONDS)
        for labels, stops in [*self._stops.items()]:
            newest_s = stops.stops[-1][0]
            is_over = scene.at_s - newest_s > max(AGAIN_S, _longest(grown))
            recent_s = sum(amount for at_s, amount in stops.stops if at_s > newest_s - WITHIN_S)
            stops.found = stops.found or recent_s >= self._stopped_s
            if is_over or labels not in there:
                del self._stops[labels]
            if stops.found:
                yield _stopped(labels, stops)

    def _by_time(self, scene: Scene) -> Iterator[_Seen]:
        paces: dict[Labels, _Pace] = {}
        there = scene.values(catalogue.PROCESS_CPU_SECONDS)
        for growth in scene.grown(catalogue.PROCESS_CPU_SECONDS):
            pace = self._paces.get(growth.labels) or _Pace()
            paces[growth.labels] = pace
            if growth.amount > 0:
                pace.usual += (growth.rate - pace.usual) * min(1.0, growth.dt_s / _REMEMBERS_S)
                if pace.found:
                    yield _still(growth, pace, growth.rate)
                pace.still_since_s, pace.found = None, False
                continue
            if pace.still_since_s is None:
                pace.still_since_s = growth.at_s - growth.dt_s
            lasts = growth.at_s - pace.still_since_s >= self._still_s
            may = lasts and pace.usual >= _BUSY and growth.labels not in self._stops
            if may and (pace.found or _has_work(scene, growth.labels[0])):
                pace.found = True
                yield _still(growth, pace, 0.0)
        # A reading that is not new leaves things as they are.
        kept = {labels: pace for labels, pace in self._paces.items() if labels not in paces and labels in there}
        self._paces = kept | paces


def _longest(grown: Iterable[Growth]) -> float:
    """Seconds between two readings, where these are far apart."""
    return max((growth.dt_s for growth in grown), default=0.0)


def _has_work(scene: Scene, pid: str) -> bool:
    """Whether its GPUs are idle though requests are open on a model that runs on them."""
    held = scene.holders(pid)
    busy = [scene.value(catalogue.GPU_SM_ACTIVE, (gpu.gpu, gpu.uuid)) for gpu in held]
    if not held or any(activity is None or activity > _IDLE_SM for activity in busy):
        return False
    uuids = {gpu.uuid for gpu in held}
    return any(
        (scene.value(catalogue.REQUESTS_OPEN, (model.server, model.model)) or 0.0) > 0
        for model in scene.latencies.models()
        if not uuids.isdisjoint(model.gpus())
    )


def _stopped(labels: Labels, stops: _Stops) -> _Seen:
    lasted_s = stops.stops[-1][0] - stops.since_s
    return _Seen(
        labels,
        stops.since_s,
        stops.total_s,
        f"stopped for {duration(stops.total_s)} of {duration(lasted_s)} (state T)",
        (Evidence("stopped", stops.total_s, Unit.SECONDS), Evidence("stopped_within", lasted_s, Unit.SECONDS)),
    )


def _still(growth: Growth, pace: _Pace, cpus: float) -> _Seen:
    """cpus: that it uses now."""
    since_s = pace.still_since_s if pace.still_since_s is not None else growth.at_s
    lasted_s = growth.at_s - since_s
    return _Seen(
        growth.labels,
        since_s,
        lasted_s,
        f"no CPU time for {duration(lasted_s)} ({figure(pace.usual)} CPUs before), its GPU idle, with requests open",
        (Evidence("still", lasted_s, Unit.SECONDS), Evidence("cpus", cpus, Unit.NONE, pace.usual)),
    )
