"""One simulated node for the tests: building the timelines takes a tenth of a second, so it is shared."""

from __future__ import annotations

from functools import cache

from gpumon.host.clock import ManualClock
from gpumon.sim.nvml import SimNvml
from gpumon.sim.world import World

STARTED_S = 10_000.0
SEED = 7


@cache
def world() -> World:
    return World(SEED, started_at_s=STARTED_S)


def clock_at(story_s: float) -> ManualClock:
    return ManualClock(at_s=STARTED_S + story_s)


def opened(clock: ManualClock) -> SimNvml:
    nvml = SimNvml(world(), clock, sleep=clock.step)
    nvml.open()
    return nvml
