"""The KV cache of a server: full, so that requests are thrown out (``kv_pressure``), or held without use
(``kv_mismatch``).

From the server's metrics page. Only servers that tell what their running requests really hold (SGLang, or a shim) can
have a mismatch; GPU memory says nothing here, for servers reserve it all when they start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from gpumon import catalogue
from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, server_entity
from gpumon.detect.hysteresis import Baseline, Held
from gpumon.detect.kept import Kept
from gpumon.detect.scene import Growth, Labels, Scene
from gpumon.model import Unit

_GROWTHS_MAX: Final = 64
_USUAL: Final = 120
_USUAL_LEAST: Final = 10
_GAP_S: Final = 60.0
"""A pause of the readings after which the time before it counts no more."""
_BINS: Final = 60
"""Readings kept of a window: one per sixtieth of it."""


@dataclass(slots=True)
class _Cache:
    """One server's cache, with the last seconds."""

    usages: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_GROWTHS_MAX))
    """When, and how full."""
    preempted: deque[Growth] = field(default_factory=lambda: deque(maxlen=_GROWTHS_MAX))
    """Growths of the counter, those above 0."""
    tokens: deque[Growth] = field(default_factory=lambda: deque(maxlen=_GROWTHS_MAX))
    usual: Baseline = field(default_factory=lambda: Baseline(_USUAL, _USUAL_LEAST))
    """Tokens per second while there was no pressure and requests ran."""
    total: float = 0.0
    """Preemptions since it was found."""

    def forget(self, oldest_s: float) -> None:
        while self.usages and self.usages[0][0] <= oldest_s:
            self.usages.popleft()
        for growths in (self.preempted, self.tokens):
            while growths and growths[0].at_s <= oldest_s:
                growths.popleft()

    def tokens_per_second(self) -> float | None:
        seconds = sum([each.dt_s for each in self.tokens])
        return sum([each.amount for each in self.tokens]) / seconds if seconds else None


