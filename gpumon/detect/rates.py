"""Rates of counters that are published more often than they are read: those of cgroups and threads (``processes``).

Such a counter stands still, jumps when it is read anew, and stands still again; a rate from one step to the next is
mostly nothing and then far too much. Here it is from jump to jump. How often the family is read is learned from the
shortest time between two jumps of one series; a jump after a longer rest is taken to have grown over twice that at
most, for nobody knows what part of the rest it took. When nothing jumps for longer, the rate is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpumon.detect.scene import Labels, Scene
from gpumon.model import Metric


class Rate(NamedTuple):
    """How fast a counter grew."""

    per_s: float
    since_s: float
    """From when on it grew like that, steady seconds."""


@dataclass(slots=True)
class _Counter:
    value: float
    moved_s: float
    has_moved: bool = False
    rests: bool = True


class RepeatedRates:
    """Of one family. ``step`` once per step; not thread-safe."""

    def __init__(self, metric: Metric, *tail: str) -> None:
        """tail: the last labels of the series to follow; none for all of them."""
        self._metric = metric
        self._tail = tail
        self._counters: dict[Labels, _Counter] = {}
        self._period_s: float | None = None

    def step(self, scene: Scene) -> dict[Labels, Rate]:
        """Rates of the series that jumped since the last step, and once 0 for each that came to rest."""
        found: dict[Labels, Rate] = {}
        seen: dict[Labels, _Counter] = {}
        for labels, value, at_s in scene.read(self._metric):
            if self._tail and labels[-len(self._tail) :] != self._tail:
                continue
            counter = self._counters.get(labels)
            if counter is None or value < counter.value:
                seen[labels] = _Counter(value, at_s)
                continue
            seen[labels] = counter
            if value > counter.value:
                found[labels] = self._jumped(counter, value, at_s)
            elif not counter.rests and self._period_s is not None and at_s - counter.moved_s > 2 * self._period_s:
                counter.rests = True
                found[labels] = Rate(0.0, counter.moved_s)
        self._counters = seen
        return found

    def _jumped(self, counter: _Counter, value: float, at_s: float) -> Rate:
        seconds = at_s - counter.moved_s
        if counter.has_moved:
            self._period_s = seconds if self._period_s is None else min(self._period_s, seconds)
        if self._period_s is not None:
            seconds = min(seconds, 2 * self._period_s)
        rate = Rate((value - counter.value) / seconds, at_s - seconds)
        counter.value, counter.moved_s, counter.has_moved, counter.rests = value, at_s, True, False
        return rate
