"""Batches that are not full and do not go evenly: ``batch_jitter``. Few requests are hit, and no median shows it.

From requests that have ended, in two ways. Where token times are known: pauses between decode steps that no other
request's prompt explains (``detect.pauses``). Where queue times or times to first token are known: requests that come
alone and wait longer than those of a burst (``detect.lone``). In both cases the scheduler, or what is in front of it,
holds work back. On a full server it is not this: there, waiting is what a queue does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpumon.detect.detector import Evidence, Finding, IncidentKind, Severity, server_entity
from gpumon.detect.hysteresis import Held
from gpumon.detect.kept import Kept
from gpumon.detect.lone import LoneWaits, Waits
from gpumon.detect.pauses import Pauses, PauseWatch
from gpumon.detect.scene import Scene
from gpumon.model import RequestRecord, Unit

Pair = tuple[str, str]
"""Server and model."""

_PER_STEP: Final = 256
_PAUSES_EVERY_S: Final = 2.0
_WAITS_EVERY_S: Final = 10.0
"""Between two looks at the same pair."""
_RARE: Final = 0.4
"""Where more gaps than these are long, it is no pause any more but how the server goes."""
_STEADY: Final = 1.8
"""Median gap over the usual up to which the steps themselves are as they were."""
_SAME_LOAD: Final = 1.5
"""Mean concurrency over the usual up to which the load is as it was."""
_SPACING: Final = 1.3
"""Standard deviation over mean of the time between arrivals above which they are uneven; independent users make 1."""


@dataclass(slots=True)
class _Pair:
    pauses: PauseWatch = field(default_factory=PauseWatch)
    waits: LoneWaits = field(default_factory=LoneWaits)
    pauses_at_s: float = 0.0
    waits_at_s: float = 0.0
    is_paused: bool = False
    """Found, or found a moment ago."""
    paused: Finding | None = None
    waited: Finding | None = None


class BatchJitter:
    """See the module."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "batch_jitter",
            "Mean concurrency of a server and model is at most `fill` of the largest, and either more than `share` of "
            "the gaps between tokens, and `times` the usual share, are pauses: more than 2.5 times the request's "
            "median gap between two that are not, while no prompt was processed; rare (below 40 %), with a median gap "
            "below 1.8 times and a load below 1.5 times the usual, for `on_s`. Or, over `window_s`, arrivals are "
            "uneven (standard deviation of their spacing above 1.3 times its mean) and at least `lone` requests that "
            "met no more than a quarter of the largest concurrency waited `longer` times as long as the others, in "
            "the P99 and in the median.",
            (Severity.INFO,),
            "The scheduler holds small batches back: shorten the batching delay (Triton: "
            "max_queue_delay_microseconds; a router's or gateway's window), or look for what sleeps or stops for a "
            "moment between steps: a polling loop, garbage collection, CPU idle states, another process on its cores.",
            hold_s=30.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "fill": "Mean over largest concurrency of a batch that is not full; ratio. On a full server they are close.",
        "share": "Pauses over all gaps between tokens; ratio. A P99 sees one in a hundred.",
        "times": "The same, over the usual; ratio.",
        "on_s": "Pauses are that many for this long; seconds. While a fault begins, requests have slow and fast steps.",
        "window_s": "Arrivals that count for the comparison; seconds. Lone requests are few: minutes are needed.",
        "lone": "Fewest lone requests, and half of the fewest others; below it a P99 is one request.",
        "longer": "Waiting time of the lone requests over that of the others; ratio.",
        "floor_s": "The same as a difference of P99s; seconds. What nobody notices is no jitter.",
    }

    def __init__(
        self,
        *,
        fill: float = 0.75,
        share: float = 0.015,
        times: float = 4.0,
        on_s: float = 4.0,
        window_s: float = 300.0,
        lone: int = 10,
        longer: float = 1.5,
        floor_s: float = 0.02,
    ) -> None:
        if lone < 1:
            raise ValueError("lone must be at least 1")
        self._fill = fill
        self._share = share
        self._times = times
        self._window_s = window_s
        self._lone = lone
        self._longer = longer
        self._floor_s = floor_s
        self._pairs: Kept[Pair, _Pair] = Kept(_Pair, forget_s=600.0)
        self._paused: Held[Pair] = Held(on_s=on_s, off_s=15.0)
        self._waited: Held[Pair] = Held(on_s=0.0, off_s=15.0)

    def step(self, scene: Scene) -> Iterator[Finding]:
        by_pair: dict[Pair, list[RequestRecord]] = {}
        for record in scene.requests[-_PER_STEP:]:
            by_pair.setdefault((record.server, record.model), []).append(record)
        for key, records in by_pair.items():
            pair = self._pairs.look(key, scene.at_s)
            pair.pauses.add(records, scene.at_s)
            for record in records:
                pair.waits.add(record)
        self._pairs.sweep(scene.at_s)
        for key, pair in self._pairs.items():
            if scene.at_s - pair.pauses_at_s >= _PAUSES_EVERY_S:
                pair.pauses_at_s = scene.at_s
                pair.paused = self._with_pauses(key, pair, scene.at_s)
            if scene.at_s - pair.waits_at_s >= _WAITS_EVERY_S:
                pair.waits_at_s = scene.at_s
                pair.waited = self._with_waits(key, pair, scene.at_s)
            yield from filter(None, (pair.paused, pair.waited))
        self._paused.keep([key for key, _ in self._pairs.items()])
        self._waited.keep([key for key, _ in self._pairs.items()])

    def _with_pauses(self, key: Pair, pair: _Pair, at_s: float) -> Finding | None:
        pauses = pair.pauses.look(at_s, is_well=not pair.is_paused)
        is_true = (
            pauses is not None
            and max(self._share, self._times * pauses.usual_share) < pauses.share < _RARE
            and pauses.gap_s < _STEADY * pauses.usual_gap_s
            and pauses.concurrency <= self._fill * pauses.largest
            # More load brings prompts that nothing is known of yet; once found, pauses make a load of their own.
            and (pair.is_paused or pauses.concurrency <= _SAME_LOAD * pauses.usual_concurrency)
        )
        since_s = self._paused.feed(key, is_true, at_s)
        pair.is_paused = since_s is not None
        return _paused(key, pauses, since_s) if since_s is not None and pauses is not None and is_true else None

    def _with_waits(self, key: Pair, pair: _Pair, at_s: float) -> Finding | None:
        waits = pair.waits.look(at_s - self._window_s, fill=self._fill, spacing=_SPACING, least=self._lone)
        is_true = (
            waits is not None
            and all(lone > self._longer * other for lone, other in zip(waits.lone, waits.others, strict=True))
            and waits.lone[1] - waits.others[1] > self._floor_s
        )
        since_s = self._waited.feed(key, is_true, at_s)
        return _waited(key, waits, since_s) if since_s is not None and waits is not None and is_true else None


