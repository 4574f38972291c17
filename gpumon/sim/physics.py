"""The physics of one simulated GPU: clocks, power, heat and gauges, from what its work did in each tick.

Advances by ticks of TICK_S. Power follows activity and clock; the die follows power with a lag; the driver lowers the
clock under a power cap, under heat and under a power brake, and rests it when nothing runs. Within a tick a gauge has
noise whose integral over the tick is exactly zero, so a counter is by construction the integral of what the gauge
shows. Anchors are public captures of an H200 under load: 627 W at 52 degrees C, slowdown at 87.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpumon.sim import noise
from gpumon.sim.boards import Model
from gpumon.sim.effects import GpuEffects
from gpumon.sim.population import AGE_S
from gpumon.sim.state import Rate

TICK_S: Final = 0.1

REASON_IDLE: Final = 0x1
REASON_POWER_CAP: Final = 0x4
REASON_HW_SLOWDOWN: Final = 0x8
REASON_THERMAL: Final = 0x20
REASON_HW_THERMAL: Final = 0x40
REASON_POWER_BRAKE: Final = 0x80

_POWER_EXPONENT = 1.7  # dynamic power over clock, voltage included
_POWER_SHARES = (0.088, 0.304, 0.416, 0.368)  # of busy, SM, tensor and DRAM in the room between idle and limit
_CAP_MARGIN_W = 4.0
_LEAST_CLOCK = 0.15
_AIR_C = 26.5
_RISE_C = 28.5  # above the air, at the power limit
_HEAT_LAG_S = 9.0  # thermal time constant of die and cold plate
_COOLING = 1 - math.exp(-TICK_S / _HEAT_LAG_S)
_RUNAWAY_C = 25.0  # above the limit, where the die would settle with its cooling degraded
_HELD_C = 1.0  # above the limit, where the lowered clocks hold it
_DOWN = TICK_S / 2.0  # share of the way that a thermal slowdown goes per tick: two seconds in all
_IDLE_TICKS = 10
_HW_THERMAL_OVER = 0.5
_OCCUPANCY = 0.45  # of SM activity
_SWING = 0.08
_NOISE = (0.0, 1.0, 0.4, 0.7, 0.8, 0.5, 1.5, 1.5, 1.2, 0.0, 0.0, 0.0, 0.0)
"""How much of a tick's noise each rate takes, relative to its level."""
_BEFORE = (0.6, 0.35, 0.16, 0.06, 0.5, 380.0, 4e6, 3e8, 2e10, 41 / AGE_S, 3 / AGE_S, 0.0, 0.0)
"""Mean of each rate in the time before the world began."""


class Work(NamedTuple):
    """What a GPU did in a tick, as means: ratios of time, and bytes per second."""

    busy: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    pcie_tx: float = 0.0
    pcie_rx: float = 0.0
    nvlink: float = 0.0


class GpuTick(NamedTuple):
    """A GPU in one tick."""

    levels: tuple[float, ...]
    """By Rate: constant through the tick, but for the noise."""
    sums: tuple[float, ...]
    """Integrals at its begin."""
    older_c: float
    """Temperature at its begin."""
    newer_c: float
    clock_mhz: int
    reasons: int
    swing: float
    """Size of the noise."""


