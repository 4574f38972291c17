"""What the models that run on a GPU do: inter-token latency and tokens per second, before a moment and since.

From requests that have ended and are bound to GPUs, so it follows a change with their delay. Inter-token latency is the
mean over the last tokens of each request; tokens per second are those of requests that ended, whatever the time at
which they were made, and are told once both sides have enough of them. Requests that are not bound, and those without
token times or counts, are left out; where nothing is known there are no figures.

What was before is looked up once for each beginning, when it is first asked for, and kept while it is asked for: a
throttling may last longer than the seconds that are kept.

Bounded: seconds of the newest minutes, for as many sets of GPUs; as many beginnings; per step the newest requests only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpumon.detect.detector import Evidence
from gpumon.detect.scene import Scene
from gpumon.model import GpuUuid, RequestRecord, Unit

KEPT_S: Final = 180
GROUPS_MAX: Final = 64
"""Sets of GPUs that a server runs on."""
PER_STEP: Final = 256
TAIL: Final = 64
"""Steps at the end of a request that count for its latency: a second or so, so that it tells of that time."""
BEFORE_S: Final = 60.0
BEGINNINGS_MAX: Final = 128
LEAST_REQUESTS: Final = 5
LEAST_S: Final = 15.0
"""Shorter than this, tokens of requests that ended say nothing of a rate."""


@dataclass(slots=True)
class _Second:
    """Sums over the requests that ended in a second."""

    requests: int = 0
    tokens: int = 0
    gap_s: float = 0.0
    gaps: int = 0

    def add(self, other: _Second) -> None:
        self.requests += other.requests
        self.tokens += other.tokens
        self.gap_s += other.gap_s
        self.gaps += other.gaps


class Pace:
    """Not thread-safe. ``feed`` once per step."""

    def __init__(self) -> None:
        self._groups: dict[tuple[GpuUuid, ...], dict[int, _Second]] = {}
        self._before: OrderedDict[tuple[str, float], tuple[_Second, float]] = OrderedDict()
        """By GPU and beginning: sums over the time before it, and its seconds; the one asked for last at the end."""
        self._began_s: float | None = None

    def feed(self, scene: Scene) -> None:
        """Take the requests that ended since the last step."""
        if self._began_s is None:
            self._began_s = scene.at_s
        for record in scene.requests[-PER_STEP:]:
            if record.binding.gpus:
                self._add(record, scene)
        oldest_s = scene.at_s - KEPT_S
        for gpus, seconds in [*self._groups.items()]:
            while seconds and (first := next(iter(seconds))) < oldest_s:
                del seconds[first]
            if not seconds:
                del self._groups[gpus]

    def _add(self, record: RequestRecord, scene: Scene) -> None:
        gpus = record.binding.gpus
        seconds = self._groups.get(gpus)
        if seconds is None:
            if len(self._groups) >= GROUPS_MAX:
                return
            seconds = self._groups[gpus] = {}
        # In the order of arrival; one that comes late counts for the newest second, so that the oldest stays first.
        end = int(min(scene.to_steady(record.end_ns), scene.at_s))
        second = max(end, next(reversed(seconds), end))
        into = seconds.setdefault(second, _Second())
        into.requests += 1
        into.tokens += record.completion_tokens or 0
        times = record.token_ns
        if record.per_token and times is not None and len(times) > 1:
            first = max(0, len(times) - 1 - TAIL)
            counts = record.token_counts
            into.gap_s += (int(times[-1]) - int(times[first])) / 1e9
            into.gaps += len(times) - 1 - first if counts is None else int(counts[first + 1 :].sum())

    def evidence(self, uuid: str, since_s: float, at_s: float) -> tuple[Evidence, ...]:
        """``inter_token_latency`` and ``tokens_per_second`` since and before, as far as they are known."""
        seconds = [seconds for gpus, seconds in self._groups.items() if uuid in gpus]
        before, before_s = self._before_of(uuid, since_s, at_s, seconds)
        # A request that ended within a second of the beginning was made before it.
        now_since_s = max(since_s + 1.0, at_s - KEPT_S)
        now = _sum(seconds, now_since_s, at_s + 1.0)
        found = []
        if before.gaps and now.gaps:
            latencies = (now.gap_s / now.gaps, before.gap_s / before.gaps)
            found.append(Evidence("inter_token_latency", latencies[0], Unit.SECONDS, latencies[1]))
        now_s = at_s - now_since_s
        enough = min(before.requests, now.requests) >= LEAST_REQUESTS and min(before_s, now_s) >= LEAST_S
        if enough and before.tokens:
            rates = (now.tokens / now_s, before.tokens / before_s)
            found.append(Evidence("tokens_per_second", rates[0], Unit.NONE, rates[1]))
        return tuple(found)

    def _before_of(
        self, uuid: str, since_s: float, at_s: float, seconds: Iterable[dict[int, _Second]]
    ) -> tuple[_Second, float]:
        """Sums over the time before a beginning, as they were when first asked for, and how many seconds these are."""
        key = (uuid, since_s)
        before = self._before.pop(key, None)
        if before is None:
            began_s = self._began_s if self._began_s is not None else since_s
            first_s = max(since_s - BEFORE_S, began_s, at_s - KEPT_S)
            before = _sum(seconds, since_s - BEFORE_S, since_s), max(0.0, since_s - first_s)
        self._before[key] = before
        if len(self._before) > BEGINNINGS_MAX:
            self._before.popitem(last=False)
        return before


def _sum(groups: Iterable[dict[int, _Second]], since_s: float, until_s: float) -> _Second:
    total = _Second()
    for seconds in groups:
        for at, second in seconds.items():
            if since_s <= at < until_s:
                total.add(second)
    return total
