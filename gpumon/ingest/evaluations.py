"""Scores of answers (``gen_ai.evaluation.result``), tied to the request they judge.

They come as an event on a span, as attributes of a span, or as an OTLP log record, before the request's record is
finished or long after. The request is found by its trace, by the response's id, or by the inference id, for ten
minutes either way by default. Only name and finite score are kept; an explanation would quote the answer.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpumon.ingest.adapters.values import number, text
from gpumon.ingest.records import Value
from gpumon.model import RequestRecord

EVENT = "gen_ai.evaluation.result"
_NAME = "gen_ai.evaluation.name"
_SCORE = "gen_ai.evaluation.score.value"
_RESPONSE_ID = "gen_ai.response.id"
_INFERENCE_IDS = ("inference_id", "gen_ai.inference.id")
_MAX_NAMES = 16
"""Most scores of one request."""
STATES = ("attached", "unmatched", "invalid")

_Key = tuple[str, str | bytes]


class Evaluated(NamedTuple):
    """A score that came after its request's record was handed out."""

    server: str
    model: str
    name: str
    score: float


class _Waiting(NamedTuple):
    until_s: float
    name: str
    score: float


class _Known(NamedTuple):
    until_s: float
    evaluations: dict[str, float]
    server: str
    model: str


class Evaluations:
    """Scores and requests that wait for each other.

    window_s: how long. size: most keys of waiting scores, and half of those of requests, each of which has up to three;
    the oldest are forgotten.
    """

    def __init__(self, window_s: float = 600.0, size: int = 8192) -> None:
        self._window_s = window_s
        self._size = size
        self._waiting: OrderedDict[_Key, list[_Waiting]] = OrderedDict()
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._late: list[Evaluated] = []
        self.counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))

    def add(self, attributes: Mapping[str, Value], trace_id: bytes | None, at_s: float) -> None:
        """A score was told. trace_id: of the span or log record that told it."""
        name = text(attributes.get(_NAME))
        score = number(attributes.get(_SCORE))
        if not name or score is None or not math.isfinite(score):
            self.counts["invalid"] += 1
            return
        keys = _keys(trace_id, text(attributes.get(_RESPONSE_ID)), _inference_id(attributes))
        for key in keys:
            known = self._known.get(key)
            if known is not None and known.until_s >= at_s:
                if len(known.evaluations) < _MAX_NAMES or name in known.evaluations:
                    known.evaluations[name] = score
                    self._late.append(Evaluated(known.server, known.model, name, score))
                    del self._late[: -self._size]
                self.counts["attached"] += 1
                return
        if not keys:
            self.counts["unmatched"] += 1
            return
        # The most exact key alone: a judge's own trace is not that of the request it judges.
        waiting = self._waiting.setdefault(keys[0], [])
        if len(waiting) < _MAX_NAMES:
            waiting.append(_Waiting(at_s + self._window_s, name, score))
        else:
            self.counts["unmatched"] += 1
        if len(self._waiting) > self._size:
            _, lost = self._waiting.popitem(last=False)
            self.counts["unmatched"] += len(lost)

    def attach(self, record: RequestRecord, at_s: float) -> None:
        """A record is finished: give it the scores that wait for it, and remember it for later ones."""
        known = _Known(at_s + self._window_s, record.evaluations, record.server, record.model)
        for key in _keys(record.trace_id, record.request_id, record.inference_id):
            for waiting in self._waiting.pop(key, ()):
                record.evaluations[waiting.name] = waiting.score
                self.counts["attached"] += 1
            self._known[key] = known
            self._known.move_to_end(key)
        while len(self._known) > 2 * self._size:
            self._known.popitem(last=False)

    def expire(self, at_s: float) -> None:
        """Forget what waited too long."""
        while self._waiting:
            key = next(iter(self._waiting))
            if self._waiting[key][0].until_s >= at_s:
                break
            self.counts["unmatched"] += len(self._waiting.pop(key))
        while self._known and next(iter(self._known.values())).until_s < at_s:
            self._known.popitem(last=False)

    def take_late(self) -> list[Evaluated]:
        """Scores attached to records already handed out, since the last call."""
        late, self._late = self._late, []
        return late


def evaluation_of(attributes: Mapping[str, Value]) -> bool:
    """Whether a span's own attributes are a score."""
    return _SCORE in attributes


def _inference_id(attributes: Mapping[str, Value]) -> str:
    return next((told for name in _INFERENCE_IDS if (told := text(attributes.get(name)))), "")


def _keys(trace_id: bytes | None, response_id: str, inference_id: str) -> list[_Key]:
    keys: Iterable[_Key] = (("inference", inference_id), ("response", response_id), ("trace", trace_id or b""))
    return [key for key in keys if key[1]]