class Moment:
    """A GPU at one moment; see ``state.GpuMoment``."""

    __slots__ = ("_begun_s", "_drift_s", "_key", "_rise", "_tick", "_totals", "performance_state")

    def __init__(self, tick: GpuTick, begun_s: float, key: tuple[int, ...]) -> None:
        """``begun_s``: since the tick began, 0 to TICK_S. ``key``: of its noise."""
        self._tick = tick
        self._begun_s = begun_s
        self._key = key
        self._rise: float | None = None
        self._drift_s = 0.0
        self._totals: list[float] | None = None
        self.performance_state = 0

    def rate(self, rate: Rate) -> float:
        """The gauge now."""
        return self._tick.levels[rate] * (1 + _NOISE[rate] * self._noise())

    def total(self, rate: Rate) -> float:
        """Integral of the gauge."""
        share = _NOISE[rate]
        if share:
            self._noise()
        level, total = self._tick.levels[rate], self._tick.sums[rate]
        # No further than the next tick begins, by the same sum: a rounding must not let a counter fall.
        return min(total + level * (self._begun_s + share * self._drift_s), total + level * TICK_S)

    def totals(self) -> list[float]:
        """``total`` of every rate, in order."""
        if self._totals is None:
            self._noise()
            begun_s, drift_s, tick = self._begun_s, self._drift_s, self._tick
            self._totals = [
                min(total + level * (begun_s + share * drift_s), total + level * TICK_S)
                for level, total, share in zip(tick.levels, tick.sums, _NOISE, strict=True)
            ]
        return self._totals

    @property
    def temperature_c(self) -> float:
        """Of the die."""
        tick = self._tick
        return tick.older_c + (tick.newer_c - tick.older_c) * self._begun_s / TICK_S

    @property
    def clock_mhz(self) -> int:
        """Of the SMs."""
        return self._tick.clock_mhz

    @property
    def reasons(self) -> int:
        """Bit mask of what holds the clocks down, in NVML's bits."""
        return self._tick.reasons

    def _noise(self) -> float:
        """The noise now, relative; fills in its integral. Worked out once, and only for those who ask."""
        if self._rise is None:
            word = noise.bits(*self._key)
            slow = (word & 0xFFFF) / 65535.0 - 0.5
            fast = (word >> 16 & 0xFFFF) / 65535.0 - 0.5
            first = 2 * math.pi * (word >> 32 & 0xFFFF) / 65536.0
            angle = first + 2 * math.pi * self._begun_s / TICK_S
            swing = self._tick.swing
            self._rise = swing * (slow * math.sin(angle) + fast * math.sin(3 * angle))
            shape = slow * (math.cos(first) - math.cos(angle)) + fast * (math.cos(3 * first) - math.cos(3 * angle)) / 3
            self._drift_s = swing * TICK_S / (2 * math.pi) * shape
        return self._rise


