"""Evidence of ``kv_pressure``: requests were preempted, or waited for blocks of the KV cache.

From the server's page, from reading to reading. A preemption has no other reason. Requests that wait while the cache
has hardly a block left wait for blocks; how full that is depends on the longest prompt in the queue, whose blocks must
all be there, and on what the server keeps back. A full cache at which nobody waits costs nothing.

Waiting costs those that wait. Of the time of those that run it takes nothing, so the cap is 0; and 1 from a preemption
until nobody waits any more, for so long the one that was thrown out stands still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Labels, Scene
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.weighing import Usual, confirmed, found_servers, ramp, server_key, server_name
from gpumon.model import Unit
from gpumon.requests.gaps import possible

FULL = (0.7, 0.9)
"""Usage from which on some prompts, and most, find too few blocks."""
_PROMPTS = 256
_PROMPTS_S = 120.0
_FEW_PROMPTS = 8
_LARGE = 0.9
"""Part of a model's prompts that are no longer than the one that waits, most likely: the others have been let in."""
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
        self._prompts: Kept[str, deque[tuple[float, int]]] = Kept(lambda: deque(maxlen=_PROMPTS), forget_s=_PROMPTS_S)
        """Prompts of a model's newest requests: when told of, tokens."""

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_servers(incidents, "kv_pressure")
        waiting, capacities = scene.values(catalogue.SERVER_WAITING), scene.values(catalogue.SERVER_KV_CAPACITY)
        self._note_prompts(scene)
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
            full = ramp(usage, *self._limits(labels[1], capacities.get(labels)))
            evidence = _evidence(cache, full, waits, lost)
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
        self._prompts.sweep(scene.at_s)

    def _note_prompts(self, scene: Scene) -> None:
        for record in scene.requests:
            if possible(record.prompt_tokens):
                self._prompts.look(record.model, scene.at_s).append((scene.at_s, record.prompt_tokens))

    def _limits(self, model: str, capacity: float | None) -> tuple[float, float]:
        """Usage at which a large prompt may not find its blocks, and does not."""
        prompts = [tokens for name, kept in self._prompts.items() if name == model for _, tokens in kept]
        if not capacity or len(prompts) < _FEW_PROMPTS:
            return FULL
        need = _quantile(prompts) / capacity
        low, high = min(0.93, max(0.3, 1 - 2 * need)), min(0.98, max(0.5, 1 - 0.9 * need))
        return low, high


def _quantile(prompts: Iterable[int]) -> float:
    ordered = sorted(prompts)
    return float(ordered[int(_LARGE * (len(ordered) - 1))])


def _evidence(cache: _Cache, full: float, waits: float, lost: float) -> float:
    """Of the stretch that ends now. full: 0 to 1; waits: requests; lost: preemptions per second."""
    before, cache.blocked = cache.blocked, ramp(waits, 0.0, 1.0) * full
    usual_blocked, usual_lost = cache.usual_blocked.value, cache.usual_preempted.value
    if usual_blocked is None or usual_lost is None:
        return 0.0
    # Who waited at one end of the stretch waited in it.
    return max(max(before, cache.blocked) * (1 - usual_blocked), ramp(lost - 2 * usual_lost, *_PREEMPTED_PER_S))
