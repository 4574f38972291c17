"""Evidence of ``kv_pressure``: requests were preempted, or waited for blocks of the KV cache.

From the server's page, from reading to reading. A preemption has no other reason. Requests that wait while the cache
has hardly a block left wait for blocks; how full that is depends on the longest prompt in the queue, whose blocks must
all be there, and on what the server keeps back. A full cache at which nobody waits costs nothing.
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


@dataclass(slots=True)
class _Cache:
    at_s: float | None = None
    blocked: float = 0.0
    """At the last reading: 0 to 1."""
    usual_blocked: Usual = field(default_factory=lambda: Usual(120, 5))
    usual_preempted: Usual = field(default_factory=lambda: Usual(120, 5))


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
            since_s, cache.at_s = cache.at_s, at_s
            if since_s is not None and at_s <= since_s:
                continue
            before, cache.blocked = cache.blocked, ramp(waiting.get(labels, 0.0), 0.0, 1.0) * ramp(usage, *FULL)
            growth = preempted.get(labels)
            lost = growth.rate if growth is not None else 0.0
            # Who waited at one end of the stretch waited in it.
            blocked = max(before, cache.blocked) * (1 - (cache.usual_blocked.value or 0.0))
            thrown = ramp(lost - 2 * (cache.usual_preempted.value or 0.0), *_PREEMPTED_PER_S)
            evidence = confirmed(max(blocked, thrown), is_found=server_name(labels) in found)
            cache.usual_blocked.feed(cache.blocked, evidence)
            cache.usual_preempted.feed(lost, evidence)
            if evidence > 0 and since_s is not None:
                fact = Fact("kv_usage", usage, Unit.RATIO)
                yield Sign("kv_pressure", server_key(labels), since_s, at_s, evidence, 1.0, fact)
        self._caches.sweep(scene.at_s)
