"""What the host counts within a stretch of time, at the half second at which it is read: for witnesses.

Readings of a cgroup, or of threads, are five seconds apart. When in these seconds it was, the host's own pressure
tells: whatever stalls a cgroup stalls some task of the host.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpumon import catalogue
from gpumon.detect.bursts import Rates, rates
from gpumon.detect.scene import Growth, Labels, Scene
from gpumon.model import Metric

EDGE: Final = 0.05
"""Of what the host's tasks waited in a stretch: what may lie outside of it at either end."""
AROUND_S: Final = 0.75
"""Sources are read at different moments."""
HOST_WAITS: Final = (("memory", "some"), ("io", "some"))
"""Of the host's pressure: who waits for pages waits for the one, the other, or both."""
PAGES_PER_FAULT: Final = 2.0
"""Swapped in for one fault, at the least where the kernel reads ahead (vm.page-cluster is 3: up to eight)."""


class Part(NamedTuple):
    """What a counter grew between two readings."""

    start_s: float
    end_s: float
    amount: float

    @property
    def rate(self) -> float:
        """Per second."""
        return self.amount / (self.end_s - self.start_s)


def parts_of(scene: Scene, metric: Metric, growth: Growth) -> list[Part]:
    """A growth by the readings in it; as one where these are not kept. Parts in which the counter fell are left out."""
    start_s = growth.at_s - growth.dt_s
    times, totals = scene.window(metric, growth.labels, start_s)
    if len(times) < 3 or times[0] > start_s + 1e-6:
        return [Part(start_s, growth.at_s, growth.amount)]
    seen = rates(times, totals)
    ends, seconds = seen.ends_s.tolist(), seen.seconds.tolist()
    amounts = (seen.per_s * seen.seconds).tolist()
    return [Part(end - dt, end, amount) for end, dt, amount in zip(ends, seconds, amounts, strict=True)]


def narrowed(scene: Scene, resource: str, start_s: float, end_s: float) -> tuple[float, float]:
    """When in this stretch the host's tasks waited for a resource (cpu, memory, io): nine tenths of it, and more.

    The stretch as it is where the host does not tell.
    """
    seen = _within(scene, catalogue.HOST_PRESSURE, (resource, "some"), start_s, end_s)
    grown = np.cumsum(seen.per_s * seen.seconds)
    if not len(grown) or grown[-1] <= 0:
        return start_s, end_s
    first = int(np.argmax(grown > EDGE * grown[-1]))
    last = int(np.argmax(grown >= (1 - EDGE) * grown[-1]))
    since_s = max(start_s, float(seen.ends_s[first] - seen.seconds[first]))
    until_s = min(end_s, float(seen.ends_s[last]))
    return (since_s, until_s) if until_s > since_s else (start_s, end_s)


def stalled_share(scene: Scene, start_s: float, end_s: float) -> float | None:
    """Largest share of a reading in a stretch in which some task of the host waited for memory or a disk."""
    highest: float | None = None
    for labels in HOST_WAITS:
        seen = _within(scene, catalogue.HOST_PRESSURE, labels, start_s, end_s)
        if len(seen.per_s):
            highest = max(highest or 0.0, float(seen.per_s.max()))
    return highest


def swapped_share(scene: Scene, start_s: float, end_s: float) -> float:
    """Share of the host's major faults in a stretch that were for pages from swap; 0 where nobody tells."""
    since_s = start_s - AROUND_S
    pages = grown_in(scene, catalogue.HOST_SWAP_PAGES, ("in",), since_s, end_s + AROUND_S)
    faults = grown_in(scene, catalogue.HOST_PAGE_FAULTS, ("major",), since_s, end_s + AROUND_S)
    return min(1.0, pages / (PAGES_PER_FAULT * faults)) if faults > 0 else 0.0


def grown_in(scene: Scene, metric: Metric, labels: Labels, start_s: float, end_s: float) -> float:
    """How much a counter grew in the readings that a stretch touches; 0 where that is not known."""
    seen = _within(scene, metric, labels, start_s, end_s)
    return float((seen.per_s * seen.seconds).sum())


def _within(scene: Scene, metric: Metric, labels: Labels, start_s: float, end_s: float) -> Rates:
    """Rates of the readings that a stretch touches."""
    seen = rates(*scene.window(metric, labels, start_s - 10.0))
    return seen.only((seen.ends_s > start_s) & (seen.ends_s - seen.seconds < end_s))
