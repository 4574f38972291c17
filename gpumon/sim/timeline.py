"""Which faults of a scenario are at work at a moment, and what they have come to since the story began.

In closed form: nothing is remembered but the table of stretches between the edges of the faults. Times are seconds of
the story; where it repeats, everything comes again every ``duration_s``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpumon.sim.scenario import Fault, Scenario


class Stretch(NamedTuple):
    """A part of the story in which the same faults are at work."""

    number: int
    """0 for the time before the story and, where it does not repeat, after it."""
    faults: tuple[Fault, ...]


class Timeline:
    """The faults of a scenario in time. Immutable."""

    def __init__(self, scenario: Scenario) -> None:
        self._faults = scenario.faults
        self._duration_s = scenario.duration_s
        self._repeat = scenario.repeat
        edges = {0.0, scenario.duration_s}
        for fault in scenario.faults:
            edges.update((fault.at_s, fault.at_s + fault.for_s))
        self._starts = sorted(edge for edge in edges if edge < scenario.duration_s)
        self._stretches = [
            Stretch(index + 1, tuple(fault for fault in scenario.faults if _at_work(fault, start_s)))
            for index, start_s in enumerate(self._starts)
        ]
        self._quiet = Stretch(0, ())

    def at(self, story_s: float) -> Stretch:
        """What is at work at a moment."""
        if story_s < 0 or (story_s >= self._duration_s and not self._repeat):
            return self._quiet
        return self._stretches[bisect_right(self._starts, story_s % self._duration_s) - 1]

    def at_work(self, kind: str, story_s: float) -> list[Fault]:
        """Faults of one kind at work at a moment."""
        return [fault for fault in self.at(story_s).faults if fault.kind == kind]

    def seconds(self, fault: Fault, story_s: float) -> float:
        """How long a fault has been at work in all, up to a moment."""
        cycle, rest_s = self._split(story_s)
        return cycle * fault.for_s + min(max(rest_s - fault.at_s, 0.0), fault.for_s)

    def passed(self, moment_s: float, story_s: float) -> int:
        """How often a moment of the story has come, up to now."""
        cycle, rest_s = self._split(story_s)
        return cycle + (rest_s >= moment_s)

    def begins(self, wanted: Callable[[Fault], bool], since_s: float, until_s: float) -> Iterable[tuple[float, Fault]]:
        """When the wanted faults begin, from ``since_s`` (not itself) to ``until_s``; by time."""
        first, last = self._split(since_s)[0], self._split(until_s)[0]
        rows = sorted((fault for fault in self._faults if wanted(fault)), key=lambda fault: fault.at_s)
        for cycle in range(first, last + 1):
            for fault in rows:
                at_s = cycle * self._duration_s + fault.at_s
                if since_s < at_s <= until_s:
                    yield at_s, fault

    def _split(self, story_s: float) -> tuple[int, float]:
        if not self._repeat or story_s < 0:
            return 0, story_s
        cycle, rest_s = divmod(story_s, self._duration_s)
        return int(cycle), rest_s


def _at_work(fault: Fault, story_s: float) -> bool:
    return fault.at_s <= story_s < fault.at_s + fault.for_s
