"""Serving processes that do not get the CPU they want: ``cpu_starvation``.

Three signs, any of which will do: the run-queue wait of the process's threads against the CPU time they got, over the
same five seconds; the time its cgroup was throttled by its quota; and the share of time in which some task of its
cgroup waited for a CPU (PSI). The wait and the pressure are compared with what they were before, too: a server with
many threads always waits a little. Processes of one container are one incident, named after the one with the sign, or
that of which it was read first. Those that warm up (``detect.serving``) are left alone.

Where the kernel tells of one sign only, that one decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity
from gpumon.detect.hysteresis import Baseline, Held
from gpumon.detect.rates import Rate, RepeatedRates
from gpumon.detect.scene import Labels, Scene
from gpumon.detect.serving import Serving, cgroup_of, process_entity
from gpumon.detect.spoken import figure, percent
from gpumon.model import Unit

OFF_S: Final = 6.0
_LEAST_OF_ALL: Final = 1e-9
"""What a threshold is taken for that is 0."""
"""A sign is over at the second reading without it: they are five seconds apart."""
_REST_S: Final = 12.0
"""A wait that does not grow for so long is none."""
_BASELINE = (60, 6)  # of readings five seconds apart: the last five minutes, half a minute at least

Key = tuple[str, Labels]
"""A sign, and the process or, for those of the cgroup, what names that."""


@dataclass(slots=True)
class _Waits:
    """Run-queue wait of one process."""

    wait_s: float
    cpu_s: float
    at_s: float


@dataclass(slots=True)
class _Sign:
    """Of one process or group, as last read."""

    baseline: Baseline = field(default_factory=lambda: Baseline(*_BASELINE))
    value: float = 0.0
    since_s: float | None = None
    """Since when it has been too much; None while it is not."""


class CpuStarvation:
    """Finds ``cpu_starvation``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "cpu_starvation",
            "Threads of a serving process waited for a CPU for over `wait_share` of the time in which they wanted one "
            "and over `wait_s` seconds a second, and over `jump` times the share before, or over `starved_share` "
            "whatever was before; or its cgroup was throttled for over `throttled_s` seconds a second; or some task "
            "of its cgroup was stalled for a CPU over `stalled_share` of the time and over `jump` times as much as "
            "before. Not in the first `warm_up_s` of a process, nor while it only loads.",
            (Severity.WARNING,),
            "Give the server whole CPUs: raise the pod's CPU limit or drop it, request as many as it uses, and move "
            "what else keeps the host's CPUs busy.",
            hold_s=15.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "wait_share": "Run-queue wait over itself and CPU time. Servers in health are below 0.05.",
        "wait_s": "Seconds of run-queue wait in a second, all threads: less than this holds up nothing.",
        "starved_share": "The same ratio from which it is starvation even where it was always so.",
        "throttled_s": "Seconds of throttling in a second, summed over CPUs as the kernel does.",
        "stalled_share": "Ratio of time, PSI some.",
        "jump": "Times what was before.",
        "warm_up_s": "Seconds after which a process may serve.",
    }

    def __init__(
        self,
        *,
        wait_share: float = 0.15,
        wait_s: float = 0.1,
        starved_share: float = 0.5,
        throttled_s: float = 0.1,
        stalled_share: float = 0.3,
        jump: float = 3.0,
        warm_up_s: float = 60.0,
    ) -> None:
        self._wait_share = wait_share
        self._wait_s = wait_s
        self._starved_share = starved_share
        self._throttled_s = throttled_s
        self._stalled_share = stalled_share
        self._jump = jump
        self._serving = Serving(warm_up_s=warm_up_s)
        self._throttled = RepeatedRates(catalogue.PROCESS_CPU_THROTTLED)
        self._stalled = RepeatedRates(catalogue.PROCESS_PRESSURE, "cpu", "some")
        self._waits: dict[Labels, _Waits] = {}
        self._signs: dict[Key, _Sign] = {}
        self._held: Held[Key] = Held(on_s=0.0, off_s=OFF_S)
        self._named: dict[Labels, Labels] = {}
        """Process that an incident is named after, by cgroup."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        self._serving.feed(scene)
        self._read_waits(scene)
        self._read_group("throttled", self._throttled.step(scene), scene)
        self._read_group("stalled", self._stalled.step(scene), scene)
        processes = scene.values(catalogue.PROCESS_CPU_SECONDS)
        members: dict[Labels, list[Labels]] = {}
        for labels in processes:
            members.setdefault(cgroup_of(labels), []).append(labels)
        self._signs = {key: sign for key, sign in self._signs.items() if key[1] in processes or key[1] in members}
        self._held.keep(self._signs)
        if all(sign.since_s is None for sign in self._signs.values()):
            self._named.clear()
            return []
        findings = [self._finding(scene, group, of) for group, of in members.items()]
        return [finding for finding in findings if finding is not None]

    def _read_waits(self, scene: Scene) -> None:
        cpu = scene.values(catalogue.PROCESS_CPU_SECONDS)
        seen: dict[Labels, _Waits] = {}
        for labels, wait_s, at_s in scene.read(catalogue.PROCESS_RUNQUEUE_SECONDS):
            cpu_s = cpu.get(labels)
            if cpu_s is None:
                continue
            before = self._waits.get(labels)
            if before is None or wait_s < before.wait_s or cpu_s < before.cpu_s:
                seen[labels] = _Waits(wait_s, cpu_s, at_s)
                continue
            seen[labels] = before
            seconds = at_s - before.at_s
            if wait_s == before.wait_s and seconds < _REST_S:
                continue  # most likely not read anew
            waited_s, ran_s = wait_s - before.wait_s, cpu_s - before.cpu_s
            share = waited_s / (waited_s + ran_s) if waited_s else 0.0
            enough = share > self._wait_share and waited_s > self._wait_s * seconds
            self._judge(("wait", labels), share, enough, self._starved_share, labels, before.at_s, scene)
            seen[labels] = _Waits(wait_s, cpu_s, at_s)
        self._waits = seen

    def _read_group(self, sign: str, rates: Mapping[Labels, Rate], scene: Scene) -> None:
        """Of a cgroup: any of its processes tells the same."""
        told: dict[Labels, tuple[Labels, Rate]] = {}
        for labels, rate in rates.items():
            told.setdefault(cgroup_of(labels), (labels[:5], rate))
        for group, (labels, rate) in told.items():
            least = self._throttled_s if sign == "throttled" else self._stalled_share
            starved = least if sign == "throttled" else 1.0
            self._judge((sign, group), rate.per_s, rate.per_s > least, starved, labels, rate.since_s, scene)

    def _judge(
        self, key: Key, value: float, enough: bool, starved: float, labels: Labels, since_s: float, scene: Scene
    ) -> None:
        """A new reading. enough: in itself; starved: from this on, whatever was before."""
        sign = self._signs.get(key)
        if sign is None:
            sign = self._signs[key] = _Sign()
        usual = sign.baseline.median
        unusual = value > starved or (usual is not None and value > self._jump * usual)
        is_bad = enough and unusual and self._serving.is_warm(scene, labels[0])
        sign.since_s = self._held.feed(key, is_bad, scene.at_s, since_s)
        if is_bad or sign.since_s is None:
            sign.value = value  # what ends is told of with what it was
        if sign.since_s is None:
            sign.baseline.feed(value)
        elif is_bad:
            self._named.setdefault(cgroup_of(labels), labels)

    def _finding(self, scene: Scene, group: Labels, members: list[Labels]) -> Finding | None:
        signs = {
            name: sign for name in ("throttled", "stalled") if (sign := self._signs.get((name, group))) is not None
        }
        waits = [sign for labels in members if (sign := self._signs.get(("wait", labels))) is not None]
        if waits:
            signs["wait"] = max(waits, key=lambda sign: (sign.since_s is not None, sign.value))
        since = [sign.since_s for sign in (*signs.values(), *waits) if sign.since_s is not None]
        if not since:
            self._named.pop(group, None)
            return None
        named = self._named.get(group)
        return Finding(
            "cpu_starvation",
            process_entity(scene, named if named in members else members[0]),
            Severity.WARNING,
            min(since),
            "; ".join(_told(signs)),
            tuple(_evidence(signs)),
            weight=self._weight(signs),
        )

    def _weight(self, signs: Mapping[str, _Sign]) -> float:
        """The worst sign over what is enough of it."""
        enough = {"wait": self._wait_share, "throttled": self._throttled_s, "stalled": self._stalled_share}
        return max(sign.value / max(enough[name], _LEAST_OF_ALL) for name, sign in signs.items())


def _told(signs: Mapping[str, _Sign]) -> Iterator[str]:
    if (wait := signs.get("wait")) is not None:
        yield f"waits for a CPU {percent(wait.value)} of the time it wants one{_before(wait)}"
    if (throttled := signs.get("throttled")) is not None and throttled.value > 0:
        yield f"throttled by its cgroup {figure(throttled.value)} s a second"
    if (stalled := signs.get("stalled")) is not None:
        yield f"some task of its cgroup stalled for a CPU {percent(stalled.value)} of the time{_before(stalled)}"


def _before(sign: _Sign) -> str:
    usual = sign.baseline.median
    return "" if usual is None else f" ({percent(usual)} before)"


def _evidence(signs: Mapping[str, _Sign]) -> Iterator[Evidence]:
    units = {"wait": ("runqueue_wait", Unit.RATIO), "stalled": ("cpu_pressure", Unit.RATIO)}
    for name, sign in sorted(signs.items()):
        called, unit = units.get(name, ("throttled_seconds_per_second", Unit.NONE))
        yield Evidence(called, sign.value, unit, sign.baseline.median)
