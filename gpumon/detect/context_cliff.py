"""Contexts from which on a model's latency grows faster than its work: ``context_cliff``.

Along the doubling ladder of context lengths, from ``detect.recent``: P95 of the last ten minutes of one bucket against
that of the bucket before, of time to first token (by prompt) and inter-token latency (by prompt and tokens made). The
work of a prefill doubles from bucket to bucket, and attention adds to that; beyond ``ratio`` something else does. A few
slow requests must not look like a cliff: each bucket needs enough observations, and the ratio must hold, if less, for
the low end of what the longer bucket's P95 may be against the high end of the shorter one's.

One finding per model, of its worst pair, with the activity of its GPUs over the last half minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon import catalogue
from gpumon.catalogue import CONTEXT_BUCKETS
from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.hysteresis import Held
from gpumon.detect.recent import ModelLatencies
from gpumon.detect.scene import Scene
from gpumon.detect.spoken import change, duration
from gpumon.model import Metric, Unit
from gpumon.requests.logbuckets import quantiles
from gpumon.requests.windows import Signal

SHARE: Final = 0.95
EVERY_S: Final = 5.0
ON_S: Final = 10.0
OFF_S: Final = 60.0
_SURE: Final = 0.8
"""Of ``ratio``: what is left of it at the ends of the intervals."""
_DEVIATIONS: Final = 1.645
_ACTIVITY_S: Final = 30.0
_FEW: Final = 0.02
"""Share of a model's observations: fewer beyond the cliff are for information."""
_NAMES: Final = {Signal.FIRST_TOKEN: "time_to_first_token", Signal.INTER_TOKEN: "inter_token"}
_SPOKEN: Final = {Signal.FIRST_TOKEN: "time to first token", Signal.INTER_TOKEN: "inter-token latency"}
_ALIKE: Final = {Signal.FIRST_TOKEN: 1.0, Signal.INTER_TOKEN: 50.0}
"""Observations that count as one: the tokens of a request, or of a step, tell nearly the same."""


class _P95(NamedTuple):
    """Of one bucket, with the ends of its 90 % interval."""

    low_s: float
    value_s: float
    high_s: float
    observations: int


class _Cliff(NamedTuple):
    """Between two buckets."""

    signal: Signal
    upper: int
    """Position of the longer one."""
    before: _P95
    beyond: _P95
    share_beyond: float
    """Of the model's observations, at or beyond the longer bucket."""

    @property
    def ratio(self) -> float:
        return self.beyond.value_s / self.before.value_s


@dataclass(slots=True)
class _Model:
    looked_s: float = float("-inf")
    version: int = -1
    cliff: _Cliff | None = None
    """The worst one, as last looked; kept while the finding is held."""
    is_there: bool = False


