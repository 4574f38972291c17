"""Evidence of ``page_faults``: a process faulted pages in from a disk, many more than it usually does.

From the major faults of each process (``gpumon_process_page_faults_total``), half second by half second over the
history of the store; bursts last about as long. A fault takes 0.1 ms on an NVMe drive and up to 10 ms on a disk that
turns, and longer where the kernel reads megabytes ahead for one: then a few are enough. How long the host's tasks
really waited for disks and memory meanwhile, its pressure (PSI) tells where there is any. It makes a few faults
evidence, and bounds what faults can have cost. Those for pages that had been swapped out are ``memory_pressure``'s.

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
from gpumon.explain.witnesses.host_parts import HOST_WAITS, Part, grown_in, parts_of, stalled_share, swapped_share
from gpumon.explain.witnesses.weighing import PROCESSES_MAX, Usual, confirmed, found_pids, is_of, ramp
from gpumon.model import Unit

_FASTEST_S, _SLOWEST_S = 1e-4, 1e-2
"""Of a fault: from flash memory, and from a disk that turns."""
_MARGIN = 3.0
"""Times the pressure: the host is read at other moments, and pages have to be mapped as well as read."""
_WAITED = (0.01, 0.04)
"""Share of time waited, over the usual, that makes a few faults no evidence, and all there can be of them."""
_HAIR = 0.1
"""Of a stretch, at each end."""
_OWN = (0.05, 0.25)
"""Share of the host's faults from which on a wait may be, and is, of the process that had them."""
_FEW = 0.7
"""Evidence of a few faults: somebody waited for a disk, most likely this one."""
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
        self._waited = _usual()
        """Share of time that the host's tasks wait."""

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_pids(incidents, "page_fault_burst")
        usual_wait = self._read_waits(scene)
        for growth in scene.grown(catalogue.PROCESS_PAGE_FAULTS):
            labels = growth.labels
            if labels[-1] != "major":
                continue
            usual = self._usual.look(labels, scene.at_s)
            before = usual.value
            highest = 0.0
            if before is not None and growth.amount > 0:
                for part in parts_of(scene, catalogue.PROCESS_PAGE_FAULTS, growth):
                    over = part.rate - self._times * before
                    if over <= 0:
                        continue
                    # Sources are read one after the other: what is of the neighbours by a hair is theirs.
                    hair_s = _HAIR * (part.end_s - part.start_s)
                    waited = stalled_share(scene, part.start_s + hair_s, part.end_s - hair_s)
                    evidence = ramp(over, self._few_per_s, self._many_per_s)
                    if part.amount >= 1 and evidence < _FEW and waited is not None and usual_wait is not None:
                        few = _FEW * ramp(waited - usual_wait, *_WAITED) * _own(scene, part)
                        evidence = max(evidence, few)
                    if evidence <= 0:
                        continue
                    highest = max(highest, evidence)
                    evidence *= 1 - swapped_share(scene, part.start_s, part.end_s)
                    evidence = confirmed(evidence, is_found=is_of(found, labels[:1]))
                    if evidence > 0:
                        fact = Fact("major_faults_per_second", part.rate, Unit.NONE, before)
                        cap = _cap(part.rate, waited)
                        yield Sign("page_faults", ("process", labels[0]), part.start_s, part.end_s, evidence, cap, fact)
            usual.feed(growth.rate, highest)
        self._usual.sweep(scene.at_s)

    def _read_waits(self, scene: Scene) -> float | None:
        """What is usual of the share of time that the host's tasks wait for memory or disks."""
        usual = self._waited.value
        rates = [growth.rate for growth in scene.grown(catalogue.HOST_PRESSURE) if growth.labels in HOST_WAITS]
        if rates:
            self._waited.feed(max(rates), ramp(max(rates) - (usual or 0.0), *_WAITED))
        return usual


def _own(scene: Scene, part: Part) -> float:
    """Whether faults are a good part of all that the host had: else the wait is of others."""
    host = grown_in(scene, catalogue.HOST_PAGE_FAULTS, ("major",), part.start_s, part.end_s)
    return ramp(part.amount / max(part.amount, host), *_OWN)


def _cap(rate: float, waited: float | None) -> float:
    """The share of time that faults at this rate can have taken. waited: share of time that the host's tasks waited."""
    cap = rate * _SLOWEST_S if waited is None else _MARGIN * waited
    return min(1.0, max(cap, rate * _FASTEST_S))
