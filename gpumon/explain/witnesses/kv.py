"""Evidence of ``kv_pressure``: requests were preempted, or waited for blocks of the KV cache.

From the server's page, from reading to reading. A preemption has no other reason. Requests that wait while the cache
has hardly a block left wait for blocks; how full that is depends on the longest prompt in the queue, whose blocks must
all be there, and on what the server keeps back. A full cache at which nobody waits costs nothing.

Waiting costs those that wait. Of the time of those that run it takes nothing, so the cap is 0; and 1 from a preemption
until nobody waits any more, for so long the one that was thrown out stands still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.weighing import Usual, confirmed, found_servers, ramp, server_key, server_name
from gpumon.model import Unit

FULL = (0.7, 0.9)
"""Usage from which on some prompts, and most, find too few blocks."""
_PREEMPTED_PER_S = (0.02, 0.2)
"""Over twice the usual: no evidence, and all of it. One between two readings of a page is 0.1 or more."""


@dataclass(slots=True)
class _Cache:
    at_s: float | None = None
    blocked: float = 0.0
    """At the last reading: 0 to 1."""
    has_preempted: bool = False
    """And somebody has waited since."""
    usual_blocked: Usual = field(default_factory=lambda: Usual(120, 5, settles=450))
    usual_preempted: Usual = field(default_factory=lambda: Usual(120, 5, settles=450))


class KvPressure:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("kv_pressure",)

    def __init__(self) -> None:
        self._caches: Kept[Labels, _Cache] = Kept(_Cache)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_servers(incidents, "kv_pressure")
        waiting = scene.values(catalogue.SERVER_WAITING)
        preempted = {growth.labels: growth for growth in scene.grown(catalogue.SERVER_PREEMPTIONS)}
        for labels, usage, at_s in scene.read(catalogue.SERVER_KV_USAGE):
            cache = self._caches.look(labels, scene.at_s)
            since_s = cache.at_s
            if since_s is not None and at_s <= since_s:
                continue
            cache.at_s = at_s
            growth = preempted.get(labels)
            lost = growth.rate if growth is not None else 0.0
            waits = waiting.get(labels, 0.0)
            evidence = _evidence(cache, usage, waits, lost)
            evidence = confirmed(evidence, is_found=server_name(labels) in found)
            cache.usual_blocked.feed(cache.blocked, evidence)
            cache.usual_preempted.feed(lost, evidence)
            cache.has_preempted = cache.has_preempted or lost > 0
            if evidence > 0 and since_s is not None:
                fact = Fact("kv_usage", usage, Unit.RATIO)
                cap = 1.0 if cache.has_preempted else 0.0
                yield Sign("kv_pressure", server_key(labels), since_s, at_s, evidence, cap, fact)
            cache.has_preempted = cache.has_preempted and waits > 0
        self._caches.sweep(scene.at_s)


def _evidence(cache: _Cache, usage: float, waits: float, lost: float) -> float:
    """Of the stretch that ends now. waits: requests; lost: preemptions per second."""
    before, cache.blocked = cache.blocked, ramp(waits, 0.0, 1.0) * ramp(usage, *FULL)
    usual_blocked, usual_lost = cache.usual_blocked.value, cache.usual_preempted.value
    if usual_blocked is None or usual_lost is None:
        return 0.0
    # Who waited at one end of the stretch waited in it.
    return max(max(before, cache.blocked) * (1 - usual_blocked), ramp(lost - 2 * usual_lost, *_PREEMPTED_PER_S))
