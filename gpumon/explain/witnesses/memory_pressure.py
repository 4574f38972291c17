"""Evidence of ``memory_pressure``: tasks of a process's cgroup waited for the kernel to find memory.

From the memory pressure (PSI) of the cgroup, read every five seconds and placed within these by the host's, which is
read every half. A wait for pages of a file is in there, too, where these had been in memory a moment ago; so where
processes of the cgroup had major faults, the time that it waited for disks beyond the usual (PSI io) is not this but
``page_faults``, or a quarter of a millisecond a fault where that is more. Faults for pages from swap stay here.

Of a process whose cgroup tells nothing, the host's own pressure and swapping are all there is; where no process was
ever seen, they are said of the host.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Growth, Labels, Scene
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.cgroups import CgroupReadings
from gpumon.explain.witnesses.host_parts import HOST_WAITS, grown_in, narrowed, swapped_share
from gpumon.explain.witnesses.weighing import PROCESSES_MAX, Usual, confirmed, found_pids, is_of, ramp
from gpumon.model import Unit

_FAULT_S: Final = 2.5e-4
"""Of a major fault, most often: a solid-state drive, its queue and the kernel."""
_MEMORY, _DISKS = "memory some", "io some"
_UNEVEN: Final = 1.25
"""Times the mean share: waits are not spread evenly over the seconds in which it was read."""
_MOST_SWAP: Final = 0.7
"""Evidence from swapped pages alone."""
_SWAPPED_IN: Final = ("in",)


class _Waits:
    """Of a cgroup, or the host: usual shares of time."""

    def __init__(self, size: int, least: int, *, settles: int = 900) -> None:
        self.memory = Usual(size, least, settles=settles)
        self.disks = Usual(size, least, settles=settles)


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
        self._waits: Kept[Labels, _Waits] = Kept(lambda: _Waits(60, 4, settles=180), most=PROCESSES_MAX)
        self._host = _Waits(120, 10)
        self._swap = Usual(120, 10)
        self._has_processes = False

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_pids(incidents, "memory_pressure")
        for reading in self._cgroups.step(scene):
            stretch = (reading.start_s, reading.end_s)
            waits, per_s = self._waits.look(reading.group, scene.at_s), reading.per_s
            keys: list[Key] = [("process", pid) for pid in reading.pids]
            is_found = is_of(found, reading.pids)
            yield from self._waited(scene, keys, waits, per_s.get(_MEMORY), per_s.get(_DISKS), stretch, is_found)
        self._waits.sweep(scene.at_s)
        yield from self._of_host(scene, is_found=is_of(found, ()))

    def _of_host(self, scene: Scene, *, is_found: bool) -> Iterator[Sign]:
        """Of those whose cgroups tell nothing."""
        pages = next((g for g in scene.grown(catalogue.HOST_SWAP_PAGES) if g.labels == _SWAPPED_IN), None)
        stalled = {growth.labels: growth for growth in scene.grown(catalogue.HOST_PRESSURE)}
        processes = {labels[0] for labels in scene.values(catalogue.PROCESS_CPU_SECONDS)}
        self._has_processes = self._has_processes or bool(processes)
        keys: list[Key] = [("process", pid) for pid in sorted(processes - self._cgroups.told)]
        if not self._has_processes:
            keys = [("host", "")]
        if not keys:
            return
        if pages is not None:
            yield from self._swapped(keys, pages, is_found=is_found)
        memory, disks = (stalled.get(labels) for labels in HOST_WAITS)
        if memory is not None:
            stretch = (memory.at_s - memory.dt_s, memory.at_s)
            of_disks = disks.rate if disks is not None else None
            yield from self._waited(scene, keys, self._host, memory.rate, of_disks, stretch, is_found)

    def _waited(
        self,
        scene: Scene,
        keys: Sequence[Key],
        waits: _Waits,
        memory: float | None,
        disks: float | None,
        stretch: tuple[float, float],
        is_found: bool,
    ) -> Iterator[Sign]:
        """A reading. memory, disks: shares of time that some task waited for them."""
        if memory is None:
            return
        usual, usual_disks = waits.memory.value, waits.disks.value or 0.0
        over = memory - (usual or 0.0)
        start_s, end_s = stretch
        seconds = end_s - start_s
        if usual is not None and over > 0:
            start_s, end_s = narrowed(scene, "memory", start_s, end_s)
            share = min(1.0, usual + over * seconds / (end_s - start_s))
            evidence = ramp(share - usual, self._little, self._much)
            if evidence > 0:
                disks_s = max(0.0, (disks or 0.0) - usual_disks) * seconds
                faulted_s = _faulted_s(scene, [name for _, name in keys], disks_s, start_s, end_s)
                evidence = confirmed(evidence * max(0.0, 1 - faulted_s / (over * seconds)), is_found=is_found)
            if evidence > 0:
                fact = Fact("memory_pressure", share, Unit.RATIO, usual)
                cap = min(1.0, _UNEVEN * share)
                yield from (Sign("memory_pressure", key, start_s, end_s, evidence, cap, fact) for key in keys)
        held = ramp(over, self._little, self._much)
        waits.memory.feed(memory, held)
        if disks is not None:
            waits.disks.feed(disks, max(held, ramp(disks - usual_disks, self._little, self._much)))

    def _swapped(self, keys: Sequence[Key], pages: Growth, *, is_found: bool) -> Iterator[Sign]:
        usual = self._swap.value
        evidence = ramp(pages.rate - 2 * (usual or 0.0), self._swap_in_per_s, self._much_swap_per_s)
        self._swap.feed(pages.rate, evidence)
        if usual is not None and evidence > 0:
            evidence = confirmed(_MOST_SWAP * evidence, is_found=is_found)
            fact = Fact("swapped_in_per_second", pages.rate, Unit.NONE, usual)
            start_s, end_s = pages.at_s - pages.dt_s, pages.at_s
            yield from (Sign("memory_pressure", key, start_s, end_s, evidence, 1.0, fact) for key in keys)


def _faulted_s(scene: Scene, pids: Container[str], disks_s: float, start_s: float, end_s: float) -> float:
    """What faults of these processes took, those for pages from swap left out. disks_s: what was waited for disks."""
    series = [
        labels for labels in scene.values(catalogue.PROCESS_PAGE_FAULTS) if labels[0] in pids and labels[-1] == "major"
    ]
    faults = sum([grown_in(scene, catalogue.PROCESS_PAGE_FAULTS, labels, start_s, end_s) for labels in series])
    if faults < 1:
        return 0.0
    return max(_FAULT_S * faults, disks_s) * (1 - swapped_share(scene, start_s, end_s))