def _paused(key: Pair, pauses: Pauses, since_s: float) -> Finding:
    return Finding(
        "batch_jitter",
        server_entity((*key, "")),
        Severity.INFO,
        since_s,
        f"{100 * pauses.share:.1f} % of the gaps between tokens are pauses, usually {100 * pauses.usual_share:.1f} %",
        (
            Evidence("pauses", pauses.share, Unit.RATIO, pauses.usual_share),
            Evidence("inter_token_median", pauses.gap_s, Unit.SECONDS, pauses.usual_gap_s),
            Evidence("batch_fill", pauses.concurrency / pauses.largest, Unit.RATIO),
        ),
    )


def _waited(key: Pair, waits: Waits, since_s: float) -> Finding:
    return Finding(
        "batch_jitter",
        server_entity((*key, "")),
        Severity.INFO,
        since_s,
        f"{waits.lone_requests} requests that came alone waited P99 {waits.lone[1]:.3f} s, in company "
        f"{waits.others[1]:.3f} s",
        (
            Evidence(f"{waits.name}_p99", waits.lone[1], Unit.SECONDS, waits.others[1]),
            Evidence(f"{waits.name}_median", waits.lone[0], Unit.SECONDS, waits.others[0]),
            Evidence("lone_requests", float(waits.lone_requests), Unit.NONE),
            Evidence("other_requests", float(waits.other_requests), Unit.NONE),
            Evidence("batch_fill", waits.fill, Unit.RATIO),
            Evidence("spacing_variation", waits.spacing, Unit.RATIO),
        ),
    )