class ContextCliff:
    """Finds ``context_cliff``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "context_cliff",
            "P95 of a model's time to first token, or of its inter-token latency, in one bucket of context lengths is "
            "over `ratio` times that in the bucket before, with at least `least_requests` requests or `least_tokens` "
            "tokens of the last ten minutes in both, and not by chance.",
            (Severity.WARNING, Severity.INFO),
            "Serve contexts beyond the cliff elsewhere or refuse them (`max_model_len`); else look there for what runs "
            "out: KV cache and preemptions, memory bandwidth (DRAM activity), chunked prefill, a slower attention "
            "kernel.",
            hold_s=60.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "ratio": "Of P95 to that of contexts half as long; DESIGN §6. The work doubles, attention adds to it.",
        "least_requests": "Requests in each of the two buckets.",
        "least_tokens": "Tokens in each of the two buckets.",
    }

    def __init__(self, *, ratio: float = 2.5, least_requests: int = 20, least_tokens: int = 2000) -> None:
        self._ratio = ratio
        self._least = {Signal.FIRST_TOKEN: least_requests, Signal.INTER_TOKEN: least_tokens}
        self._models: dict[str, _Model] = {}
        self._held: Held[str] = Held(on_s=ON_S, off_s=OFF_S)

    def step(self, scene: Scene) -> Iterable[Finding]:
        models = scene.latencies.models()
        self._models = {model.name: self._models.get(model.name) or _Model() for model in models}
        self._held.keep(self._models)
        findings: list[Finding] = []
        for model in models:
            state = self._models[model.name]
            if scene.at_s - state.looked_s >= EVERY_S and model.version != state.version:
                state.looked_s, state.version = scene.at_s, model.version
                worst = max(
                    (cliff for signal in Signal for cliff in self._cliffs(model, signal)), key=_by_ratio, default=None
                )
                state.is_there = worst is not None
                state.cliff = worst or state.cliff
            since_s = self._held.feed(model.name, state.is_there, scene.at_s)
            if since_s is not None and state.cliff is not None:
                findings.append(_finding(scene, model, state.cliff, since_s))
        return findings

    def _cliffs(self, model: ModelLatencies, signal: Signal) -> Iterable[_Cliff]:
        rows = model.contexts(signal)
        counts = rows.sum(axis=1)
        known = [self._p95(rows[i], int(counts[i]), signal) for i in range(len(CONTEXT_BUCKETS))]
        for upper in range(1, len(known)):
            before, beyond = known[upper - 1], known[upper]
            if before is None or beyond is None:
                continue
            sure = beyond.low_s > _SURE * self._ratio * before.high_s
            if sure and beyond.value_s > self._ratio * before.value_s:
                yield _Cliff(signal, upper, before, beyond, float(counts[upper:].sum() / counts.sum()))

    def _p95(self, row: NDArray[np.int64], count: int, signal: Signal) -> _P95 | None:
        if count < max(self._least[signal], 1):
            return None
        margin = _DEVIATIONS * float(np.sqrt(SHARE * (1 - SHARE) * _ALIKE[signal] / count))
        shares = (max(SHARE - margin, 0.0), SHARE, min(SHARE + margin, 1.0))
        low_s, value_s, high_s = quantiles(row[None, :], shares)[0].tolist()
        return _P95(low_s, value_s, high_s, count)


def _by_ratio(cliff: _Cliff) -> float:
    return cliff.ratio


def _finding(scene: Scene, model: ModelLatencies, cliff: _Cliff, since_s: float) -> Finding:
    before_s, beyond_s = cliff.before.value_s, cliff.beyond.value_s
    lower, upper = CONTEXT_BUCKETS[cliff.upper - 1], CONTEXT_BUCKETS[cliff.upper]
    evidence = [
        Evidence(f"{_NAMES[cliff.signal]}_p95", beyond_s, Unit.SECONDS, before_s),
        Evidence("context_tokens", 512.0 * 2**cliff.upper, Unit.NONE),
        Evidence("observations", float(cliff.beyond.observations), Unit.NONE, float(cliff.before.observations)),
        Evidence("share_beyond", cliff.share_beyond, Unit.RATIO),
    ]
    told = []
    for name, spoken, metric in (
        ("dram_active", "DRAM", catalogue.GPU_DRAM_ACTIVE),
        ("sm_active", "SM", catalogue.GPU_SM_ACTIVE),
    ):
        activity = _activity(scene, metric, frozenset(model.gpus()))
        if activity is not None:
            evidence.append(Evidence(name, activity, Unit.RATIO))
            told.append(f", {spoken} {activity:.0%}")
    return Finding(
        "context_cliff",
        Entity("server", model.name),
        Severity.WARNING if cliff.share_beyond >= _FEW else Severity.INFO,
        since_s,
        f"{_SPOKEN[cliff.signal]} P95 at contexts of {lower} → {upper}: {duration(before_s)} → {duration(beyond_s)} "
        f"({change(before_s, beyond_s)}){''.join(told)}",
        tuple(evidence),
    )


def _activity(scene: Scene, metric: Metric, uuids: frozenset[str]) -> float | None:
    """Mean over GPUs and the last half minute; None where nothing is known."""
    means = []
    for labels in scene.values(metric):
        if labels[1] in uuids:
            _, values = scene.window(metric, labels, scene.at_s - _ACTIVITY_S)
            means += [float(values.mean())] if len(values) else []
    return sum(means) / len(means) if means else None
