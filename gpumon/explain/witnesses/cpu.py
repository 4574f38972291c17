"""Evidence of ``cpu_starvation``: threads of a process were ready to run and got no CPU.

Three signs, as in ``detect.cpu``, each over its own usual: the run-queue wait of a process's threads over the CPU time
they wanted; the time its cgroup was throttled by its quota; and the share of time in which some task of the cgroup
waited for a CPU (PSI). All are read every five seconds; when in these it was, the host's pressure tells, read every
half second. The most that any of them says was not given is the bound of what it can have cost.

Where the kernel tells of one sign only, that one decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.cgroups import REST_S, THROTTLED, CgroupReadings
from gpumon.explain.witnesses.host_parts import grown_in, narrowed
from gpumon.explain.witnesses.weighing import PROCESSES_MAX, Usual, confirmed, found_pids, ramp, sharing
from gpumon.model import Unit

_STALLED: Final = "cpu some"
_LEAST_WAIT: Final = 0.02
"""Seconds of run-queue wait in a second, all threads: less holds up nothing."""
_LEAST_LEFT: Final = 0.05
_FRESH_S: Final = 7.5
"""Readings of one time: the period of five seconds, and half of it."""


def _usual() -> Usual:
    """Of readings five seconds apart."""
    return Usual(60, 4, settles=180)


@dataclass(slots=True)
class _Waits:
    """Run-queue wait of one process."""

    at_s: float = 0.0
    wait_s: float | None = None
    cpu_s: float = 0.0
    usual: Usual = field(default_factory=_usual)


@dataclass(slots=True)
class _Group:
    throttled: Usual = field(default_factory=_usual)
    stalled: Usual = field(default_factory=_usual)


class CpuStarvation:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("cpu_starvation",)

    def __init__(
        self,
        *,
        wait_share: tuple[float, float] = (0.05, 0.2),
        throttled_s: tuple[float, float] = (0.02, 0.15),
        stalled_share: tuple[float, float] = (0.05, 0.25),
        times: float = 1.2,
    ) -> None:
        """Of each sign, over ``times`` its usual, what is no evidence and what is all of it: wait over wait and CPU
        time; seconds of throttling in a second; share of time stalled. Shares are of what is usually left: where half
        of the time is waited anyway, three quarters take as much again as a half where none is."""
        self._wait_share = wait_share
        self._throttled_s = throttled_s
        self._stalled_share = stalled_share
        self._times = times
        self._cgroups = CgroupReadings()
        self._waits: Kept[Labels, _Waits] = Kept(_Waits, most=PROCESSES_MAX)
        self._groups: Kept[Labels, _Group] = Kept(_Group, most=PROCESSES_MAX)
        self._caps: dict[str, dict[str, tuple[float, float]]] = {}
        """By pid and sign: when it was read, and the share that was not given."""

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_pids(incidents, "cpu_starvation")
        found = {labels[0] for labels in sharing(scene.values(catalogue.PROCESS_CPU_SECONDS), found)}
        told = [*self._of_threads(scene, found), *self._of_cgroups(scene, found)]
        self._waits.sweep(scene.at_s)
        self._groups.sweep(scene.at_s)
        for sign in told:
            # Of two signs of the same seconds the one with less to say has no smaller bound.
            recent = [cap for at_s, cap in self._caps[sign.key[1]].values() if sign.end_s - at_s < _FRESH_S]
            yield sign._replace(cap=max(sign.cap, *recent))
        there = {labels[0] for labels in scene.values(catalogue.PROCESS_CPU_SECONDS)}
        self._caps = {pid: caps for pid, caps in self._caps.items() if pid in there}

    def _of_threads(self, scene: Scene, found: set[str]) -> Iterator[Sign]:
        cpu = scene.values(catalogue.PROCESS_CPU_SECONDS)
        for labels, wait_s, at_s in scene.read(catalogue.PROCESS_RUNQUEUE_SECONDS):
            cpu_s = cpu.get(labels)
            waits = self._waits.look(labels, scene.at_s)
            if cpu_s is None or (wait_s == waits.wait_s and at_s - waits.at_s < REST_S):
                continue  # most likely not read anew
            before_s, seconds = waits.wait_s, at_s - waits.at_s
            waited_s, ran_s = wait_s - (before_s or 0.0), cpu_s - waits.cpu_s
            waits.wait_s, waits.cpu_s, waits.at_s = wait_s, cpu_s, at_s
            if before_s is None or waited_s < 0 or ran_s < 0 or seconds <= 0:
                continue
            whole = waited_s / (waited_s + ran_s) if waited_s > 0 else 0.0
            usual = waits.usual.value
            evidence = 0.0
            if usual is not None and waited_s > _LEAST_WAIT * seconds and usual < whole:
                start_s, end_s = narrowed(scene, "cpu", at_s - seconds, at_s)
                if end_s - start_s < seconds:
                    inside_s = grown_in(scene, catalogue.PROCESS_CPU_SECONDS, labels, start_s, end_s)
                    ran_s = min(ran_s * (end_s - start_s) / seconds, inside_s)
                share = waited_s / (waited_s + ran_s)
                evidence = ramp((share - self._times * usual) / max(_LEAST_LEFT, 1 - usual), *self._wait_share)
                evidence = confirmed(evidence, is_found=labels[0] in found)
                if evidence > 0:
                    fact = Fact("runqueue_wait", share, Unit.RATIO, usual)
                    yield self._sign("wait", labels[0], start_s, end_s, evidence, share, fact)
            waits.usual.feed(whole, evidence)

    def _of_cgroups(self, scene: Scene, found: set[str]) -> Iterator[Sign]:
        for reading in self._cgroups.step(scene):
            group = self._groups.look(reading.group, scene.at_s)
            for name, usual, bounds, called, unit in (
                (THROTTLED, group.throttled, self._throttled_s, "throttled_seconds_per_second", Unit.NONE),
                (_STALLED, group.stalled, self._stalled_share, "cpu_pressure", Unit.RATIO),
            ):
                rate = reading.per_s.get(name)
                if rate is None:
                    continue
                before = usual.value
                evidence = 0.0
                if before is not None and rate > before:
                    seconds = reading.end_s - reading.start_s
                    start_s, end_s = narrowed(scene, "cpu", reading.start_s, reading.end_s)
                    now = before + (rate - before) * seconds / (end_s - start_s)
                    now = min(1.0, now) if unit is Unit.RATIO else now
                    left = max(_LEAST_LEFT, 1 - before) if unit is Unit.RATIO else 1.0
                    evidence = ramp((now - self._times * before) / left, *bounds)
                    evidence = confirmed(evidence, is_found=reading.pids[0] in found)
                    if evidence > 0:
                        fact = Fact(called, now, unit, before)
                        for pid in reading.pids:
                            yield self._sign(name, pid, start_s, end_s, evidence, min(1.0, now), fact)
                usual.feed(rate, evidence)

    def _sign(self, name: str, pid: str, start_s: float, end_s: float, evidence: float, cap: float, fact: Fact) -> Sign:
        self._caps.setdefault(pid, {})[name] = (end_s, cap)
        return Sign("cpu_starvation", ("process", pid), start_s, end_s, evidence, cap, fact)
