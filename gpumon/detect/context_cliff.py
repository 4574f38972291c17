"""Contexts from which on a model's latency grows faster than its work: ``context_cliff``.

Along the doubling ladder of context lengths, from ``detect.recent``: P95 of the last ten minutes of one bucket against
that of the bucket before, of time to first token (by prompt) and inter-token latency (by prompt and tokens made), by
the rule of ``detect.growth``. Each bucket needs enough observations.

One finding per model, of its worst pair of buckets, with the activity of its GPUs over the half minute before the
cliff was last seen; without requests for so long that the window is empty, there is none. Where the
time of whole requests has grown as much, that is told, for it is what users wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.catalogue import CONTEXT_BUCKETS
from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.growth import ALIKE, MEDIAN, P95, RATIO, Pair, is_cliff, shares
from gpumon.detect.hysteresis import Held
from gpumon.detect.recent import RESPONSE, ModelLatencies
from gpumon.detect.scene import Scene
from gpumon.detect.spoken import change, duration, percent
from gpumon.model import Metric, Unit
from gpumon.requests.logbuckets import quantiles
from gpumon.requests.windows import Signal

EVERY_S: Final = 5.0
ON_S: Final = 10.0
OFF_S: Final = 60.0
_FEW: Final = 0.02
"""Share of a model's requests: fewer beyond the cliff are for information."""
_ACTIVITY_S: Final = 30.0
_NAMES: Final = {
    Signal.FIRST_TOKEN: ("time_to_first_token", "time to first token"),
    Signal.INTER_TOKEN: ("inter_token", "inter-token latency"),
    RESPONSE: ("response_time", "response time"),
}
_ALIKE: Final[dict[int, float]] = {**ALIKE, RESPONSE: 1.0}


class _Cliff(NamedTuple):
    """Between two buckets."""

    upper: int
    """Position of the longer one."""
    pairs: dict[int, Pair]
    """By measure, as far as known; the one that is told of first."""
    share_beyond: float
    """Of the model's requests, at or beyond the longer bucket."""


class _Model:
    """What is known of one."""

    def __init__(self) -> None:
        self.looked_s = float("-inf")
        self.is_there = False
        self.cliff: _Cliff | None = None
        """As last seen."""
        self.activities: dict[str, float] = {}
        """Of its GPUs, at that time."""