class Gpu:
    """One GPU over time. ``tick`` is to be called once per tick, in order."""

    def __init__(self, model: Model, seed: int, index: int) -> None:
        self._model = model
        self._offset_c = 2.0 * noise.signed(seed, index, 1 << 20)
        self._sums = tuple([(1 + 0.05 * noise.unit(seed, index, rate, 17)) * _BEFORE[rate] * AGE_S for rate in Rate])
        room_w = (model.limit_w - model.idle_w) * 0.96
        self._busy_w, self._sm_w, self._tensor_w, self._dram_w = [share * room_w for share in _POWER_SHARES]
        self._temperature_c = _AIR_C + 0.6 * _RISE_C + self._offset_c
        self._demand_w = 0.5 * room_w
        self._lowered = 0.0
        self._hot = False
        self._hw_thermal = False
        self._idle_ticks = 0
        self.pace = 1.0
        """Clock over the highest, of a GPU that works."""
        self.cause: str | None = None
        """Why it is below 1."""

    def tick(self, number: int, effects: GpuEffects, work: Work) -> GpuTick:
        """Advance by a tick in which ``work`` was done at the pace of the tick before."""
        model = self._model
        busy, sm, tensor, dram, pcie_tx, pcie_rx, nvlink = work
        if effects.bandwidth_taken or effects.time_taken or effects.link_taken:
            dram = min(0.985, dram + effects.bandwidth_taken + 0.4 * effects.time_taken)
            sm = min(0.99, sm + 0.9 * effects.time_taken * (1 - sm))
            tensor = min(0.9, tensor + 0.1 * effects.time_taken)
            busy = min(1.0, busy + (effects.time_taken + effects.bandwidth_taken) * (1 - busy))
            pcie_rx += effects.link_taken * effects.link_share * model.pcie_bytes_s
        dynamic_w = self._busy_w * busy + self._sm_w * sm + self._tensor_w * tensor + self._dram_w * dram
        pace, reasons = self._clock(effects, dynamic_w)
        watts = model.idle_w + dynamic_w * (pace**_POWER_EXPONENT if pace < 1.0 else 1.0)
        limit_w = model.limit_w * (1 - effects.cap_lost)
        swing = min(_SWING, 1 / max(sm, dram, 0.5) - 1)
        if reasons & REASON_POWER_CAP:
            watts = min(watts, limit_w - 1)
            swing = 0.001
        swing = min(swing, 2 * (limit_w / watts - 1)) if watts < limit_w else 0.0
        self._idle_ticks = 0 if busy > 0.0 else self._idle_ticks + 1
        clock_mhz = int(pace * model.max_clock_mhz / model.clock_step_mhz + 1e-6) * model.clock_step_mhz
        if self._idle_ticks >= _IDLE_TICKS:
            clock_mhz, reasons = model.idle_clock_mhz, REASON_IDLE
            watts = model.idle_w + 1.5 * noise.signed(number >> 4, int(self._offset_c * 1e6))
        levels = (
            *(busy, sm, _OCCUPANCY * sm, tensor, dram, watts, pcie_tx, pcie_rx, nvlink),
            1.0 if reasons & REASON_POWER_CAP else 0.0,
            1.0 if reasons & REASON_THERMAL else 0.0,
            1.0 if reasons & REASON_HW_THERMAL else 0.0,
            1.0 if reasons & REASON_POWER_BRAKE else 0.0,
        )
        older_c = self._heat(number, effects, watts)
        tick = GpuTick(levels, self._sums, older_c, self._temperature_c, clock_mhz, reasons, swing)
        self._sums = tuple([total + level * TICK_S for total, level in zip(self._sums, levels, strict=True)])
        return tick

    def _clock(self, effects: GpuEffects, dynamic_w: float) -> tuple[float, int]:
        """Clock over the highest, and the reasons for it."""
        model = self._model
        self._demand_w += 0.3 * (dynamic_w - self._demand_w)
        room_w = model.limit_w * (1 - effects.cap_lost) - _CAP_MARGIN_W - model.idle_w
        pace, reasons, cause = 1.0, 0, None
        if self._demand_w > room_w:
            pace = max(_LEAST_CLOCK, (max(room_w, 1.0) / self._demand_w) ** (1 / _POWER_EXPONENT))
            reasons, cause = REASON_POWER_CAP, "power_throttle"
        if self._hot:
            goal = effects.heat or self._lowered
            self._lowered = min(goal, self._lowered + goal * _DOWN)
            self._hw_thermal = self._hw_thermal or goal > _HW_THERMAL_OVER
            reasons |= REASON_HW_THERMAL | REASON_HW_SLOWDOWN if self._hw_thermal else REASON_THERMAL
            if 1 - self._lowered < pace:
                pace, cause = 1 - self._lowered, "thermal_throttle"
        if effects.brake:
            reasons |= REASON_POWER_BRAKE | REASON_HW_SLOWDOWN
            if 1 - effects.brake < pace:
                pace, cause = 1 - effects.brake, "hw_slowdown"
        self.pace, self.cause = pace, cause
        return pace, reasons

    def _heat(self, number: int, effects: GpuEffects, watts: float) -> float:
        """Let the die follow; answers its temperature before."""
        older_c, limit_c = self._temperature_c, self._model.slowdown_c
        goal_c = _AIR_C + self._offset_c + _RISE_C * watts / self._model.limit_w
        if effects.heat and self._hot:
            goal_c = limit_c + _HELD_C + 0.6 * noise.signed(number >> 3, 3)
            # Held by the clocks, not by the lag.
            self._temperature_c += 0.05 * (goal_c - older_c)
            return older_c
        if effects.heat:
            goal_c = limit_c + _RUNAWAY_C
        self._temperature_c += _COOLING * (goal_c - older_c)
        if effects.heat and self._temperature_c > limit_c:
            self._hot = True
        elif self._hot and self._temperature_c < limit_c - 1.0:
            self._hot = self._hw_thermal = False
            self._lowered = 0.0
        return older_c
