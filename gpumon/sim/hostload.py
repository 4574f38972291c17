"""What a simulated server does to its host, summed up tick by tick: CPU time, waiting, page faults, pressure, swap.

The sums are those of ``Sum``; ``world`` makes from them what processes, cgroups and the kernel count.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gpumon.sim.effects import ServerEffects
from gpumon.sim.physics import TICK_S


class Sum(IntEnum):
    """What is summed up, since the world began."""

    LOAD = 0  # seconds of full load: what the processes' CPU time follows
    STARVED = 1  # the same that they wanted and did not get
    THROTTLED = 2  # seconds in which the cgroup had used up its CPU time
    CPU = 3  # seconds in which something was stalled: pressure
    MEMORY = 4
    IO = 5
    SWAPPED = 6  # pages
    FIRST_FAULTS = 7  # major page faults of the first worker
    EACH_FAULTS = 8  # the same of every worker
    STRAYED = 9  # pages allocated on the wrong NUMA node


NOTHING: Final = (0.0,) * len(Sum)
FAULT_MEMORY_S: Final = 58e-6  # of memory pressure per major page fault
_FAULT_IO_S = 72e-6
_CPU_PRESSURE, _IO_PRESSURE = 0.011, 0.002  # of time, in the ordinary course at full load
_SWAP_PAGES = 4_000.0  # per second, under the strongest memory pressure
_PRESSURE_FAULTS = 150.0
_LOADING_FAULTS = 1_500.0  # per second and worker, while the weights are paged in
_LOADING_LOAD, _LOADING_IO = 0.8, 0.4
_STRAY_PAGES = 6_000.0
_IDLE, _BUSY, _FULL_BATCH = 0.05, 0.35, 16  # load without requests, with the first, and where it is full


class HostLoad:
    """Of one server. A method is to be called for every tick in which something runs."""

    def __init__(self) -> None:
        self.sums = NOTHING

    def serving(self, running: float, faults: float, effects: ServerEffects) -> None:
        """A tick with a mean of ``running`` requests, and major page faults of the first worker."""
        load = _BUSY + (1 - _BUSY) * min(1.0, running / _FULL_BATCH) if running else _IDLE
        starved, pressure = effects.cpu_starvation, effects.memory_pressure
        self._add(
            load * (1 - starved),
            load * starved,
            0.7 * starved,
            min(0.95, starved + _CPU_PRESSURE * load),
            min(0.95, FAULT_MEMORY_S * faults / TICK_S + 0.9 * pressure),
            min(0.95, _FAULT_IO_S * faults / TICK_S + 0.4 * pressure + _IO_PRESSURE * load),
            _SWAP_PAGES * pressure,
            faults / TICK_S,
            _PRESSURE_FAULTS * pressure,
            _STRAY_PAGES * effects.numa_remote,
        )

    def loading(self) -> None:
        """A tick in which the weights are read."""
        self._add(
            *(_LOADING_LOAD, 0.0, 0.0, _CPU_PRESSURE, FAULT_MEMORY_S * _LOADING_FAULTS, _LOADING_IO),
            *(0.0, 0.0, _LOADING_FAULTS, 0.0),
        )

    def _add(self, *rates: float) -> None:
        self.sums = tuple([old + rate * TICK_S for old, rate in zip(self.sums, rates, strict=True)])
