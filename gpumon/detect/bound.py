"""GPUs that wait for their memory, and GPUs that wait for work though requests are open.

From the integrals of SM and DRAM activity and the time by bound state (``gpumon_gpu_bound_seconds_total``), which only
GPUs with GPM have (Hopper and newer): of others nothing is said. ``starved`` is counted only where it is known that
requests are open on the GPU. A server may be so light that its GPU is starved by that definition whenever it works, so
starvation is judged against the GPU's own last minutes, and begins anew when another process becomes its largest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, gpu_entity
from gpumon.detect.hysteresis import Held
from gpumon.detect.scene import Scene
from gpumon.model import Unit

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""

_WINDOW_S: Final = 5.0
_WINDOWS: Final = 60
"""Five minutes of them make the history of a GPU."""
_WINDOWS_LEAST: Final = 6
_READINGS_MAX: Final = 64


class _Active(NamedTuple):
    """Integrals of activity between two readings."""

    at_s: float
    dt_s: float
    sm_s: float
    dram_s: float


class MemoryBound:
    """DRAM bandwidth is used up while the SMs have time left."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "memory_bound",
            "Over the last `on_s`, DRAM activity was above `dram` and SM activity below `sm`, on the mean. The figures "
            "are of the readings with DRAM activity above `dram`.",
            (Severity.INFO,),
            "Tokens cost memory traffic here, not arithmetic: long contexts and small batches do that. Larger batches, "
            "a smaller KV cache (grouped heads, FP8), quantised weights, or more GPUs per model change it; a higher "
            "clock does not.",
            hold_s=15.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "dram": "DRAM bandwidth used over the most possible; ratio. What is left above 0.9 is refresh and turn-around.",
        "sm": "SM activity; ratio. The bound of the state compute.",
        "on_s": "The time over which it is taken; seconds. Longer than a prefill and its gaps.",
        "off_s": "Untrue for this long, it is over; seconds. Longer than `on_s`, in which one short break is felt.",
    }

    def __init__(self, *, dram: float = 0.9, sm: float = 0.6, on_s: float = 10.0, off_s: float = 12.0) -> None:
        self._dram = dram
        self._sm = sm
        self._on_s = on_s
        self._held: Held[Gpu] = Held(on_s=0.0, off_s=off_s)
        self._recent: dict[Gpu, deque[_Active]] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        sms = {growth.labels: growth for growth in scene.grown(catalogue.GPU_SM_ACTIVE_SECONDS)}
        for gpu, amount, dt_s, at_s in scene.grown(catalogue.GPU_DRAM_ACTIVE_SECONDS):
            sm_active = sms.get(gpu)
            if sm_active is None:
                continue
            recent = self._recent.setdefault(gpu, deque(maxlen=_READINGS_MAX))
            recent.append(_Active(at_s, dt_s, sm_active.amount, amount))
            span_s = sum([each.dt_s for each in recent])
            while span_s - recent[0].dt_s >= self._on_s:
                span_s -= recent.popleft().dt_s
            sm, dram = _means(recent)
            # Readings come a little apart from their grid: nearly the whole time will do.
            is_true = span_s >= 0.95 * self._on_s and dram > self._dram and sm < self._sm
            full = [each for each in recent if each.dram_s > self._dram * each.dt_s]
            since_s = self._held.feed(gpu, is_true, at_s, full[0].at_s - full[0].dt_s if full else at_s)
            if is_true and since_s is not None:
                sm, dram = _means(full or recent)
                yield Finding(
                    "memory_bound",
                    gpu_entity(gpu),
                    Severity.INFO,
                    since_s,
                    f"bound by memory: DRAM {_percent(dram)}, SM {_percent(sm)}",
                    (Evidence("dram_active", dram, Unit.RATIO), Evidence("sm_active", sm, Unit.RATIO)),
                )
        there = scene.values(catalogue.GPU_DRAM_ACTIVE_SECONDS)
        self._held.keep(there)
        for gone in self._recent.keys() - there.keys():
            del self._recent[gone]


class _Reading(NamedTuple):
    at_s: float
    dt_s: float
    starved_s: float
    worked_s: float
    """In any state but idle: with requests open, or busy."""


@dataclass(slots=True)
class _Starving:
    """One GPU: the last seconds, and minutes of work before them."""

    server: str
    """Pid of its largest process; empty where that is not known."""
    recent: deque[_Reading] = field(default_factory=lambda: deque(maxlen=_READINGS_MAX))
    history: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOWS))
    """Starved shares of windows of work, in which it was not found starved."""
    worked_s: float = 0.0
    """What of the window under way has passed, and was starved."""
    starved_s: float = 0.0

    def take(self, reading: _Reading) -> None:
        """The next reading."""
        self.recent.append(reading)
        while reading.at_s - self.recent[0].at_s >= _WINDOW_S:
            self.recent.popleft()

    def share(self) -> float:
        """Starved, of the last seconds."""
        return sum([each.starved_s for each in self.recent]) / sum([each.dt_s for each in self.recent])

    def remember(self, reading: _Reading) -> None:
        """A reading of a time in which it was not found starved. Without work it says nothing."""
        self.worked_s += reading.worked_s
        self.starved_s += reading.starved_s
        if self.worked_s >= _WINDOW_S:
            self.history.append(self.starved_s / self.worked_s)
            self.worked_s = self.starved_s = 0.0

    def usual(self) -> float | None:
        """Share that it rarely passes while it works; None until that is known."""
        if len(self.history) < _WINDOWS_LEAST:
            return None
        ordered = sorted(self.history)
        return ordered[int(0.9 * (len(ordered) - 1))]


