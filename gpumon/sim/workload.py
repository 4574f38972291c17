"""What a serving workload does to a GPU: the segments of one story and the level of every gauge in each.

Two inference servers take requests at random moments, the more the higher the load: a prefill is a short burst with
busy tensor pipes, between prefills tokens are decoded, which keeps memory busy. Power follows activity, and clocks
fall under a power cap and under heat. The anchors are public captures of an H200 under load: 627 W at 52 degrees C,
slowdown at 87.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum
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
_THROTTLED_MHZ = 1410
_POWER_EXPONENT = 1.7  # dynamic power over clock, voltage included
_SEGMENT_S = 1.0


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


class Phase(NamedTuple):
    """A stretch of time in which a server does one thing."""

    start_s: float
    end_s: float
    prefill: bool
    batch: float
    """Fill of the batch, 0 to 1."""


class Workload:
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

    def pieces(self) -> Iterator[Phase]:
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

    def levels(self, phase: Phase, index: int) -> tuple[list[float], int, int]:
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

    def goal_c(self, phase: Phase, watts: float) -> float:
        """Temperature the die would settle at."""
        if active(self._throttle, phase.start_s) is not None:
            return _HOLD_C
        if active(self._hot, phase.start_s) is not None:
            return _RUNAWAY_C
        return 26.5 + 0.0407 * watts + 2.0 * noise.signed(self._seed, self._gpu, 1 << 20)

    def _work(self, phase: Phase, index: int) -> list[float]:
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


def _phases(seed: int, server: str) -> Iterator[Phase]:
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
            yield Phase(at_s, end_s, False, batch)
            at_s = end_s
        if at_s < STORY_S:
            end_s = min(at_s + 0.10 + 0.35 * noise.unit(seed, key, count, 2), STORY_S)
            yield Phase(at_s, end_s, True, noise.unit(seed, key, count, 3))
            at_s = end_s


def _power_w(levels: list[float]) -> float:
    busy, sm, _, tensor, dram = levels[:5]
    return IDLE_W + 55 * busy + 190 * sm + 230 * dram + 300 * tensor


def _rounded(clock_mhz: float) -> int:
    return int(clock_mhz // CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ
