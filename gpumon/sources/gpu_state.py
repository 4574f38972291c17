"""What the GPU sources share: possible ranges, counters that only rise, and what outlives a driver generation.

A ``GpuState`` is one GPU's memory between generations, so that an exported counter never falls while gpumon runs:
sources are built anew for each generation and are handed the same state. When the process that holds it is
replaced, counters start from the hardware's own absolute value again. Used by one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from gpumon.catalogue import RATIO_BOUNDS
from gpumon.model import Distribution

ERRORS_MAX = 1e12
"""More errors than any board can have counted."""
BYTES_MAX = 2.0**44
"""16 TiB: above any memory of one GPU, below DCGM's blank double (2^47)."""

SENTINELS = frozenset(
    base + offset
    # DCGM's blanks come in four: blank, not found, not supported, not permitted (dcgm_structs.h).
    for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 1 << 47)
    for offset in range(4)
) | {0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1}
"""Numbers that mean "no value" somewhere on the way from the chip."""


def possible(value: float, low: float, high: float) -> bool:
    """Whether the value can be true: within the range (NaN never is) and no sentinel."""
    return low <= value <= high and value not in SENTINELS


class CarryCounter:
    """A hardware counter that goes on where it was when the hardware starts again from a lower value."""

    __slots__ = ("_carried", "_last")

    def __init__(self) -> None:
        self._carried: float = 0
        self._last: float = 0

    def feed(self, raw: float) -> float:
        """Total after a raw reading; never less than the total before."""
        if raw < self._last:
            self._carried += self._last
        self._last = raw
        return self._carried + raw


class Histogram:
    """Observations by upper bounds, those of a ratio unless others are given."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = RATIO_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        return Distribution(tuple(self._counts), self._total)


class Cursor:
    """Newest timestamp taken from a ring of the driver's.

    A ring that gives nothing newer for ``quiet_s`` is read from its start again: the driver's clock may have gone
    back, or one absurd timestamp may have put the cursor where nothing will ever pass it.
    """

    __slots__ = ("_moved_at_s", "_newest_us", "_quiet_s")

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._newest_us = 0
        self._moved_at_s = 0.0

    def since(self, at_s: float) -> int:
        """Microseconds to ask from; 0 at the start, when what comes is history that nobody can place."""
        if self._newest_us and at_s - self._moved_at_s > self._quiet_s:
            self._newest_us = 0
        return self._newest_us

    def advance(self, at_s: float, timestamp_us: int) -> None:
        """Take a timestamp; an older one changes nothing."""
        if timestamp_us > self._newest_us:
            self._newest_us = timestamp_us
            self._moved_at_s = at_s


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU's memory between generations."""

    counters: dict[str, CarryCounter] = field(default_factory=dict)
    """By key of the capability the counter is read under."""
    busy_s: float = 0.0
    """Integral of NVML utilization over the driver's own samples."""
    utilization: Histogram = field(default_factory=Histogram)
    """Of the driver's own utilization samples."""
    mig_active_s: dict[str, dict[str, float]] = field(default_factory=dict)
    """Integrals of each MIG instance's activity, by uuid of the instance and name of the metric."""

    def carry(self, key: str, raw: float) -> float:
        """Total of the counter after a raw reading."""
        counter = self.counters.get(key)
        if counter is None:
            counter = self.counters[key] = CarryCounter()
        return counter.feed(raw)
