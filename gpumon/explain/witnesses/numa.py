"""Evidence of ``numa_remote``: pages or CPUs of a process came to be on another NUMA node than its GPU.

From the shares that the source ``numa`` estimates every ten seconds, each against the process's own usual: one that has
always been like that is slow as always. Within these ten seconds the kernel's count of allocations that missed their
node (``gpumon_host_numa_pages_total``) tells when it began, and that it is over, where it moved at all: a process that
was placed on the wrong CPUs allocates there without a miss.

Host work on memory of the other socket takes up to three times as long: that bounds the cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Reading, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.weighing import PROCESSES_MAX, Usual, confirmed, found_pids, ramp, sharing
from gpumon.model import Metric, Unit

_SLOWER: Final = 2.0
"""By how much of itself work takes longer on memory that is all remote: latency 1.4 to 2.2 times, bandwidth a third."""
_KEPT: Final = 64
_NODE: Final = catalogue.GPU_INFO.labels.index("numa_node")


@dataclass(slots=True)
class _Share:
    """Of one process: its pages, or its CPUs."""

    read_s: float | None = None
    usual: Usual = field(default_factory=lambda: Usual(60, 3, settles=90))
    evidence: float = 0.0
    cap: float = 0.0
    fact: Fact | None = None
    missed: bool = False
    """Allocations missed their node while it held."""


class NumaRemote:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("numa_remote",)

    def __init__(
        self,
        *,
        local: tuple[float, float] = (0.7, 0.8),
        fell: tuple[float, float] = (0.1, 0.25),
        missed_per_s: float = 100.0,
        times: float = 3.0,
    ) -> None:
        """local: share from which on it is all evidence, and none. fell: the same of how far it is below its usual.
        missed_per_s: allocations per second, over ``times`` the usual, that count as missing their node."""
        self._local = local
        self._fell = fell
        self._missed_per_s = missed_per_s
        self._times = times
        self._shares: Kept[tuple[Labels, str], _Share] = Kept(_Share, most=2 * PROCESSES_MAX)
        self._usual_misses = Usual(120, 10)
        self._misses: deque[tuple[float, float, bool]] = deque(maxlen=_KEPT)
        """From when to when, and whether more than usual missed."""
        self._looked_s: float | None = None

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        metrics = (catalogue.PROCESS_NUMA_LOCAL, catalogue.PROCESS_CPUS_LOCAL)
        processes = {labels[2:] for metric in metrics for labels in scene.values(metric)}
        found = sharing(processes, found_pids(incidents, "numa_remote"))
        self._read_misses(scene)
        nodes = len({labels[0] for labels in scene.values(catalogue.HOST_MEMORY)})
        since_s, self._looked_s = self._looked_s, scene.at_s
        for name, metric, factor in (
            ("local_pages", metrics[0], 1.0),
            # One that nobody pinned has its part of the CPUs near its GPU.
            ("local_cpus", metrics[1], float(nodes)),
        ):
            if not factor:
                continue
            for process, value, read_s in _near(scene, metric):
                share = self._shares.look((process, name), scene.at_s)
                start_s = share.read_s if share.read_s is not None else read_s
                if read_s > start_s:
                    began_s = self._judge(share, name, min(1.0, factor * value), (start_s, read_s))
                    share.evidence = confirmed(share.evidence, is_found=process in found)
                    if share.evidence > 0 and began_s < scene.at_s:
                        yield self._sign(process, share, began_s, scene.at_s)
                elif share.evidence > 0 and since_s is not None and not self._is_over(share):
                    yield self._sign(process, share, since_s, scene.at_s)
                share.read_s = read_s
        self._shares.sweep(scene.at_s)

    def _read_misses(self, scene: Scene) -> None:
        grown = [growth for growth in scene.grown(catalogue.HOST_NUMA_PAGES) if growth.labels[1] == "miss"]
        if not grown:
            return
        rate = sum([growth.rate for growth in grown])
        usual = self._usual_misses.value
        many = usual is not None and rate > self._times * usual + self._missed_per_s
        self._misses.append((grown[0].at_s - grown[0].dt_s, grown[0].at_s, many))
        self._usual_misses.feed(rate, float(many))

    def _judge(self, share: _Share, name: str, value: float, stretch: tuple[float, float]) -> float:
        """A new reading, with the time since the one before; when what it says began."""
        usual = share.usual.value
        was_remote = share.evidence > 0
        far = 0.0 if usual is None else usual - value
        share.evidence = min(1.0 - ramp(value, *self._local), ramp(far, *self._fell))
        share.usual.feed(value, share.evidence)
        remote = _SLOWER * max(0.0, far)
        share.cap = remote / (1 + remote)
        share.fact = Fact(name, value, Unit.RATIO, usual)
        start_s, read_s = stretch
        missed_s = [since_s for since_s, until_s, many in self._misses if many and until_s > start_s]
        share.missed = bool(missed_s) or (share.missed and was_remote)
        if was_remote:
            return start_s
        if missed_s:
            return max(start_s, missed_s[0])
        # Nothing has missed its node yet, or it never does.
        return read_s if self._misses else (start_s + read_s) / 2

    def _is_over(self, share: _Share) -> bool:
        """Whether nothing misses its node any more, of what did."""
        return share.missed and bool(self._misses) and not self._misses[-1][2]

    @staticmethod
    def _sign(process: Labels, share: _Share, start_s: float, end_s: float) -> Sign:
        return Sign("numa_remote", ("process", process[0]), start_s, end_s, share.evidence, share.cap, share.fact)


def _near(scene: Scene, metric: Metric) -> Iterator[Reading]:
    """By process: the share near any of its GPUs, those of one node counted once."""
    readings = scene.read(metric)
    node_of = {labels[1]: labels[_NODE] for labels in scene.values(catalogue.GPU_INFO)} if readings else {}
    near: dict[Labels, dict[str, Reading]] = {}
    for reading in readings:
        by_node = near.setdefault(reading.labels[2:], {})
        node = node_of.get(reading.labels[1], "")
        if node not in by_node or reading.value > by_node[node].value:
            by_node[node] = reading
    for process, of in near.items():
        yield Reading(
            process, min(1.0, sum(each.value for each in of.values())), max(each.at_s for each in of.values())
        )