class StarvedGpu:
    """The GPU has little to do while requests wait for it: something on the host holds them up."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "starved_gpu",
            "Requests were open while SM and DRAM activity were below 0.3, for more than `share` of the last 5 s, and "
            "for at least `above` more than is usual for this GPU while it works (the 90th percentile of its last 5 "
            "minutes of work, of which half a minute must be known).",
            (Severity.WARNING,),
            "The host does not feed the GPU: look at CPU time and run-queue wait of the serving process, page faults, "
            "its NUMA node, tokenisation and network, and at what else opened an incident at this time.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "share": "Of the last 5 s, starved; ratio. Half: decoding leaves gaps of milliseconds only.",
        "above": "More than the usual share; ratio. Larger than what the load changes from minute to minute.",
        "off_s": "Untrue for this long, it is over; seconds. A few readings.",
    }

    def __init__(self, *, share: float = 0.5, above: float = 0.3, off_s: float = 3.0) -> None:
        self._share = share
        self._above = above
        self._held: Held[Gpu] = Held(on_s=0.0, off_s=off_s)
        self._gpus: dict[Gpu, _Starving] = {}

    def step(self, scene: Scene) -> Iterator[Finding]:
        readings = _readings(scene)
        servers = _largest(scene) if readings else {}
        activity = (scene.rates(catalogue.GPU_SM_ACTIVE_SECONDS), scene.rates(catalogue.GPU_DRAM_ACTIVE_SECONDS))
        for gpu, reading in readings.items():
            state = self._state(gpu, servers.get(gpu))
            state.take(reading)
            share = state.share()
            # Two readings: one alone may be the gap before the first token of a batch.
            usual = state.usual() if share > self._share and len(state.recent) >= 2 else None
            is_true = usual is not None and share > usual + self._above
            since_s = self._held.feed(gpu, is_true, reading.at_s, _began(state.recent))
            if since_s is None:
                state.remember(reading)
            elif usual is not None and is_true:
                yield _starved(gpu, since_s, share, usual, [rates.get(gpu) for rates in activity])
        if len(readings) < len(self._gpus):
            there = {labels[:2] for labels in scene.values(catalogue.GPU_BOUND_SECONDS)}
            for gone in self._gpus.keys() - there:
                del self._gpus[gone]
            self._held.keep(there)

    def _state(self, gpu: Gpu, server: str | None) -> _Starving:
        """What is known of the GPU, as long as its server is the same."""
        state = self._gpus.get(gpu)
        if state is None or (server is not None and state.server not in ("", server)):
            state = self._gpus[gpu] = _Starving(server or "")
            self._held.keep(self._gpus.keys() - {gpu})
        state.server = server if server is not None else state.server
        return state


def _means(readings: Collection[_Active]) -> tuple[float, float]:
    """SM and DRAM activity over all of them; ratios."""
    span_s = sum([each.dt_s for each in readings])
    sm, dram = sum([each.sm_s for each in readings]) / span_s, sum([each.dram_s for each in readings]) / span_s
    return min(1.0, sm), min(1.0, dram)


def _readings(scene: Scene) -> dict[Gpu, _Reading]:
    """By GPU with a new one."""
    readings: dict[Gpu, _Reading] = {}
    for labels, amount, dt_s, at_s in scene.grown(catalogue.GPU_BOUND_SECONDS):
        gpu, state = labels[:2], labels[2]
        if state != "idle":
            _, _, starved_s, worked_s = readings.get(gpu, (at_s, dt_s, 0.0, 0.0))
            starved_s += amount if state == "starved" else 0.0
            readings[gpu] = _Reading(at_s, dt_s, starved_s, worked_s + amount)
    return readings


def _starved(gpu: Gpu, since_s: float, share: float, usual: float, activity: Sequence[float | None]) -> Finding:
    evidence = [Evidence("starved", share, Unit.RATIO, usual)]
    evidence += [
        Evidence(name, value, Unit.RATIO)
        for name, value in zip(("sm_active", "dram_active"), activity, strict=True)
        if value is not None
    ]
    text = f"starved {_percent(share)} of the time with requests open, usually up to {_percent(usual)} of its work"
    return Finding("starved_gpu", gpu_entity(gpu), Severity.WARNING, since_s, text, tuple(evidence))


def _began(recent: deque[_Reading]) -> float:
    """When the newest run of starved readings began."""
    began_s = recent[-1].at_s
    for reading in reversed(recent):
        if reading.starved_s < 0.5 * reading.dt_s:
            break
        began_s = reading.at_s - reading.starved_s
    return began_s


def _largest(scene: Scene) -> dict[Gpu, str]:
    """By GPU, the pid of the process that holds most of its memory: its server."""
    largest: dict[Gpu, tuple[float, str]] = {}
    for labels, value, _ in scene.read(catalogue.PROCESS_GPU_MEMORY):
        gpu = labels[:2]
        if gpu not in largest or value > largest[gpu][0]:
            largest[gpu] = (value, labels[2])
    return {gpu: pid for gpu, (_, pid) in largest.items()}


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"
