"""SM clocks that heat, the power limit or the board's hardware held down: three causes by what the driver says.

From the time counters by reason (``gpumon_gpu_throttled_seconds_total``, read every second), the SM clock at that
moment, and power against its limit. What a GPU had under load before is the measure: a limit that always acts, and
costs no clock, is no sign. Where two reasons acted at once each counts by its time, and the power limit only as far as
the board drew that much: a GPU that heat holds down is below its limit. A GPU without the counters gives no signs; of
one without a clock the time alone is told, with less evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon import catalogue
from gpumon.detect.clocks import BUSY, Reading
from gpumon.detect.incident import Incident
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Scene
from gpumon.detect.throttling import HwSlowdown, PowerThrottle, ThermalThrottle
from gpumon.explain.signs import Fact, Sign
from gpumon.explain.witnesses.gpus import GPUS_MAX, Gpu, found_on, ratio
from gpumon.explain.witnesses.weighing import Usual, confirmed, ramp
from gpumon.model import Unit

THERMAL: Final = "thermal_throttle"
POWER: Final = "power_throttle"
HARDWARE: Final = "hw_slowdown"
_RECENT: Final = 3
"""Readings: a prefill touches the power limit for less than that."""
_UNSEEN: Final = 0.5
"""Evidence at most where the clock is not known."""


@dataclass(slots=True)
class _Gpu:
    """One GPU, its newest readings, and its clock under load."""

    recent: deque[Reading] = field(default_factory=lambda: deque(maxlen=_RECENT))
    clock: Usual = field(default_factory=lambda: Usual(120, 5))


class Clocks:
    """See the module."""

    causes: ClassVar[tuple[str, ...]] = (THERMAL, POWER, HARDWARE)

    def __init__(self, *, lost_low: float = 0.02, lost_high: float = 0.08) -> None:
        """lost_low, lost_high: share of the usual clock that is lost, from where on it may count, and counts wholly.
        Boost moves by a step or two of 15 MHz by itself."""
        self._lost = (lost_low, lost_high)
        self._gpus: Kept[Gpu, _Gpu] = Kept(_Gpu, most=GPUS_MAX)

    def look(self, scene: Scene, incidents: Sequence[Incident]) -> Iterator[Sign]:
        """Signs of the time since the last look."""
        found = {cause: found_on(incidents, cause) for cause in self.causes}
        utilizations = scene.values(catalogue.GPU_UTILIZATION)
        for gpu, reading in _readings(scene).items():
            state = self._gpus.look(gpu, scene.at_s)
            state.recent.append(reading)
            busy = utilizations.get(gpu)
            if busy is not None and busy < BUSY:
                continue  # it has its clocks down by itself
            signs = self._judge(scene, gpu, state, reading, found)
            if busy is not None and reading.clock_hz is not None:
                state.clock.feed(reading.clock_hz, max([sign.evidence for sign in signs], default=0.0))
            yield from signs
        self._gpus.sweep(scene.at_s)

    def _judge(
        self, scene: Scene, gpu: Gpu, state: _Gpu, reading: Reading, found: Mapping[str, frozenset[str]]
    ) -> list[Sign]:
        """A new reading of a GPU that works."""
        clock_hz, usual_hz = reading.clock_hz, state.clock.value
        shares = _shares(scene, gpu, state, reading)
        whole = sum(shares.values())
        if whole <= 0 or (clock_hz is not None and not usual_hz):
            return []
        signs = []
        for cause, share in shares.items():
            lost, sure = None, _UNSEEN
            if clock_hz is not None and usual_hz:
                lost = ratio(1.0 - clock_hz / usual_hz)
                if cause == POWER:
                    lost = min(lost, _settled_loss(state, usual_hz))
                sure = ramp(lost, *self._lost)
            evidence = confirmed(sure * ramp(share, 0.05, 0.3) * share / whole, is_found=gpu[1] in found[cause])
            if evidence > 0:
                # Work that is bound by memory loses less than the clock: the caches run on it, the DRAM does not.
                cap = ratio(share * (1.0 if lost is None else lost))
                fact = None if clock_hz is None else Fact("sm_clock", clock_hz, Unit.HERTZ, usual_hz)
                first = state.recent[0] if cause == POWER else reading
                signs.append(Sign(cause, ("gpu", gpu[1]), first.at_s - first.dt_s, reading.at_s, evidence, cap, fact))
        return signs


def _readings(scene: Scene) -> dict[Gpu, Reading]:
    """Of the GPUs whose counters were read anew."""
    seconds: dict[Gpu, dict[str, float]] = {}
    spans: dict[Gpu, tuple[float, float]] = {}
    for labels, amount, dt_s, at_s in scene.grown(catalogue.GPU_THROTTLED_SECONDS):
        seconds.setdefault(labels[:2], {})[labels[2]] = amount
        spans[labels[:2]] = (at_s, dt_s)
    clocks = scene.values(catalogue.GPU_CLOCK)
    return {
        gpu: Reading(*spans[gpu], by_reason, clocks.get((*gpu, "sm")), None, None) for gpu, by_reason in seconds.items()
    }


def _shares(scene: Scene, gpu: Gpu, state: _Gpu, reading: Reading) -> dict[str, float]:
    """Share of the time by cause."""
    thermal = reading.share(ThermalThrottle.REASONS)
    # Heat sets the slowdown bit as well, and the brake does: of two that are the same, the first is meant.
    slowdown, heat = reading.share(HwSlowdown.SLOWDOWN), reading.share(HwSlowdown.HEAT)
    by_hardware = slowdown - heat if heat < slowdown / 2 else 0.0
    hardware = max(by_hardware, reading.share(HwSlowdown.BRAKE), reading.share(HwSlowdown.LIMITS))
    # At its limit for a moment it is in every prefill: what lasts counts.
    settled = len(state.recent) == _RECENT
    power = min([each.share(PowerThrottle.REASONS) for each in state.recent]) if settled else 0.0
    if power > 0 and max(thermal, hardware) > 0:
        power *= _at_limit(scene, gpu)
    return {THERMAL: thermal, POWER: power, HARDWARE: hardware}


def _settled_loss(state: _Gpu, usual_hz: float) -> float:
    """Share of the clock lost in each of the newest readings."""
    clocks = [each.clock_hz for each in state.recent if each.clock_hz is not None]
    return ratio(1.0 - max(clocks) / usual_hz)


def _at_limit(scene: Scene, gpu: Gpu) -> float:
    """Whether the board draws what the limit allows, 0 to 1; 1 where it is not known."""
    limit_w = scene.value(catalogue.GPU_POWER_LIMIT, (*gpu, "enforced"))
    power_w = scene.value(catalogue.GPU_POWER, (*gpu, "instant"))
    if limit_w is None or power_w is None or limit_w <= 0:
        return 1.0
    return ramp(power_w / limit_w, 0.85, 0.95)