class KvPressure:
    """Too little KV cache for what runs: requests are preempted and computed again."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "kv_pressure",
            "KV cache usage was above `usage` within the last `recent_s`, and at least `least` requests were preempted "
            "in that time. Critical when the server makes fewer than `collapse` of its usual tokens per second.",
            (Severity.WARNING, Severity.CRITICAL),
            "Requests are thrown out of the batch and computed again. Give the KV cache more memory "
            "(vLLM: --gpu-memory-utilization, FP8 KV cache), lower the batch limit (--max-num-seqs) or the longest "
            "context, or add a replica; see whether contexts became longer.",
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "usage": "KV cache usage that is full; ratio. vLLM and SGLang preempt when the last blocks are gone.",
        "least": "Preemptions that count; requests. One now and then costs one request a second.",
        "recent_s": "How long usage and preemptions are looked back for; seconds. Two readings of a page at least.",
        "collapse": "Tokens per second over the usual at which it is critical; ratio.",
        "off_s": "Untrue for this long, it is over; seconds.",
    }

    def __init__(
        self,
        *,
        usage: float = 0.95,
        least: float = 2.0,
        recent_s: float = 10.0,
        collapse: float = 0.5,
        off_s: float = 10.0,
    ) -> None:
        if recent_s <= 0:
            raise ValueError("recent_s must be above 0")
        self._usage = usage
        self._least = least
        self._recent_s = recent_s
        self._collapse = collapse
        self._caches: Kept[Labels, _Cache] = Kept(_Cache)
        self._held: Held[Labels] = Held(on_s=0.0, off_s=off_s)

    def step(self, scene: Scene) -> Iterator[Finding]:
        preempted = {growth.labels: growth for growth in scene.grown(catalogue.SERVER_PREEMPTIONS)}
        tokens = {growth.labels: growth for growth in scene.grown(catalogue.SERVER_TOKENS)}
        for labels, usage, at_s in scene.read(catalogue.SERVER_KV_USAGE):
            cache = self._caches.look(labels, scene.at_s)
            if not cache.usages or at_s > cache.usages[-1][0]:
                cache.usages.append((at_s, usage))
            growth = preempted.get(labels)
            if growth is not None and growth.amount > 0:
                cache.preempted.append(growth)
                cache.total += growth.amount
            made = tokens.get((*labels, "generation"))
            if made is not None:
                cache.tokens.append(made)
            cache.forget(scene.at_s - self._recent_s)
            yield from self._judge(scene, labels, cache, made)
        self._caches.sweep(scene.at_s)
        self._held.keep([key for key, _ in self._caches.items()])

    def _judge(self, scene: Scene, labels: Labels, cache: _Cache, made: Growth | None) -> Iterator[Finding]:
        fullest = max([usage for _, usage in cache.usages], default=0.0)
        recent = sum([each.amount for each in cache.preempted])
        is_true = fullest > self._usage and recent >= self._least
        began_s = cache.preempted[0].at_s - cache.preempted[0].dt_s if cache.preempted else scene.at_s
        since_s = self._held.feed(labels, is_true, scene.at_s, began_s)
        if since_s is None:
            cache.total = recent
            if made is not None and made.amount > 0 and not recent:
                cache.usual.feed(made.rate)
            return
        if not is_true:
            return  # a break: the figures that remain are of the pressure, not of its absence
        rate, usual = cache.tokens_per_second(), cache.usual.median
        collapsed = rate is not None and usual is not None and rate < self._collapse * usual
        evidence = [
            Evidence("kv_usage", fullest, Unit.RATIO),
            Evidence("preemptions", cache.total, Unit.NONE, 0.0),
            Evidence("preemptions_per_second", recent / self._recent_s, Unit.NONE, 0.0),
        ]
        if rate is not None:
            evidence.append(Evidence("tokens_per_second", rate, Unit.NONE, usual))
        waiting = scene.value(catalogue.SERVER_WAITING, labels)
        if waiting is not None:
            evidence.append(Evidence("waiting", waiting, Unit.NONE))
        fell = rate is not None and usual is not None and rate < usual
        fall = f", tokens/s {usual:.0f} → {rate:.0f}" if fell else ""
        yield Finding(
            "kv_pressure",
            server_entity(labels),
            Severity.CRITICAL if collapsed else Severity.WARNING,
            since_s,
            f"KV cache {100 * fullest:.0f} % full, {cache.total:.0f} requests preempted{fall}",
            tuple(evidence),
            weight=recent,
        )


class _Use(NamedTuple):
    at_s: float
    live: float
    """Tokens of running requests."""
    reserved: float
    """Tokens that the blocks in use could hold."""
    running: float


@dataclass(slots=True)
class _Uses:
    readings: deque[_Use] = field(default_factory=lambda: deque(maxlen=2 * _BINS))


class KvMismatch:
    """Blocks of the KV cache are held for tokens that are not there."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "kv_mismatch",
            "Over `window_s`, while requests ran, 1 - live tokens / tokens that the blocks in use could hold was above "
            "`redundancy`, and at least `used` of the cache was in use.",
            (Severity.INFO, Severity.WARNING),
            "The cache is reserved for tokens that are not there: a warning while requests wait for it. Look at the "
            "block size against the length of requests, at requests that hold their blocks after their end (aborted, "
            "waiting for a transfer), and at reservations for the longest answer (max_tokens).",
            hold_s=60.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "window_s": "Over which live and reserved tokens are summed; seconds.",
        "redundancy": "1 - live / reserved; ratio.",
        "used": "Least usage of the cache, mean of the window; ratio. A nearly empty cache is no loss.",
    }

    def __init__(self, *, window_s: float = 600.0, redundancy: float = 0.8, used: float = 0.05) -> None:
        self._window_s = window_s
        self._redundancy = redundancy
        self._used = used
        self._uses: Kept[Labels, _Uses] = Kept(_Uses, forget_s=_GAP_S)

    def step(self, scene: Scene) -> Iterator[Finding]:
        usages, running = scene.values(catalogue.SERVER_KV_USAGE), scene.values(catalogue.SERVER_RUNNING)
        capacities = scene.values(catalogue.SERVER_KV_CAPACITY)
        for labels, live, at_s in scene.read(catalogue.SERVER_KV_LIVE):
            usage, capacity = usages.get(labels), capacities.get(labels)
            if usage is None or capacity is None:
                continue
            uses = self._uses.look(labels, scene.at_s).readings
            runs = running.get(labels, 1.0)
            if runs > 0 and (not uses or at_s - uses[-1].at_s >= self._window_s / _BINS):
                if uses and at_s - uses[-1].at_s > max(_GAP_S, self._window_s / 10):
                    uses.clear()  # nothing ran: what was before is another load
                uses.append(_Use(at_s, live, usage * capacity, runs))
            while uses and uses[0].at_s < scene.at_s - self._window_s:
                uses.popleft()
            yield from self._judge(scene, labels, uses, capacity)
        self._uses.sweep(scene.at_s)

    def _judge(self, scene: Scene, labels: Labels, uses: deque[_Use], capacity: float) -> Iterator[Finding]:
        if not uses or uses[-1].at_s - uses[0].at_s < 0.9 * self._window_s:
            return
        live, reserved = sum([each.live for each in uses]), sum([each.reserved for each in uses])
        redundancy = 1.0 - live / reserved if reserved > 0 else 0.0
        if redundancy <= self._redundancy or reserved < self._used * capacity * len(uses):
            return
        waiting = scene.value(catalogue.SERVER_WAITING, labels)
        yield Finding(
            "kv_mismatch",
            server_entity(labels),
            Severity.WARNING if waiting else Severity.INFO,
            uses[0].at_s,
            f"{100 * redundancy:.0f} % of the KV cache in use holds no tokens of running requests",
            (
                Evidence("redundancy", redundancy, Unit.RATIO),
                Evidence("live_tokens", live / len(uses), Unit.NONE),
                Evidence("reserved_tokens", reserved / len(uses), Unit.NONE),
                Evidence("capacity_tokens", capacity, Unit.NONE),
                Evidence("running", sum([each.running for each in uses]) / len(uses), Unit.NONE),
                *(() if waiting is None else (Evidence("waiting", waiting, Unit.NONE),)),
            ),
            weight=redundancy,
        )