class ContextCliff:
    """Finds ``context_cliff``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "context_cliff",
            "P95 of a model's time to first token, or of its inter-token latency, in one bucket of context lengths is "
            "over `ratio` times that in the bucket before, with at least `least_requests` requests or `least_tokens` "
            "tokens of the last ten minutes in both, and neither by chance nor without the median.",
            (Severity.WARNING, Severity.INFO),
            "Serve contexts beyond the cliff elsewhere or refuse them; else look there for what runs out: KV cache and "
            "preemptions, memory bandwidth (DRAM activity), chunked prefill, a slower attention kernel.",
            hold_s=60.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "ratio": "Of P95 to that of contexts half as long; ratio. The work doubles, attention adds to it.",
        "least_requests": "Requests in each of the two buckets.",
        "least_tokens": "Tokens in each of the two buckets.",
    }

    def __init__(self, *, ratio: float = RATIO, least_requests: int = 20, least_tokens: int = 2000) -> None:
        self._ratio = ratio
        self._least = {
            Signal.FIRST_TOKEN: least_requests,
            Signal.INTER_TOKEN: least_tokens,
            RESPONSE: least_requests,
        }
        self._models: dict[str, _Model] = {}
        self._held: Held[str] = Held(on_s=ON_S, off_s=OFF_S)

    def step(self, scene: Scene) -> Iterable[Finding]:
        models = scene.latencies.models()
        self._models = {model.name: self._models.get(model.name) or _Model() for model in models}
        self._held.keep(self._models)
        findings: list[Finding] = []
        for model in models:
            state = self._models[model.name]
            if scene.at_s - state.looked_s >= EVERY_S:  # without new requests too: old ones leave the window
                state.looked_s = scene.at_s
                worst = self._worst(model, scene.at_s)
                state.is_there = worst is not None
                if worst is not None:
                    state.cliff, state.activities = worst, dict(_activities(scene, frozenset(model.gpus())))
            since_s = self._held.feed(model.name, state.is_there, scene.at_s)
            if since_s is not None and state.cliff is not None:
                findings.append(_finding(model, state.cliff, state.activities, since_s))
        return findings

    def _worst(self, model: ModelLatencies, at_s: float) -> _Cliff | None:
        counts = {measure: model.contexts(measure, at_s) for measure in _NAMES}
        known = {measure: self._p95s(rows, measure) for measure, rows in counts.items()}
        steepest = max(
            (
                (pair.ratio, upper, int(signal))
                for signal in Signal
                for upper in range(1, len(CONTEXT_BUCKETS))
                if (pair := _pair(known[signal], upper)) is not None and is_cliff(pair, self._ratio, MEDIAN[signal])
            ),
            default=None,
        )
        if steepest is None:
            return None
        _, upper, signal = steepest
        pairs = {measure: pair for measure in _NAMES if (pair := _pair(known[measure], upper)) is not None}
        response = pairs.get(RESPONSE)
        first = RESPONSE if response is not None and response.ratio > self._ratio else signal
        pairs = {first: pairs[first]} | pairs
        requests = counts[RESPONSE].sum(axis=1)
        return _Cliff(upper, pairs, float(requests[upper:].sum() / max(int(requests.sum()), 1)))

    def _p95s(self, rows: NDArray[np.int64], measure: int) -> list[P95 | None]:
        counts = rows.sum(axis=1).tolist()
        return [self._p95(row, count, measure) for row, count in zip(rows, counts, strict=True)]

    def _p95(self, row: NDArray[np.int64], count: int, measure: int) -> P95 | None:
        if count < max(self._least[measure], 1):
            return None
        low_s, value_s, high_s, median_s = quantiles(row[None, :], shares(count, _ALIKE[measure]))[0].tolist()
        return P95(low_s, value_s, high_s, median_s, count)


def _pair(known: list[P95 | None], upper: int) -> Pair | None:
    before, beyond = known[upper - 1], known[upper]
    return None if before is None or beyond is None else Pair(before, beyond)


def _finding(model: ModelLatencies, cliff: _Cliff, activities: Mapping[str, float], since_s: float) -> Finding:
    told = next(iter(cliff.pairs))
    before_s, beyond_s = (each.value_s for each in cliff.pairs[told])
    evidence = [
        *(
            Evidence(f"{_NAMES[measure][0]}_p95", pair.beyond.value_s, Unit.SECONDS, pair.before.value_s)
            for measure, pair in cliff.pairs.items()
        ),
        Evidence("context_tokens", 512.0 * 2**cliff.upper, Unit.NONE),
        Evidence("share_beyond", cliff.share_beyond, Unit.RATIO),
        *(Evidence(f"{name}_active", activity, Unit.RATIO) for name, activity in activities.items()),
    ]
    state = "".join(f", {name.upper()} {percent(activity)}" for name, activity in activities.items())
    return Finding(
        "context_cliff",
        Entity("server", model.name),
        Severity.WARNING if cliff.share_beyond >= _FEW else Severity.INFO,
        since_s,
        f"{_NAMES[told][1]} P95 at contexts of {CONTEXT_BUCKETS[cliff.upper - 1]} → {CONTEXT_BUCKETS[cliff.upper]}: "
        f"{duration(before_s)} → {duration(beyond_s)} ({change(before_s, beyond_s)}){state}",
        tuple(evidence),
    )


def _activities(scene: Scene, uuids: frozenset[str]) -> Iterator[tuple[str, float]]:
    """Means over the GPUs and the last half minute, of what is known."""
    metrics: tuple[tuple[str, Metric], ...] = (
        ("dram", catalogue.GPU_DRAM_ACTIVE),
        ("sm", catalogue.GPU_SM_ACTIVE),
    )
    for name, metric in metrics:
        means = []
        for labels in scene.values(metric):
            if labels[1] in uuids:
                _, values = scene.window(metric, labels, scene.at_s - _ACTIVITY_S)
                means += [float(values.mean())] if len(values) else []
        if means:
            yield name, sum(means) / len(means)
