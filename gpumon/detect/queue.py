"""Requests pile up in front of a server: ``queue_buildup``.

From the server's metrics page (requests waiting and running); of servers without one, from the queue times of the
requests that ended (``detect.queue_times``). A queue that empties again is how a server takes a burst; one that stands,
and does not shrink, means that more arrives than it can do. So it is the shortest queue of the last seconds that
counts, not the longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, server_entity
from gpumon.detect.kept import Kept
from gpumon.detect.queue_times import QueueTimes
from gpumon.detect.scene import Labels, Scene
from gpumon.model import Unit

_READINGS_MAX: Final = 64
_READINGS_LEAST: Final = 3
_RELEASE_S: Final = 5.0


class _Reading(NamedTuple):
    at_s: float
    waiting: float
    running: float | None


@dataclass(slots=True)
class _Queue:
    """One server's queue."""

    readings: deque[_Reading] = field(default_factory=lambda: deque(maxlen=_READINGS_MAX))
    short: _Reading | None = None
    """The newest reading of a short queue."""
    stands: _Reading | None = None
    """The first reading after it: since then the queue stands."""
    is_found: bool = False
    longest: float = 0.0
    """Since it was found."""
    shrunk_s: float | None = None
    """Since when it is short again, while it is found."""


class QueueBuildup:
    """See the module."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "queue_buildup",
            "At least `least` requests, and `share` of those running, waited at every moment of the last `window_s`; "
            "the queue did not shrink in that time, it was shorter before or grew by `growth`, and the running batch "
            "grew by no more than `flat`. Of a server without a metrics page: the median queue time of the requests "
            "that ended within `window_s` is above `queue_s` and above `times` the usual one, and requests that are "
            "open do not get fewer, for 5 s.",
            (Severity.WARNING,),
            "More arrives than the server finishes. See whether it became slower (other incidents of this time, KV "
            "cache, clocks) or the load rose. Then add a replica, limit what is admitted (vLLM: "
            "--max-num-queued-reqs), or raise the batch limit where KV cache and latency allow it.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "window_s": "How long the queue must stand; seconds. Longer than a healthy server takes for a burst.",
        "least": "Shortest queue that counts; requests.",
        "share": "The same, of the running batch; ratio. Below it a request waits for a tenth of another's duration.",
        "growth": "Of a queue that stood when it was first seen: newest third of the window over the oldest, less 1.",
        "flat": "Growth of the running batch in the window that is none; ratio. While it grows, requests get in.",
        "release": "It is over when the queue was shorter than this share of its longest for 5 s; ratio.",
        "queue_s": "Median queue time that counts where there is no page; seconds. Most targets for the first token "
        "are below it.",
        "times": "The same, over the usual; ratio.",
    }

    def __init__(
        self,
        *,
        window_s: float = 10.0,
        least: float = 4.0,
        share: float = 0.1,
        growth: float = 0.25,
        flat: float = 0.15,
        release: float = 0.25,
        queue_s: float = 1.0,
        times: float = 3.0,
    ) -> None:
        self._window_s = window_s
        self._least = least
        self._share = share
        self._growth = growth
        self._flat = flat
        self._release = release
        self._queues: Kept[Labels, _Queue] = Kept(_Queue)
        self._times = QueueTimes(window_s=window_s, queue_s=queue_s, times=times)

    def step(self, scene: Scene) -> Iterator[Finding]:
        running = scene.values(catalogue.SERVER_RUNNING)
        waiting = scene.read(catalogue.SERVER_WAITING)
        for labels, value, at_s in waiting:
            queue = self._queues.look(labels, scene.at_s)
            if not queue.readings or at_s > queue.readings[-1].at_s:
                self._take(queue, _Reading(at_s, value, running.get(labels)))
            # Not while it is seen to be short: the figures that remain are of the queue, not of its absence.
            if queue.is_found and queue.shrunk_s is None:
                yield _finding(scene, labels, queue)
        self._queues.sweep(scene.at_s)
        # Requests of a server with a page may come from somewhere before it (a proxy, a front end) under its model.
        yield from self._times.step(scene, {name for labels, _, _ in waiting for name in labels[:2] if name})

    def _take(self, queue: _Queue, reading: _Reading) -> None:
        readings = queue.readings
        readings.append(reading)
        while len(readings) > _READINGS_LEAST and readings[1].at_s <= reading.at_s - self._window_s:
            readings.popleft()
        short_of = max(self._least, self._share * (reading.running or 0.0))
        if queue.is_found:
            self._follow(queue, reading, short_of)
        elif reading.waiting < short_of:
            queue.short, queue.stands = reading, None
        else:
            queue.stands = queue.stands or reading
            long_enough = reading.at_s - queue.stands.at_s >= self._window_s
            if long_enough and self._grew(readings, was_short=queue.short is not None):
                queue.is_found, queue.longest = True, max([each.waiting for each in readings])

    def _follow(self, queue: _Queue, reading: _Reading, short_of: float) -> None:
        """Whether what was found is over."""
        queue.longest = max(queue.longest, reading.waiting)
        if reading.waiting >= max(short_of, self._release * queue.longest):
            queue.shrunk_s = None
            return
        queue.shrunk_s = reading.at_s if queue.shrunk_s is None else queue.shrunk_s
        if reading.at_s - queue.shrunk_s >= _RELEASE_S:
            queue.is_found, queue.shrunk_s, queue.stands, queue.short = False, None, None, reading

    def _grew(self, readings: deque[_Reading], *, was_short: bool) -> bool:
        if len(readings) < _READINGS_LEAST:
            return False
        waiting = [each.waiting for each in readings]
        third = len(waiting) // 3
        if sum(waiting[-third:]) < (1.0 if was_short else 1.0 + self._growth) * sum(waiting[:third]):
            return False
        batches = [each.running for each in readings if each.running is not None]
        third = len(batches) // 3
        return sum(batches[-third:]) <= (1.0 + self._flat) * sum(batches[:third]) + third if third else True


def _finding(scene: Scene, labels: Labels, queue: _Queue) -> Finding:
    now, since = queue.readings[-1], queue.stands or queue.readings[0]
    before = queue.short or since
    evidence = [
        Evidence("waiting", now.waiting, Unit.NONE, before.waiting),
        Evidence("longest_queue", queue.longest, Unit.NONE),
    ]
    running = ""
    if now.running is not None:
        evidence.append(Evidence("running", now.running, Unit.NONE, before.running))
        running = f" while {now.running:.0f} run"
    usage = scene.value(catalogue.SERVER_KV_USAGE, labels)
    if usage is not None:
        evidence.append(Evidence("kv_usage", usage, Unit.RATIO))
    return Finding(
        "queue_buildup",
        server_entity(labels),
        Severity.WARNING,
        since.at_s,
        f"waiting requests {before.waiting:.0f} → {now.waiting:.0f}{running}",
        tuple(evidence),
        weight=now.waiting,
    )
