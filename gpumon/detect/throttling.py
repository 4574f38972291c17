"""Clocks that heat, the power limit or the board's hardware hold down.

What is counted, and from where, is in ``clocks``. A GPU that idles has its clocks down by itself, which is no reason
counted here; whatever is counted while it idles is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gpumon import catalogue
from gpumon.detect.clocks import CALM, LOOK_BACK_S, Gpu, Watch, Watched, clock_before, middle, tell, weight
from gpumon.detect.detector import Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.scene import Scene

_TWICE = 2
"""Intervals between readings, running, as docs/DETECTORS.md says."""


class ThermalThrottle:
    """Clocks held down for heat."""

    REASONS = ("sw_thermal", "hw_thermal")

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "thermal_throttle",
            "Heat (`sw_thermal` or `hw_thermal`) held the clocks of a busy GPU down for more than `share` of the time "
            "between two readings, twice running. Critical where the hardware itself slows down, or where the "
            "temperature margin is down to where it will.",
            (Severity.WARNING, Severity.CRITICAL),
            "Look at fans, inlet temperature and air flow of this GPU's slot, and whether its neighbours are hot too. "
            "Until it is cool, move load away or lower its power limit (nvidia-smi -i GPU -pl WATTS): a steady lower "
            "clock costs less than throttling.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Of the time between two readings (about 1 s), throttled; ratio. A healthy GPU has none at all.",
        "off_s": "Below half of `share` for this long, it is over; seconds. A few readings.",
    }

    def __init__(self, *, share: float = 0.05, off_s: float = 3.0) -> None:
        self._share = share
        self._off_s = off_s
        self._watch = Watch(self.REASONS)

    def step(self, scene: Scene) -> Iterator[Finding]:
        for gpu, watched in self._watch.look(scene):
            share = watched.reading.share(self.REASONS)
            since_s = _twice_running(watched, share, self._share, self._off_s, watched.reading.began_s(self.REASONS))
            if since_s is not None:
                yield self._finding(scene, gpu, watched, since_s)

    def _finding(self, scene: Scene, gpu: Gpu, watched: Watched, since_s: float) -> Finding:
        by_hardware = any(each.share(("hw_thermal",)) > self._share for each in watched.recent)
        margin = scene.value(catalogue.GPU_TEMPERATURE_MARGIN, gpu)
        # Boards that state limits relative to the margin slow down a little below 0 (-2 on an H200).
        limit = scene.value(catalogue.GPU_TEMPERATURE_MARGIN_LIMIT, (*gpu, "slowdown"))
        used_up = margin is not None and margin <= (limit if limit is not None else 0.0)
        figures = self._watch.evidence(scene, gpu, watched, self.REASONS, since_s)
        return Finding(
            "thermal_throttle",
            gpu_entity(gpu),
            Severity.CRITICAL if by_hardware or used_up else Severity.WARNING,
            since_s,
            tell(watched, figures, "slowed by the hardware for heat" if by_hardware else "held down for heat"),
            figures,
            weight=weight(figures),
        )


class PowerThrottle:
    """Clocks held down by the power limit for long and by much: a busy GPU touches its limit in every prefill."""

    REASONS = ("sw_power_cap",)

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "power_throttle",
            "The power limit held the clocks of a busy GPU down for at least `share` of the last 5 s, and its SM clock "
            "was below `clock` of what it was before under load (where that was never seen: below `clock_of_max` of "
            "the board's highest). Warning from a loss of `heavy`.",
            (Severity.INFO, Severity.WARNING),
            "Compare the enforced power limit with the board's default (nvidia-smi -q -d POWER). If somebody, or a "
            "limit of the rack, lowered it, raise it again. At the default limit this is what the board can do: give "
            "it less work, or expect the latency it has now.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Of the last 5 s, at the limit; ratio. Prefills of a healthy server touch it for 0.1 to 0.5 s each.",
        "clock": "SM clock over its median before, under load; ratio. By itself, boost moves by a few steps of 15 MHz.",
        "clock_of_max": "SM clock over the board's highest; ratio. Dense work at the default limit of a 700 W board "
        "runs at 0.7 to 0.9 of it.",
        "heavy": "Loss of clock from which it is a warning; ratio. Decoding, bound by memory, loses less than that.",
        "off_s": "Untrue for this long, it is over; seconds. Longer than a pause between two prefills.",
    }

    def __init__(
        self,
        *,
        share: float = 0.5,
        clock: float = 0.9,
        clock_of_max: float = 0.7,
        heavy: float = 0.2,
        off_s: float = 5.0,
    ) -> None:
        self._share = share
        self._clock = clock
        self._clock_of_max = clock_of_max
        self._heavy = heavy
        self._off_s = off_s
        self._watch = Watch(self.REASONS)

    def step(self, scene: Scene) -> Iterator[Finding]:
        for gpu, watched in self._watch.look(scene):
            ratio = self._clock_ratio(scene, gpu, watched)
            capped = [each for each in watched.recent if each.share(self.REASONS) >= self._share]
            began_s = (capped[0] if capped else watched.reading).began_s(self.REASONS)
            since_s = watched.judge(ratio is not None, began_s, least=1, off_s=self._off_s)
            if since_s is not None:
                figures = self._watch.evidence(scene, gpu, watched, self.REASONS, since_s)
                yield Finding(
                    "power_throttle",
                    gpu_entity(gpu),
                    Severity.WARNING if ratio is not None and 1.0 - ratio >= self._heavy else Severity.INFO,
                    since_s,
                    tell(watched, figures, "held down by the power limit"),
                    figures,
                    weight=weight(figures),
                )

    def _clock_ratio(self, scene: Scene, gpu: Gpu, watched: Watched) -> float | None:
        """Clock over the clock before; None where it is not power that holds it down, or not by much."""
        recent = watched.recent
        # Two readings and half of the look back: one alone may be a prefill.
        settled = len(recent) >= 2 and sum([each.dt_s for each in recent]) >= LOOK_BACK_S / 2
        capped = watched.reading.share(self.REASONS) > CALM and watched.share(self.REASONS) >= self._share
        if not (settled and capped and watched.is_busy):
            return None
        now = middle([each.clock_hz for each in recent])
        before, seen = clock_before(scene, gpu, watched)
        if now is None or not before:
            return None
        ratio = now / before
        return ratio if ratio < (self._clock if seen else self._clock_of_max) else None


class HwSlowdown:
    """Clocks held down by the board's hardware for another reason than heat."""

    BRAKE: ClassVar[tuple[str, ...]] = ("hw_power_brake",)
    SLOWDOWN: ClassVar[tuple[str, ...]] = ("hw_slowdown",)
    LIMITS: ClassVar[tuple[str, ...]] = ("board_limit", "reliability")
    """Boards touch these without harm: they count where clock is lost."""
    HEAT: ClassVar[tuple[str, ...]] = ("hw_thermal",)
    """Sets the slowdown bit as well, and is thermal_throttle's."""
    _HOW: ClassVar[Mapping[tuple[str, ...], str]] = {
        BRAKE: "held down by an external power brake",
        SLOWDOWN: "slowed by the hardware",
        LIMITS: "held down by the board's limits",
    }

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "hw_slowdown",
            "The hardware's slowdown without heat, or the external power brake, held the clocks of a busy GPU down for "
            "more than `share` of the time between two readings, twice running; or the board's or the voltage's limit "
            "did, and its SM clock was below `clock` of what it was before. Critical from a loss of `heavy`.",
            (Severity.WARNING, Severity.CRITICAL),
            "Power is the usual cause: look at the node's power supplies, their cables and the rack's power (the BMC's "
            "event log), and for a power brake signal. If the supply is sound, drain the node and have the board "
            "looked at.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Of the time between two readings (about 1 s), slowed down; ratio. A healthy GPU has none at all.",
        "clock": "SM clock over its median before, under load; ratio. By itself, boost moves by a few steps of 15 MHz.",
        "heavy": "Loss of clock from which it is critical; ratio. NVML: the slowdown halves clocks at least.",
        "off_s": "Below half of `share` for this long, it is over; seconds. A few readings.",
    }

    def __init__(self, *, share: float = 0.05, clock: float = 0.9, heavy: float = 0.5, off_s: float = 3.0) -> None:
        self._share = share
        self._clock = clock
        self._heavy = heavy
        self._off_s = off_s
        self._reasons = (*self.BRAKE, *self.SLOWDOWN, *self.LIMITS, *self.HEAT)
        self._watch = Watch(self._reasons)

    def step(self, scene: Scene) -> Iterator[Finding]:
        for gpu, watched in self._watch.look(scene):
            reading = watched.reading
            ratio = self._clock_ratio(watched)
            share = max(reading.share(self.BRAKE), reading.share(self.SLOWDOWN) - reading.share(self.HEAT))
            if share <= self._share and ratio < self._clock:
                share = reading.share(self.LIMITS)
            since_s = _twice_running(watched, share, self._share, self._off_s, reading.at_s - share * reading.dt_s)
            if since_s is not None:
                yield self._finding(scene, gpu, watched, since_s, ratio)

    def _clock_ratio(self, watched: Watched) -> float:
        """Clock over the clock before, where that was seen; 1 where it was not, or nothing holds it down."""
        if watched.running == 0 and watched.reading.share(self._reasons) <= CALM:
            return 1.0
        now, before = watched.reading.clock_hz, watched.clock.median
        return now / before if now is not None and before else 1.0

    def _finding(self, scene: Scene, gpu: Gpu, watched: Watched, since_s: float, ratio: float) -> Finding:
        # The brake sets the slowdown bit too: of two that are the same, the first is meant.
        shares = {
            self.BRAKE: watched.share(self.BRAKE),
            self.SLOWDOWN: watched.share(self.SLOWDOWN) - watched.share(self.HEAT),
            self.LIMITS: watched.share(self.LIMITS) if ratio < self._clock else 0.0,
        }
        reasons = max(shares, key=lambda each: shares[each])
        figures = self._watch.evidence(scene, gpu, watched, reasons, since_s)
        return Finding(
            "hw_slowdown",
            gpu_entity(gpu),
            Severity.CRITICAL if 1.0 - ratio >= self._heavy else Severity.WARNING,
            since_s,
            tell(watched, figures, self._HOW[reasons]),
            figures,
            weight=weight(figures),
        )


def _twice_running(watched: Watched, share: float, threshold: float, off_s: float, began_s: float) -> float | None:
    """Since when: over the threshold in two intervals running, until below half of it for ``off_s``."""
    is_true = watched.is_busy and share > (threshold / 2 if watched.running >= _TWICE else threshold)
    return watched.judge(is_true, began_s, least=_TWICE, off_s=off_s)
