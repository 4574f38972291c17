"""The life of one simulated GPU: every gauge at any moment, and the exact integral of every gauge up to it.

A story is cut into segments of at most a second in which the levels are constant (``workload``); on top of a level
lies noise that differs in every repetition, has no jump inside the segment, and whose integral over the segment is
exactly zero. So a counter is (whole stories) + (whole segments, a table) + (the begun segment, in closed form):
cheap, monotonic, equal in every process, and by construction the integral of what the gauge shows. Temperature
follows power with a lag.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from itertools import pairwise

from gpumon.sim import noise
from gpumon.sim.story import STORY_S
from gpumon.sim.workload import REASON_POWER_CAP, Phase, Rate, Workload

_LAG_S = 9.0  # thermal time constant of die and cold plate
_QUANTA_BITS = 34  # of a story in quanta; a double has 53, which leaves 2**19 stories: five years
_SHARE = (0.0, 1.0, 0.4, 0.7, 0.8, 0.5, 1.5, 1.5, 1.2, 0.0, 0.0)
"""How much of a segment's noise each rate takes, relative to its level."""


class Moment:
    """A GPU at one moment. Made by ``Timeline.at``."""

    __slots__ = ("_amplitude", "_begun_s", "_cycle", "_drift_s", "_index", "_timeline")

    def __init__(self, timeline: Timeline, story_s: float) -> None:
        cycle, rest = divmod(story_s, STORY_S)
        starts = timeline.starts
        # A hair below zero, divmod rounds the rest up to a whole story: still the last segment.
        index = bisect_right(starts, rest, 0, len(starts) - 1) - 1
        begun_s = rest - starts[index]
        length_s = starts[index + 1] - starts[index]
        word = noise.bits(timeline.seed, timeline.gpu, int(cycle), index)
        slow = (word & 0xFFFF) / 65535.0 - 0.5
        fast = (word >> 16 & 0xFFFF) / 65535.0 - 0.5
        angle = 2 * math.pi * begun_s / length_s
        swing = timeline.swings[index]
        self._timeline = timeline
        self._cycle = cycle
        self._index = index
        self._begun_s = begun_s
        self._amplitude = swing * (slow * math.sin(angle) + fast * math.sin(3 * angle))
        # Integral of the amplitude since the segment began: zero again at its end.
        shape = slow * (1 - math.cos(angle)) + fast * (1 - math.cos(3 * angle)) / 3
        self._drift_s = swing * length_s / (2 * math.pi) * shape

    def rate(self, rate: Rate) -> float:
        """The gauge now."""
        return self._timeline.levels[rate][self._index] * (1 + _SHARE[rate] * self._amplitude)

    def total(self, rate: Rate) -> float:
        """Integral of the gauge since the story first began; negative before."""
        timeline = self._timeline
        begun = self._begun_s + _SHARE[rate] * self._drift_s
        index = self._index
        return self._cycle * timeline.wholes[rate] + timeline.sums[rate][index] + timeline.levels[rate][index] * begun

    @property
    def temperature_c(self) -> float:
        """Of the die."""
        goal = self._timeline.goals[self._index]
        return goal + (self._timeline.temperatures[self._index] - goal) * math.exp(-self._begun_s / _LAG_S)

    @property
    def clock_mhz(self) -> int:
        """Of the SMs."""
        return self._timeline.clocks[self._index]

    @property
    def reasons(self) -> int:
        """Bit mask of what holds the clocks down, in NVML's bits."""
        return self._timeline.reasons[self._index]


class Timeline:
    """One GPU's segments of one story, and their running sums. Immutable once built; about 0.2 MB."""

    def __init__(self, seed: int, gpu: int) -> None:
        self.seed = seed
        self.gpu = gpu
        self.starts = array("d")
        self.swings = array("d")
        self.clocks = array("l")
        self.reasons = array("l")
        self.goals = array("d")
        self.temperatures = array("d")
        self.levels = tuple(array("d") for _ in Rate)
        self.sums = tuple(array("d") for _ in Rate)
        build = Workload(seed, gpu)
        for phase in build.pieces():
            self._add(phase, build)
        self.starts.append(STORY_S)
        self.wholes = tuple(self._integrate(rate) for rate in Rate)
        self._heat()

    def at(self, story_s: float) -> Moment:
        """The GPU ``story_s`` seconds after the first story began; any time, before it as well."""
        return Moment(self, story_s)

    def _add(self, phase: Phase, build: Workload) -> None:
        levels, clock, reasons = build.levels(phase, len(self.starts))
        self.starts.append(phase.start_s)
        self.clocks.append(clock)
        self.reasons.append(reasons)
        # Ratios must stay below 1 and a capped board at its cap.
        room = 1 / max(levels[Rate.SM], levels[Rate.DRAM], 0.5) - 1
        self.swings.append(0.004 if reasons & REASON_POWER_CAP else min(0.16, room))
        self.goals.append(build.goal_c(phase, levels[Rate.POWER]))
        for column, level in zip(self.levels, levels, strict=True):
            column.append(level)

    def _integrate(self, rate: Rate) -> float:
        """Fill the running sums; answers the sum over the story.

        Every segment's integral is made a whole number of quanta, small enough to be seen nowhere, so that sums over
        segments and stories are exact: a counter at rest must not step back by a rounding error, which would look
        like a reset.
        """
        levels, sums = self.levels[rate], self.sums[rate]
        lengths = [end - start for start, end in pairwise(self.starts)]
        raw = sum(level * length for level, length in zip(levels, lengths, strict=True))
        quantum = 2.0 ** (math.frexp(raw)[1] - _QUANTA_BITS)
        total = 0.0
        for index, length in enumerate(lengths):
            whole = math.floor(levels[index] * length / quantum) * quantum
            levels[index] = whole / length
            sums.append(total)
            total += whole
        return total

    def _heat(self) -> None:
        # Twice round: the second begins as warm as the first ended, which makes the curve repeat without a step.
        temperature = self.goals[0]
        for _ in range(2):
            self.temperatures = array("d")
            for index, goal in enumerate(self.goals):
                self.temperatures.append(temperature)
                length_s = self.starts[index + 1] - self.starts[index]
                temperature = goal + (temperature - goal) * math.exp(-length_s / _LAG_S)
