"""Evidence of ``memory_pressure``: tasks of a process's cgroup waited for the kernel to find memory.

From the memory pressure (PSI) of the cgroup, read every five seconds and placed within these by the host's, which is
read every half. A wait for pages of a file is in there, too, where these had been in memory a moment ago; so what the
major faults of the cgroup's processes took, at a quarter of a millisecond each, is not this but ``page_faults``.
Faults for pages from swap stay here.

Of a process whose cgroup tells nothing, the host's own pressure and swapping are all there is; where no process was
ever seen, they are said of the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.cgroups import CgroupReadings, Reading
from gpumon.explain.witnesses.host_parts import grown_in, narrowed, swapped_share
from gpumon.explain.witnesses.weighing import PROCESSES_MAX, Usual, confirmed, found_pids, is_of, ramp
from gpumon.model import Unit

_FAULT_S: Final = 2.5e-4
"""Of a major fault, most often: a solid-state drive, its queue and the kernel. Also what waits for a drive that turns
is then told as page faults, and as this."""
_SOME: Final = "memory some"
_UNEVEN: Final = 1.25
"""Times the mean share: waits are not spread evenly over the seconds in which it was read."""
_MOST_SWAP: Final = 0.7
"""Evidence from swapped pages alone."""
_HOST: Final = ("memory", "some")
_SWAPPED_IN: Final = ("in",)


class MemoryPressure:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("memory_pressure",)

    def __init__(
        self, *, little: float = 0.02, much: float = 0.12, swap_in_per_s: float = 256.0, much_swap_per_s: float = 2048.0
    ) -> None:
        """little, much: share of time waited for memory, over the usual, that is no evidence, and all of it.
        swap_in_per_s, much_swap_per_s: pages swapped in per second, likewise; 4 KiB each."""
        self._little = little
        self._much = much
        self._swap_in_per_s = swap_in_per_s
        self._much_swap_per_s = much_swap_per_s
        self._cgroups = CgroupReadings()
        self._usual: Kept[Labels, Usual] = Kept(lambda: Usual(60, 4, settles=180), most=PROCESSES_MAX)
        self._host = Usual(120, 10)
        self._swap = Usual(120, 10)
        self._has_processes = False

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_pids(incidents, "memory_pressure")
        for reading in self._cgroups.step(scene):
            if _SOME in reading.per_s:
                yield from self._of_cgroup(scene, reading, found)
        self._usual.sweep(scene.at_s)
        yield from self._of_host(scene, found)

    def _of_cgroup(self, scene: Scene, reading: Reading, found: set[str]) -> Iterator[Sign]:
        usual = self._usual.look(reading.group, scene.at_s)
        before, share = usual.value, reading.per_s[_SOME]
        start_s, end_s = reading.start_s, reading.end_s
        over_s = (share - (before or 0.0)) * (end_s - start_s)
        evidence = ramp(share - (before or 0.0), 0.0, self._little) if before is not None else 0.0
        if evidence > 0 and before is not None:
            start_s, end_s = narrowed(scene, "memory", start_s, end_s)
            share = min(1.0, before + over_s / (end_s - start_s))
            explained = _faulted_s(scene, reading, start_s, end_s) / over_s
            evidence = ramp(share - before, self._little, self._much) * max(0.0, 1 - explained)
            evidence = confirmed(evidence, is_found=is_of(found, reading.pids))
            fact = Fact("memory_pressure", share, Unit.RATIO, before)
            keys: list[Key] = [("process", pid) for pid in reading.pids]
            yield from _signs(keys, start_s, end_s, evidence, min(1.0, _UNEVEN * share), fact)
        usual.feed(reading.per_s[_SOME], ramp(reading.per_s[_SOME] - (before or 0.0), self._little, self._much))

    def _of_host(self, scene: Scene, found: set[str]) -> Iterator[Sign]:
        """Of those whose cgroups tell nothing."""
        pages = next((g for g in scene.grown(catalogue.HOST_SWAP_PAGES) if g.labels == _SWAPPED_IN), None)
        stalled = next((g for g in scene.grown(catalogue.HOST_PRESSURE) if g.labels == _HOST), None)
        processes = {labels[0] for labels in scene.values(catalogue.PROCESS_CPU_SECONDS)}
        self._has_processes = self._has_processes or bool(processes)
        keys: list[Key] = [("process", pid) for pid in sorted(processes - self._cgroups.told)]
        if not self._has_processes:
            keys = [("host", "")]
        if not keys:
            return
        if pages is not None:
            before = self._swap.value
            evidence = ramp(pages.rate - 2 * (before or 0.0), self._swap_in_per_s, self._much_swap_per_s)
            if before is not None and evidence > 0:
                fact = Fact("swapped_in_per_second", pages.rate, Unit.NONE, before)
                evidence = confirmed(_MOST_SWAP * evidence, is_found=is_of(found, ()))
                yield from _signs(keys, pages.at_s - pages.dt_s, pages.at_s, evidence, 1.0, fact)
            self._swap.feed(pages.rate, evidence)
        if stalled is not None:
            before, start_s = self._host.value, stalled.at_s - stalled.dt_s
            evidence = ramp(stalled.rate - (before or 0.0), self._little, self._much)
            if before is not None and evidence > 0:
                faulted_s = _FAULT_S * _file_faults(scene, self._faults_of(scene), start_s, stalled.at_s)
                explained = faulted_s / (stalled.amount - before * stalled.dt_s)
                told = confirmed(evidence * max(0.0, 1 - explained), is_found=is_of(found, ()))
                fact = Fact("memory_pressure", stalled.rate, Unit.RATIO, before)
                yield from _signs(keys, start_s, stalled.at_s, told, min(1.0, _UNEVEN * stalled.rate), fact)
            self._host.feed(stalled.rate, evidence)

    @staticmethod
    def _faults_of(scene: Scene) -> list[Labels]:
        return [labels for labels in scene.values(catalogue.PROCESS_PAGE_FAULTS) if labels[-1] == "major"]


def _faulted_s(scene: Scene, reading: Reading, start_s: float, end_s: float) -> float:
    """What faults of a cgroup's processes took, those for pages from swap left out."""
    pids = set(reading.pids)
    series = [
        labels for labels in scene.values(catalogue.PROCESS_PAGE_FAULTS) if labels[0] in pids and labels[-1] == "major"
    ]
    return _FAULT_S * _file_faults(scene, series, start_s, end_s)


def _file_faults(scene: Scene, series: Iterable[Labels], start_s: float, end_s: float) -> float:
    faults = sum(grown_in(scene, catalogue.PROCESS_PAGE_FAULTS, labels, start_s, end_s) for labels in series)
    return faults * (1 - swapped_share(scene, start_s, end_s)) if faults else 0.0


def _signs(
    keys: Iterable[Key], start_s: float, end_s: float, evidence: float, cap: float, fact: Fact
) -> Iterator[Sign]:
    if evidence > 0:
        yield from (Sign("memory_pressure", key, start_s, end_s, evidence, cap, fact) for key in keys)
