"""Evidence of ``process_stopped``: a process stood still by a signal, a debugger, or the cgroup freezer.

From ``gpumon_process_stopped_seconds_total``. The source looks at the state every half second and gives half of the
time between two looks that differ to each of them; so a stretch that was stopped for half of it may have been so for
nearly all of it, and counts double. A stop that is shorter than the time between two looks may not be seen.

A frozen process, or one that is stuck in the kernel, has no such state. It has no CPU time either; that alone says
nothing, but it does where a detector has found that it stands still with work to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Growth, Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.host_parts import parts_of
from gpumon.explain.witnesses.weighing import CONFIRMED, PROCESSES_MAX, Usual, found_pids, sharing
from gpumon.model import Unit

_TWICE = 2.0
_BUSY = 0.05
"""CPUs that a process usually takes, for its standing still to mean anything."""
_USUAL = (60, 10)


def _usual() -> Usual:
    return Usual(*_USUAL)


class Stopped:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("process_stopped",)

    def __init__(self) -> None:
        self._cpus: Kept[Labels, Usual] = Kept(_usual, most=PROCESSES_MAX)
        """What a process usually takes."""

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        for growth in scene.grown(catalogue.PROCESS_STOPPED_SECONDS):
            if growth.amount <= 0:
                continue
            for start_s, end_s, amount in parts_of(scene, catalogue.PROCESS_STOPPED_SECONDS, growth):
                share = min(1.0, _TWICE * amount / (end_s - start_s))
                if share > 0:
                    fact = Fact("stopped", amount, Unit.SECONDS, 0.0)
                    yield Sign("process_stopped", ("process", growth.labels[0]), start_s, end_s, share, share, fact)
        yield from self._frozen(scene, found_pids(incidents, "process_stopped"))

    def _frozen(self, scene: Scene, found: set[str]) -> Iterator[Sign]:
        grown = scene.grown(catalogue.PROCESS_CPU_SECONDS)
        concerned = sharing([growth.labels for growth in grown], found)
        for growth in grown:
            cpus = self._cpus.look(growth.labels, scene.at_s)
            usual = cpus.value
            is_still = growth.amount <= 0
            if is_still and usual is not None and usual >= _BUSY and growth.labels in concerned:
                yield _still(growth, usual)
            cpus.feed(growth.rate, float(is_still))
        self._cpus.sweep(scene.at_s)


def _still(growth: Growth, usual: float) -> Sign:
    key = ("process", growth.labels[0])
    fact = Fact("cpus", 0.0, Unit.NONE, usual)
    return Sign("process_stopped", key, growth.at_s - growth.dt_s, growth.at_s, CONFIRMED, 1.0, fact)
