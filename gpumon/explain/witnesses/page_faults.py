"""Evidence of ``page_faults``: a process faulted pages in from a disk, many more than it usually does.

From the major faults of each process (``gpumon_process_page_faults_total``), half second by half second over the
history of the store; bursts last about as long. A fault takes 0.1 ms on an NVMe drive and up to 10 ms on a disk that
turns; how long the host's tasks really waited for disks and memory then, its pressure (PSI) tells where there is any,
and that bounds what the faults can have cost. Faults for pages that had been swapped out are ``memory_pressure``'s.

Missing counters give nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.host_parts import parts_of, stalled_share, swapped_share
from gpumon.explain.witnesses.weighing import PROCESSES_MAX, Usual, confirmed, found_pids, is_of, ramp
from gpumon.model import Unit

_FASTEST_S, _SLOWEST_S = 1e-4, 1e-2
"""Of a fault: from flash memory, and from a disk that turns."""
_MARGIN = 2.0
"""Times the pressure: the fault's process is read at other moments than the host."""
_USUAL = (120, 10)


def _usual() -> Usual:
    return Usual(*_USUAL)


class PageFaults:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("page_faults",)

    def __init__(self, *, few_per_s: float = 10.0, many_per_s: float = 60.0, times: float = 2.0) -> None:
        """few_per_s, many_per_s: faults per second over ``times`` the usual that are no evidence, and all of it: 60
        may be 6 ms in a second, and more than half of it."""
        self._few_per_s = few_per_s
        self._many_per_s = many_per_s
        self._times = times
        self._usual: Kept[Labels, Usual] = Kept(_usual, most=PROCESSES_MAX)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_pids(incidents, "page_fault_burst")
        for growth in scene.grown(catalogue.PROCESS_PAGE_FAULTS):
            labels = growth.labels
            if labels[-1] != "major":
                continue
            usual = self._usual.look(labels, scene.at_s)
            before = usual.value
            highest = 0.0
            if before is not None and growth.amount > 0:
                for start_s, end_s, amount in parts_of(scene, catalogue.PROCESS_PAGE_FAULTS, growth):
                    rate = amount / (end_s - start_s)
                    evidence = ramp(rate - self._times * before, self._few_per_s, self._many_per_s)
                    if evidence <= 0:
                        continue
                    highest = max(highest, evidence)
                    evidence *= 1 - swapped_share(scene, start_s, end_s)
                    evidence = confirmed(evidence, is_found=is_of(found, labels[:1]))
                    if evidence > 0:
                        fact = Fact("major_faults_per_second", rate, Unit.NONE, before)
                        cap = _cap(scene, start_s, end_s, rate)
                        yield Sign("page_faults", ("process", labels[0]), start_s, end_s, evidence, cap, fact)
            usual.feed(growth.rate, highest)
        self._usual.sweep(scene.at_s)


def _cap(scene: Scene, start_s: float, end_s: float, rate: float) -> float:
    """The share of time that faults at this rate can have taken."""
    stalled = stalled_share(scene, start_s, end_s)
    cap = rate * _SLOWEST_S if stalled is None else min(rate * _SLOWEST_S, _MARGIN * stalled)
    return min(1.0, max(cap, rate * _FASTEST_S))
