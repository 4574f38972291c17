"""Evidence of ``queueing``: requests wait for a place in the batch, or the scheduler holds the batch back.

The first from the server's page, from reading to reading: requests wait, and not for blocks of the KV cache
(``kv_pressure``). That costs those that wait; of the time of those that run it takes nothing, so its cap is 0.

The second from the requests themselves: pauses between decode steps (``witnesses.step_pauses``), unless requests wait.
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
from gpumon.explain.witnesses.kv import FULL
from gpumon.explain.witnesses.step_pauses import StepPauses
from gpumon.explain.witnesses.weighing import Usual, confirmed, found_servers, ramp, server_key, server_name
from gpumon.model import Unit

_FEW, _SHARE_FEW = 0.5, 0.03
_MANY, _SHARE_MANY = 2.0, 0.12
"""Requests waiting, and the same of those running, that are no evidence, and all of it."""


@dataclass(slots=True)
class _Queue:
    at_s: float | None = None
    waits: float = 0.0
    """Evidence at the last reading."""
    waiting: float = 0.0
    """Requests, likewise."""
    usual: Usual = field(default_factory=lambda: Usual(120, 5, settles=450))
    """Requests waiting."""


class Queueing:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = ("queueing",)

    def __init__(self) -> None:
        self._queues: Kept[Labels, _Queue] = Kept(_Queue, forget_s=600.0)
        self._pauses = StepPauses()

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        found = found_servers(incidents, "queue_buildup")
        running, usages = scene.values(catalogue.SERVER_RUNNING), scene.values(catalogue.SERVER_KV_USAGE)
        held_up = set()
        for labels, waiting, at_s in scene.read(catalogue.SERVER_WAITING):
            queue = self._queues.look(labels, scene.at_s)
            since_s, queue.at_s = queue.at_s, at_s
            if since_s is None or at_s > since_s:
                batch = running.get(labels)
                most, queue.waiting = max(waiting, queue.waiting), waiting
                before, queue.waits = queue.waits, self._waits(queue, waiting, batch, usages.get(labels))
                evidence = confirmed(max(before, queue.waits), is_found=server_name(labels) in found)
                if evidence > 0 and since_s is not None:
                    # Between the two readings; at the later one the queue may be gone.
                    fact = Fact("requests_waiting", most, Unit.NONE, queue.usual.value)
                    yield Sign("queueing", server_key(labels), since_s, at_s, evidence, 0.0, fact)
                queue.usual.feed(waiting, evidence)
            if queue.waits > 0:
                held_up.add(labels[1])
        self._queues.sweep(scene.at_s)
        yield from self._pauses.look(scene, incidents, held_up)

    @staticmethod
    def _waits(queue: _Queue, waiting: float, batch: float | None, usage: float | None) -> float:
        usual = queue.usual.value
        if usual is None:
            return 0.0
        size = batch or 0.0
        low, high = max(_FEW, _SHARE_FEW * size), max(_MANY, _SHARE_MANY * size)
        full = ramp(usage, *FULL) if usage is not None else 0.0
        return ramp(waiting - usual, low, high) * (1 - full)
