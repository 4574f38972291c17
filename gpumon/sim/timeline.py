"""The life of one simulated GPU: every gauge at any moment, and the exact integral of every gauge up to it.

A story is cut into segments of at most a second in which the levels are constant; on top of a level lies noise that
differs in every repetition, has no jump inside the segment, and whose integral over the segment is exactly zero. So
a counter is (whole stories) + (whole segments, a table) + (the begun segment, in closed form): cheap, monotonic,
equal in every process, and by construction the integral of what the gauge shows.

Power follows activity, temperature follows power with a lag, and clocks fall under a power cap and under heat. The
anchors are public captures of an H200 under load: 627 W at 52 degrees C, memory 11 degrees below, slowdown at 87.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from gpumon.sim import noise
from gpumon.sim.story import SERVER_OF_GPU, STORY_S, Kind, active, events, load

LIMIT_W = 700.0
IDLE_W = 75.0
MAX_CLOCK_MHZ = 1980
IDLE_CLOCK_MHZ = 345
CLOCK_STEP_MHZ = 15
SLOWDOWN_C = 87.0

REASON_IDLE = 0x1
REASON_POWER_CAP = 0x4
REASON_THERMAL = 0x20

_HOLD_C = 88.0  # the clocks are lowered just enough to stay here
_RUNAWAY_C = 96.0  # where the die would settle without cooling
_LAG_S = 9.0  # thermal time constant of die and cold plate
_THROTTLED_MHZ = 1410
_POWER_EXPONENT = 1.7  # dynamic power over clock, voltage included
_SEGMENT_S = 1.0
_QUANTA_BITS = 34  # of a story in quanta; a double has 53, which leaves 2**19 stories: five years


class Rate(IntEnum):
    """What is integrated: ratios of time, or a quantity per second."""

    BUSY = 0
    SM = 1
    OCCUPANCY = 2
    TENSOR = 3
    DRAM = 4
    POWER = 5  # W
    PCIE_TX = 6  # bytes/s
    PCIE_RX = 7  # bytes/s
    NVLINK = 8  # bytes/s in each direction
    CAPPED = 9  # 1 while the power cap holds clocks down
    THROTTLED = 10  # 1 while heat holds clocks down


_SHARE = (0.0, 1.0, 0.4, 0.7, 0.8, 0.5, 1.5, 1.5, 1.2, 0.0, 0.0)
"""How much of a segment's noise each rate takes, relative to its level."""


class _Phase(NamedTuple):
    start_s: float
    end_s: float
    prefill: bool
    batch: float
    """Fill of the batch, 0 to 1."""


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
        build = _Builder(seed, gpu)
        for phase in build.pieces():
            self._add(phase, build)
        self.starts.append(STORY_S)
        self.wholes = tuple(self._integrate(rate) for rate in Rate)
        self._heat()

    def at(self, story_s: float) -> Moment:
        """The GPU ``story_s`` seconds after the first story began; any time, before it as well."""
        return Moment(self, story_s)

    def _add(self, phase: _Phase, build: _Builder) -> None:
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


