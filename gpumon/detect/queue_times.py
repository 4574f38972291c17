"""Queues of servers without a metrics page, by the queue times of the requests that ended: a part of ``detect.queue``.

A request tells of its queue when it has ended, so this is later than a page by as long as requests last. Where requests
open are known (the proxy, or servers that tell of a request when it begins), they must not get fewer.

Bounded: 64 pairs of server and model, the newest 128 requests of each, 256 requests per step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, Severity, server_entity
from gpumon.detect.hysteresis import Baseline, Held
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.model import Unit

Pair = tuple[str, str]
"""Server and model."""

_KEPT: Final = 128
_LEAST: Final = 8
"""Requests in the window that a median is taken of."""
_USUAL_LEAST: Final = 16
_PER_STEP: Final = 256
_ON_S: Final = 5.0
_OFF_S: Final = 10.0
_OPEN_MAX: Final = 64


class _Waited(NamedTuple):
    known_s: float
    queue_s: float
    arrived_s: float


@dataclass(slots=True)
class _Pair:
    recent: deque[_Waited] = field(default_factory=lambda: deque(maxlen=_KEPT))
    usual: Baseline = field(default_factory=lambda: Baseline(_KEPT, _USUAL_LEAST))
    open: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_OPEN_MAX))
    """When, and how many requests were open."""
    began_s: float | None = None
    """Arrival of the first request that waited long, while they do."""


class QueueTimes:
    """See the module."""

    def __init__(self, *, window_s: float, queue_s: float, times: float) -> None:
        """As ``QueueBuildup``'s."""
        self._window_s = window_s
        self._queue_s = queue_s
        self._times = times
        self._pairs: Kept[Pair, _Pair] = Kept(_Pair, forget_s=300.0)
        self._held: Held[Pair] = Held(on_s=_ON_S, off_s=_OFF_S)

    def step(self, scene: Scene, with_page: Set[str]) -> Iterator[Finding]:
        """with_page: servers and models whose pages tell: requests of either are left to these."""
        for record in scene.requests[-_PER_STEP:]:
            if record.queue_s is not None and with_page.isdisjoint((record.server, record.model)):
                pair = self._pairs.look((record.server, record.model), scene.at_s)
                pair.recent.append(_Waited(scene.at_s, record.queue_s, record.arrived_s))
        self._pairs.sweep(scene.at_s)
        open_now = scene.values(catalogue.REQUESTS_OPEN)
        pairs = {key: pair for key, pair in self._pairs.items() if with_page.isdisjoint(key)}
        self._held.keep(pairs)
        for key, pair in pairs.items():
            yield from self._judge(scene, key, pair, open_now.get(key))

    def _judge(self, scene: Scene, key: Pair, pair: _Pair, open_now: float | None) -> Iterator[Finding]:
        oldest_s = scene.at_s - self._window_s
        if open_now is None:
            pair.open.clear()
        else:
            pair.open.append((scene.at_s, open_now))
            while pair.open[0][0] < oldest_s:
                pair.open.popleft()
        window = [each for each in pair.recent if each.known_s > oldest_s]
        now_s = median([each.queue_s for each in window]) if len(window) >= _LEAST else 0.0
        is_true = now_s > self._queue_s and now_s > self._times * (pair.usual.median or 0.0) and not _gets_fewer(pair)
        since_s = self._held.feed(key, is_true, scene.at_s)
        if is_true and pair.began_s is None:
            pair.began_s = min(each.arrived_s for each in window if each.queue_s > self._queue_s)
        if since_s is not None:
            if is_true:  # else a break: the figures that remain are of the queue, not of its absence
                yield _finding(key, pair, now_s, since_s)
        elif not is_true:
            pair.began_s = None
            for each in reversed(window):
                if each.known_s < scene.at_s:
                    break
                pair.usual.feed(each.queue_s)


def _gets_fewer(pair: _Pair) -> bool:
    return bool(pair.open) and pair.open[-1][1] < 0.9 * pair.open[0][1]


def _finding(key: Pair, pair: _Pair, now_s: float, since_s: float) -> Finding:
    usual_s = pair.usual.median
    evidence = [Evidence("queue_time_median", now_s, Unit.SECONDS, usual_s)]
    if pair.open:
        evidence.append(Evidence("requests_open", pair.open[-1][1], Unit.NONE, pair.open[0][1]))
    return Finding(
        "queue_buildup",
        server_entity((*key, "")),
        Severity.WARNING,
        since_s if pair.began_s is None else min(since_s, pair.began_s),
        f"half of the requests waited {now_s:.1f} s or more{'' if usual_s is None else f', usually {usual_s:.2f} s'}",
        tuple(evidence),
        weight=now_s,
    )
