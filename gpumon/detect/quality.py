"""Answers that get worse while they get slower: ``quality_drop``.

From requests with evaluation scores, by prompt group (their prompt hash, or all prompts of a model where there is
none) and by evaluation. The newest five against those before: the median of the scores must have fallen by several
robust spreads, and with it the tokens per second of the same requests. A score that falls alone is the evaluator's or
the model's affair and nothing of this node's; a rate that falls alone is a latency shift. Rates are tokens over the
time from the first to the last; of requests that do not tell, over all their time.

A score that comes after its request's record was handed on is on the record all the same, but is not seen here.
Bounded: 64 groups, of which those without a request for longest are forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import ClassVar, Final

from gpumon.detect.detector import Entity, Evidence, Finding, IncidentKind, Severity
from gpumon.detect.hysteresis import Baseline
from gpumon.detect.scene import Scene
from gpumon.detect.spoken import change, figure
from gpumon.model import RequestRecord, Unit
from gpumon.requests.gaps import tokens_made

GROUPS: Final = 64
NEWEST: Final = 5
KEPT: Final = 60
LEAST: Final = 15
FORGET_S: Final = 600.0
_LEAST_SPREAD: Final = 0.02
"""Of the score before: scores that never vary have no spread."""
_BACK: Final = 0.5
"""Of the fall of the score, or of the rate: half of it regained is the end."""
_HASH: Final = 16


class _Group:
    """One evaluation of one prompt group of one model."""

    def __init__(self) -> None:
        self.scores = Baseline(KEPT, LEAST)
        self.rates = Baseline(KEPT, LEAST)
        self.newest: deque[tuple[float, float, float]] = deque(maxlen=NEWEST)
        """When it ended, score, tokens per second."""
        self.seen_s = 0.0
        self.since_s: float | None = None
        self.before: tuple[float, float] = (0.0, 0.0)
        """Score and rate, of the time before."""
        self.lowest: tuple[float, float] = (0.0, 0.0)
        """The same of the newest five, at their lowest since."""
        self.fallen: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """Scores and rates since."""


class QualityDrop:
    """Finds ``quality_drop``."""

    kinds: ClassVar[tuple[IncidentKind, ...]] = (
        IncidentKind(
            "quality_drop",
            "The median score of the newest five evaluated requests of a prompt group is below the median before by "
            "more than `deviations` robust spreads and more than `least_fall` of it, and that of their tokens per "
            "second by more than `slower`. Over when half of what either fell is regained and this is no longer so; a "
            "level that lasts `settled_s` is the new normal.",
            (Severity.WARNING,),
            "Compare what serves this group now with before: model and quantization, sampling parameters, truncated "
            "contexts, answers cut off by time-outs; an overloaded server may do both.",
            hold_s=30.0,
        ),
    )
    thresholds: ClassVar[Mapping[str, str]] = {
        "deviations": "1.4826 median absolute deviations of single scores; the median of five varies half as much.",
        "least_fall": "Ratio of the score.",
        "slower": "Ratio of tokens per second.",
        "settled_s": "Seconds after which a level is normal.",
    }

    def __init__(
        self, *, deviations: float = 3.0, least_fall: float = 0.05, slower: float = 0.1, settled_s: float = 900.0
    ) -> None:
        self._deviations = deviations
        self._least_fall = least_fall
        self._slower = slower
        self._settled_s = settled_s
        self._groups: OrderedDict[tuple[str, str, str], _Group] = OrderedDict()
        """By model, prompt group and evaluation; the one seen longest ago first."""

    def step(self, scene: Scene) -> Iterable[Finding]:
        for record in scene.requests:
            rate = _tokens_per_s(record) if record.evaluations else None
            if rate is None:
                continue
            for name, score in record.evaluations.items():
                if math.isfinite(score):
                    self._take(record, name, score, rate, scene)
        while self._groups and next(iter(self._groups.values())).seen_s < scene.at_s - FORGET_S:
            self._groups.popitem(last=False)
        return list(self._findings())

    def _take(self, record: RequestRecord, name: str, score: float, rate: float, scene: Scene) -> None:
        key = (f"{record.server}/{record.model}", record.prompt_hash, name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
            while len(self._groups) > GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        group.seen_s = scene.at_s
        if len(group.newest) == NEWEST and group.since_s is None:
            _, old_score, old_rate = group.newest[0]
            group.scores.feed(old_score)
            group.rates.feed(old_rate)
        group.newest.append((scene.to_steady(record.end_ns), score, rate))
        if group.since_s is not None:
            group.fallen.append((score, rate))
        if len(group.newest) == NEWEST:
            self._judge(group, scene.at_s)

    def _judge(self, group: _Group, at_s: float) -> None:
        score, rate = _medians([(each[1], each[2]) for each in group.newest])
        usual = self._fallen_from(group, score, rate)
        if group.since_s is None:
            if usual is not None:
                group.since_s = group.newest[0][0]
                group.before, group.lowest = usual, (score, rate)
                group.fallen.clear()
                group.fallen.extend((each[1], each[2]) for each in group.newest)
            return
        group.lowest = min(group.lowest[0], score), min(group.lowest[1], rate)
        is_back = any(
            now > before - _BACK * (before - lowest)
            for now, before, lowest in zip((score, rate), group.before, group.lowest, strict=True)
        )
        if is_back and usual is None:  # of a deep fall half is still one
            group.since_s = None
        elif at_s - group.since_s >= self._settled_s:
            group.since_s = None
            group.scores.clear()
            group.rates.clear()
            for fallen_score, fallen_rate in group.fallen:
                group.scores.feed(fallen_score)
                group.rates.feed(fallen_rate)

    def _fallen_from(self, group: _Group, score: float, rate: float) -> tuple[float, float] | None:
        """The usual score and rate, where these are far enough below."""
        usual_score, spread, usual_rate = group.scores.median, group.scores.spread, group.rates.median
        if usual_score is None or spread is None or usual_rate is None:
            return None
        least = max(
            self._deviations * max(spread, _LEAST_SPREAD * abs(usual_score)), self._least_fall * abs(usual_score)
        )
        is_fallen = usual_score - score > least and rate < (1 - self._slower) * usual_rate
        return (usual_score, usual_rate) if is_fallen else None

    def _findings(self) -> Iterator[Finding]:
        for (model, prompts, name), group in self._groups.items():
            if group.since_s is None:
                continue
            (score, rate), (before_score, before_rate) = _medians(group.fallen), group.before
            told = f"prompts {prompts[:_HASH]}" if prompts else "all prompts"
            yield Finding(
                "quality_drop",
                Entity("server", model),
                Severity.WARNING,
                group.since_s,
                f"{name} of {told}: score {figure(before_score)} → {figure(score)} at {figure(before_rate)} → "
                f"{figure(rate)} tokens/s ({change(before_rate, rate)})",
                (
                    Evidence("score", score, Unit.NONE, before_score),
                    Evidence("tokens_per_second", rate, Unit.NONE, before_rate),
                ),
            )


def _medians(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    scores, rates = zip(*pairs, strict=True)
    return median(scores), median(rates)


def _tokens_per_s(record: RequestRecord) -> float | None:
    """Of the answer; None where nobody counted its tokens or told how long it took."""
    tokens = tokens_made(record)
    if tokens is None or tokens <= 1:
        return None
    begun_ns = record.first_token_ns if record.first_token_ns is not None else record.start_ns
    seconds = (record.end_ns - begun_ns) / 1e9
    return (tokens - 1) / seconds if seconds > 0 else None