class _Builder:
    """Decides the levels of one GPU's segments."""

    def __init__(self, seed: int, gpu: int) -> None:
        self._seed = seed
        self._gpu = gpu
        self._server = SERVER_OF_GPU[gpu % len(SERVER_OF_GPU)]
        mates = [index for index, server in enumerate(SERVER_OF_GPU) if server == self._server]
        self._hot = events(Kind.HOT_AISLE, gpu)
        self._throttle = events(Kind.THERMAL_THROTTLE, gpu)
        self._waits = [row for mate in mates if mate != gpu for row in events(Kind.THERMAL_THROTTLE, mate)]
        self._starved = [row for mate in mates for row in events(Kind.PAGE_FAULTS, mate)]
        self._job = events(Kind.JOB, gpu)
        self._bursts = events(Kind.BURST, gpu)
        self._overflow = events(Kind.OVERFLOW, gpu)
        self._leak = next((row.rate for row in events(Kind.LEAKY_BOARD, gpu)), 1.0)

    def pieces(self) -> Iterator[_Phase]:
        """The server's phases, cut where an event begins or ends on this GPU or at its neighbours."""
        groups = (self._hot, self._throttle, self._waits, self._starved, self._job, self._bursts, self._overflow)
        edges = {edge for group in groups for row in group for edge in (row.start_s, row.end_s)}
        # The driver steps the clock down over two seconds.
        edges.update(row.start_s + step * 0.5 for row in self._throttle for step in range(5))
        cuts = sorted(edge for edge in edges if 0 < edge < STORY_S)
        for phase in _phases(self._seed, self._server):
            start_s = phase.start_s
            for cut in cuts:
                if start_s < cut < phase.end_s:
                    yield phase._replace(start_s=start_s, end_s=cut)
                    start_s = cut
            yield phase._replace(start_s=start_s)

    def levels(self, phase: _Phase, index: int) -> tuple[list[float], int, int]:
        """Levels in the order of ``Rate``, the SM clock in MHz, and the reasons that hold it down."""
        at_s = phase.start_s
        burst = active(self._bursts, at_s)
        if self._overflow and burst is None and active(self._overflow, at_s) is None:
            watts = IDLE_W + 1.5 * noise.signed(self._seed, self._gpu, index)
            return [0.0, 0.0, 0.0, 0.0, 0.0, watts, 0.0, 0.0, 0.0, 0.0, 0.0], IDLE_CLOCK_MHZ, REASON_IDLE
        levels = self._work(phase if burst is None else phase._replace(prefill=True, batch=0.8), index)
        throttle = active(self._throttle, at_s)
        watts = _power_w(levels) * self._leak
        clock, reasons = self._clock(index), 0
        if throttle is not None:
            step = min(4, int((at_s - throttle.start_s) / 0.5) + 1)
            clock = _rounded(clock + (_THROTTLED_MHZ - clock) * step / 4)
            watts = IDLE_W + (watts - IDLE_W) * (clock / MAX_CLOCK_MHZ) ** _POWER_EXPONENT
            reasons = REASON_THERMAL
        elif watts > LIMIT_W - 4:
            clock = _rounded(clock * ((LIMIT_W - 4 - IDLE_W) / (watts - IDLE_W)) ** (1 / _POWER_EXPONENT))
            watts = LIMIT_W - 4
            reasons = REASON_POWER_CAP
        levels[Rate.POWER] = watts
        levels[Rate.CAPPED] = float(bool(reasons & REASON_POWER_CAP))
        levels[Rate.THROTTLED] = float(bool(reasons & REASON_THERMAL))
        return levels, clock, reasons

    def goal_c(self, phase: _Phase, watts: float) -> float:
        """Temperature the die would settle at."""
        if active(self._throttle, phase.start_s) is not None:
            return _HOLD_C
        if active(self._hot, phase.start_s) is not None:
            return _RUNAWAY_C
        return 26.5 + 0.0407 * watts + 2.0 * noise.signed(self._seed, self._gpu, 1 << 20)

    def _work(self, phase: _Phase, index: int) -> list[float]:
        at_s, batch = phase.start_s, phase.batch
        starved = active(self._starved, at_s)
        if phase.prefill and starved is None:
            levels = [1.0, 0.90 + 0.06 * batch, 0.34, 0.60 + 0.16 * batch, 0.38 + 0.14 * batch]
            links = [42e6, 340e6 + 900e6 * batch, 140e9 + 80e9 * batch]
        else:
            levels = [1.0, 0.50 + 0.28 * batch, 0.22 + 0.1 * batch, 0.05 + 0.07 * batch, 0.70 + 0.19 * batch]
            links = [3e6 + 2.4e6 * batch, 6e6 + 5e6 * batch, 15e9 + 25e9 * batch]
        if starved is not None:
            # The forward pass waits for the host: kernels come late and far apart.
            factor = 0.25 if starved.rate > 1000 else 0.6
            levels, links = [level * factor for level in levels], [link * factor for link in links]
        if active(self._throttle, at_s) is not None:
            levels = [1.0, levels[1], levels[2], levels[3] * 0.75, levels[4] * 0.75]
            links = [link * 0.75 for link in links]
        elif active(self._waits, at_s) is not None:
            # A tensor-parallel step is as slow as its slowest rank; the others spin in all-reduce.
            levels = [1.0, levels[1] * 0.8, levels[2], levels[3] * 0.75, levels[4] * 0.75]
            links = [link * 0.75 for link in links]
        if active(self._job, at_s) is not None:
            levels = [1.0, levels[1] + 0.12, levels[2] + 0.03, levels[3] + 0.03, levels[4] + 0.05]
        wobbled = [levels[0]]
        for rate, level in enumerate(levels[1:], start=1):
            wobbled.append(min(0.97, level * (1 + 0.03 * noise.signed(self._seed, self._gpu, index, rate))))
        links = [link * (1 + 0.1 * noise.signed(self._seed, self._gpu, index, 9 + i)) for i, link in enumerate(links)]
        return [*wobbled, 0.0, *links, 0.0, 0.0]

    def _clock(self, index: int) -> int:
        return MAX_CLOCK_MHZ - CLOCK_STEP_MHZ * (noise.unit(self._seed, self._gpu, index, 20) < 0.12)


def _phases(seed: int, server: str) -> Iterator[_Phase]:
    """Prefills at random moments, the more the higher the load, with decode between them; all of one story."""
    key = ord(server)
    at_s = 0.0
    count = 0
    while at_s < STORY_S:
        count += 1
        gap_s = -math.log(1 - noise.unit(seed, key, count, 0)) * (2.6 - 2.2 * load(at_s))
        until_s = min(at_s + min(max(gap_s, 0.08), 6.0), STORY_S)
        while at_s < until_s:
            batch = min(1.0, load(at_s) * (1 + 0.12 * noise.signed(seed, key, int(at_s * 1000), 1)))
            end_s = min(at_s + _SEGMENT_S, until_s)
            yield _Phase(at_s, end_s, False, batch)
            at_s = end_s
        if at_s < STORY_S:
            end_s = min(at_s + 0.10 + 0.35 * noise.unit(seed, key, count, 2), STORY_S)
            yield _Phase(at_s, end_s, True, noise.unit(seed, key, count, 3))
            at_s = end_s


def _power_w(levels: list[float]) -> float:
    busy, sm, _, tensor, dram = levels[:5]
    return IDLE_W + 55 * busy + 190 * sm + 230 * dram + 300 * tensor


def _rounded(clock_mhz: float) -> int:
    return int(clock_mhz // CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ
