"""How long which reasons held the clocks of each GPU down, and its clock, heat and power then and before.

From the time counters by reason (``gpumon_gpu_throttled_seconds_total``), which miss nothing between two readings, and
the gauges of each reading. What was before is the median of the readings while the GPU was busy and not throttled; of
the clock, where there were none, the board's highest. A GPU without the counters is not watched; without a gauge, the
figure is left out. Used by the detectors of ``throttling``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence
from gpumon.detect.hysteresis import Baseline
from gpumon.detect.pace import Pace
from gpumon.detect.scene import Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

LOOK_BACK_S: Final = 5.0
"""Readings of this time make the figures that are told."""
READINGS_MAX: Final = 64
BUSY: Final = 0.2
"""Utilization from which a clock is one under load: an idle GPU has its clocks down by itself."""
CALM: Final = 0.01
"""Share of time throttled up to which a reading is of the time before."""
_BEFORE: Final = (120, 5)
"""Readings of the time before that are kept, and that are enough."""


class Reading(NamedTuple):
    """What one publication of the counters says of a GPU."""

    at_s: float
    dt_s: float
    seconds: Mapping[str, float]
    """Throttled since the reading before, by reason."""
    clock_hz: float | None
    temperature_c: float | None
    power_w: float | None

    def share(self, reasons: Collection[str]) -> float:
        """Of the time, throttled for the one of these reasons that held longest: they overlap."""
        return min(1.0, max([self.seconds.get(reason, 0.0) for reason in reasons]) / self.dt_s)

    def began_s(self, reasons: Collection[str]) -> float:
        """When the throttling began that lasts until this reading."""
        return self.at_s - self.share(reasons) * self.dt_s


@dataclass(slots=True)
class Watched:
    """One GPU: its readings now, what they were before, and whether it is throttled by a detector's definition."""

    recent: deque[Reading] = field(default_factory=lambda: deque(maxlen=READINGS_MAX))
    clock: Baseline = field(default_factory=lambda: Baseline(*_BEFORE))
    temperature: Baseline = field(default_factory=lambda: Baseline(*_BEFORE))
    power: Baseline = field(default_factory=lambda: Baseline(*_BEFORE))
    busy_s: float | None = None
    """When it was last seen busy."""
    running: int = 0
    """Readings running that fulfil the definition."""
    since_s: float = 0.0
    true_s: float = 0.0
    low_c: float | None = None
    high_c: float | None = None

    @property
    def reading(self) -> Reading:
        """The newest."""
        return self.recent[-1]

    @property
    def is_busy(self) -> bool:
        """Whether it was busy within the look back: between two requests it is not for a moment."""
        return self.busy_s is not None and self.reading.at_s - self.busy_s < LOOK_BACK_S

    def take(self, reading: Reading, utilization: float | None, reasons: Collection[str]) -> None:
        """The next reading. Where nobody tells the utilization (MIG), it counts as busy, and nothing is learned."""
        self.recent.append(reading)
        while reading.at_s - self.recent[0].at_s >= LOOK_BACK_S:
            self.recent.popleft()
        if utilization is not None and utilization < BUSY:
            return
        self.busy_s = reading.at_s
        if utilization is not None and reading.share(reasons) <= CALM:
            for baseline, value in (
                (self.clock, reading.clock_hz),
                (self.temperature, reading.temperature_c),
                (self.power, reading.power_w),
            ):
                if value is not None:
                    baseline.feed(value)

    def judge(self, is_true: bool, began_s: float, *, least: int, off_s: float) -> float | None:
        """Since when it is throttled, ``least`` readings running and this one too; None where it is not.

        What was true again before ``off_s`` had passed goes on.
        """
        reading = self.reading
        if is_true:
            if self.running == 0:
                self.since_s = began_s
            self.running += 1
            self.true_s = reading.at_s
            if reading.temperature_c is not None:
                now_c = reading.temperature_c
                self.low_c = now_c if self.low_c is None else min(self.low_c, now_c)
                self.high_c = now_c if self.high_c is None else max(self.high_c, now_c)
        elif self.running < least or reading.at_s - self.true_s >= off_s:
            self.running = 0
            self.low_c = self.high_c = None
        return self.since_s if is_true and self.running >= least else None

    def share(self, reasons: Collection[str]) -> float:
        """Of the time of the look back, throttled for one of these reasons."""
        span_s = sum([each.dt_s for each in self.recent])
        return sum([each.share(reasons) * each.dt_s for each in self.recent]) / span_s


class Watch:
    """All GPUs. ``look`` once per step."""

    def __init__(self, reasons: Iterable[str]) -> None:
        """reasons: values of the label ``reason`` that count."""
        self._reasons = frozenset(reasons)
        self._gpus: dict[Gpu, Watched] = {}
        self._pace = Pace()

    def look(self, scene: Scene) -> list[tuple[Gpu, Watched]]:
        """GPUs with a new reading."""
        self._pace.feed(scene)
        seconds: dict[Gpu, dict[str, float]] = {}
        spans: dict[Gpu, tuple[float, float]] = {}
        for labels, amount, dt_s, at_s in scene.grown(catalogue.GPU_THROTTLED_SECONDS):
            gpu, reason = labels[:2], labels[2]
            if reason in self._reasons:
                seconds.setdefault(gpu, {})[reason] = amount
                spans[gpu] = (at_s, dt_s)
        if len(seconds) < len(self._gpus):
            there = {labels[:2] for labels in scene.values(catalogue.GPU_THROTTLED_SECONDS)}
            for gone in self._gpus.keys() - there:
                del self._gpus[gone]
        clocks = scene.values(catalogue.GPU_CLOCK)
        temperatures = scene.values(catalogue.GPU_TEMPERATURE)
        powers = scene.values(catalogue.GPU_POWER)
        utilizations = scene.values(catalogue.GPU_UTILIZATION)
        looks = []
        for gpu, by_reason in seconds.items():
            watched = self._gpus.get(gpu)
            if watched is None:
                watched = self._gpus[gpu] = Watched()
            at_s, dt_s = spans[gpu]
            power = powers.get((*gpu, "instant"))
            reading = Reading(
                at_s,
                dt_s,
                by_reason,
                clocks.get((*gpu, "sm")),
                temperatures.get((*gpu, "gpu")),
                power if power is not None else powers.get((*gpu, "average")),
            )
            watched.take(reading, utilizations.get(gpu), self._reasons)
            looks.append((gpu, watched))
        return looks

    def evidence(
        self, scene: Scene, gpu: Gpu, watched: Watched, reasons: Collection[str], since_s: float
    ) -> tuple[Evidence, ...]:
        """Figures of a GPU that is throttled for these reasons: of the throttled readings of the last seconds."""
        throttled = [each for each in watched.recent if each.share(reasons) > CALM] or [watched.reading]
        found: list[Evidence] = []
        clock = middle([each.clock_hz for each in throttled])
        if clock is not None:
            found.append(Evidence("sm_clock", clock, Unit.HERTZ, clock_before(scene, gpu, watched)[0]))
        temperature = middle([each.temperature_c for each in throttled])
        if temperature is not None:
            found.append(Evidence("temperature", temperature, Unit.CELSIUS, watched.temperature.median))
        if watched.high_c is not None:
            found.append(Evidence("temperature_peak", watched.high_c, Unit.CELSIUS))
        power = middle([each.power_w for each in throttled])
        if power is not None:
            found.append(Evidence("power", power, Unit.WATTS, watched.power.median))
        limit = scene.value(catalogue.GPU_POWER_LIMIT, (*gpu, "enforced"))
        if limit is not None:
            default = scene.value(catalogue.GPU_POWER_LIMIT, (*gpu, "default"))
            found.append(Evidence("power_limit", limit, Unit.WATTS, default))
        margin = scene.value(catalogue.GPU_TEMPERATURE_MARGIN, gpu)
        if margin is not None:
            found.append(Evidence("temperature_margin", margin, Unit.CELSIUS))
        found.append(Evidence("throttled", watched.share(reasons), Unit.RATIO))
        return (*found, *self._pace.evidence(gpu[1], since_s, scene.at_s))


def clock_before(scene: Scene, gpu: Gpu, watched: Watched) -> tuple[float | None, bool]:
    """SM clock before, in hertz, and whether it was seen under load; else the board's highest, where that is known."""
    before = watched.clock.median
    if before is not None:
        return before, True
    return scene.value(catalogue.GPU_CLOCK_MAX, (*gpu, "sm")), False


def middle(values: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def weight(figures: Iterable[Evidence]) -> float:
    """``Finding.weight``: the clock lost in throttled time, in tenths, of what is alike the newest.

    Figures that tell what it cost the requests outweigh as many tenths as one: these are known a while later.
    """
    by_name = {each.name: each for each in figures}
    clock = by_name.get("sm_clock")
    lost = max(0.0, 1.0 - clock.observed / clock.baseline) if clock is not None and clock.baseline else 0.0
    return round(by_name["throttled"].observed * lost, 1) + (0.1 if "inter_token_latency" in by_name else 0.0)


def tell(watched: Watched, figures: Iterable[Evidence], how: str) -> str:
    """One line: ``SM clock 1410 → 1005 MHz at 89 to 91 °C, clocks held down for heat 100 % of the time``."""
    by_name = {each.name: each for each in figures}
    clock, latency = by_name.get("sm_clock"), by_name.get("inter_token_latency")
    parts: list[str] = []
    if clock is not None:
        before = "" if clock.baseline is None else f"{clock.baseline / 1e6:.0f} → "
        parts.append(f"SM clock {before}{clock.observed / 1e6:.0f} MHz")
    if watched.low_c is not None and watched.high_c is not None:
        low, high = f"{watched.low_c:.0f}", f"{watched.high_c:.0f}"
        parts.append(f"at {low if low == high else f'{low} to {high}'} °C")
    told = f"clocks {how} {100 * by_name['throttled'].observed:.0f} % of the time"
    text = f"{' '.join(parts)}, {told}" if parts else told
    if latency is not None and latency.baseline is not None:
        text += f"; inter-token latency {latency.baseline * 1e3:.1f} → {latency.observed * 1e3:.1f} ms"
    return text
