"""Bodies for ``benchmarks.ingest``: as many OTLP requests as one likes, each with ids that were never sent before.

A request is serialised once, with a mark in place of each id; a fresh copy of it has its marks written over. So the
load generator costs a copy of the bytes, and no receiver gets away with having seen it all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

BEFORE_NS = 20_000_000_000
"""The spans' start, before this process began: they have ended when they are sent, and are no old news."""
START_NS = time.time_ns() - BEFORE_NS
SPAN_NS = 15_000_000_000


@dataclass
class Template:
    """A body and the places of its ids: eight bytes each, of which those in one row are the same id."""

    body: NDArray[np.uint8]
    places: list[NDArray[np.intp]]
    """By id: positions of its bytes, shape (occurrences, 8)."""
    tokens: int
    """Tokens (of the step form: step spans) in the body."""
    spans: int

    def fresh(self, random: np.random.Generator) -> bytes:
        """The body with new ids."""
        once, repeated = self._once, self._repeated
        body = self.body.copy()
        body[once] = random.integers(1, 256, once.shape, np.uint8)
        for places in repeated:
            body[places] = random.integers(1, 256, 8, np.uint8)
        return body.tobytes()

    def __post_init__(self) -> None:
        self._once = np.concatenate(
            [places for places in self.places if len(places) == 1] or [np.empty((0, 8), np.intp)]
        )
        self._repeated = [places for places in self.places if len(places) > 1]


class _Marks:
    """Hands out ids that can be found again."""

    def __init__(self) -> None:
        self._random = Random(1)
        self.ids: list[bytes] = []

    def new(self) -> bytes:
        self.ids.append(self._random.randbytes(8))
        return self.ids[-1]

    def template(self, request: ExportTraceServiceRequest, tokens: int) -> Template:
        raw = request.SerializeToString()
        places = []
        for mark in self.ids:
            at = [raw.find(mark)]
            while (found := raw.find(mark, at[-1] + 1)) >= 0:
                at.append(found)
            places.append(np.array(at)[:, None] + np.arange(8))
        spans = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
        return Template(np.frombuffer(raw, np.uint8), places, tokens, spans)


def events(spans: int, tokens: int, seed: int = 0) -> Template:
    """Requests with an event for each token, by our own contract."""
    random, marks = Random(seed), _Marks()
    request, scope = _request("gpumon.tokens")
    for _ in range(spans):
        span = _span(scope, marks.new() + bytes(8), marks.new(), "gen_ai.request", Span.SPAN_KIND_SERVER)
        _describe(span, tokens)
        at_ns = START_NS
        for _ in range(tokens):
            at_ns += random.randrange(10_000_000, 30_000_000)
            event = span.events.add(name="gen_ai.token.generated", time_unix_nano=at_ns)
            _put(event.attributes.add(), "gen_ai.token.count", 1)
        span.end_time_unix_nano = at_ns
    return marks.template(request, spans * tokens)


def compact(spans: int, tokens: int, seed: int = 0) -> Template:
    """Requests with all token times in one attribute."""
    random, marks = Random(seed), _Marks()
    request, scope = _request("gpumon.tokens")
    for _ in range(spans):
        span = _span(scope, marks.new() + bytes(8), marks.new(), "gen_ai.request", Span.SPAN_KIND_SERVER)
        _describe(span, tokens)
        times = span.attributes.add(key="gen_ai.token.times_ns").value.array_value.values
        since_ns = 0
        for _ in range(tokens):
            since_ns += random.randrange(10_000_000, 30_000_000)
            times.add(int_value=since_ns)
        span.end_time_unix_nano = START_NS + since_ns
    return marks.template(request, spans * tokens)


class Sglang:
    """A server like SGLang: its ranks' step spans in batches, the requests' own spans when they end.

    One rank here: what is measured is the cost of a span, and the others only send more of the same.
    """

    def __init__(self, requests: int, steps: int, batch: int) -> None:
        """requests: that run at once; each has ``steps`` steps. batch: spans of an export."""
        self._requests, self._steps, self._batch = requests, steps, batch

    def round(self, random: np.random.Generator) -> list[bytes]:
        """The exports of all requests from beginning to end: the steps, then the spans above them."""
        ids = [tuple(random.bytes(8) for _ in range(4)) for _ in range(self._requests)]
        bodies = []
        request, scope = _request("sglang server")
        for step in range(self._steps):
            for trace, _, _, forward in ids:
                at_ns = START_NS + step * 20_000_000
                span = _step(scope, trace, random.bytes(8), forward, at_ns)
                _put(span.attributes.add(), "decode_ct", step)
                schedule = span.events.add(name="schedule", time_unix_nano=at_ns)
                for key, value in (("bid", 71), ("batch_size", 64), ("forward_mode", "DECODE")):
                    _put(schedule.attributes.add(), key, value)
                if len(scope.spans) == self._batch:
                    bodies.append(request.SerializeToString())
                    request, scope = _request("sglang server")
        for trace, root, scheduler, forward in ids:
            for parent, own, name in ((scheduler, forward, "decode_forward"), (root, scheduler, "Scheduler")):
                span = _span(scope, bytes(8) + trace, own, name, Span.SPAN_KIND_INTERNAL)
                span.parent_span_id = parent
                if name == "Scheduler":
                    _put(span.attributes.add(), "tp_rank", 0)
            span = _span(scope, bytes(8) + trace, root, " Req 01234567", Span.SPAN_KIND_INTERNAL)
            _put(span.attributes.add(), "rid", root.hex())
            _describe(span, self._steps)
        bodies.append(request.SerializeToString())
        return bodies

    @property
    def spans(self) -> int:
        """Step spans of a round."""
        return self._requests * self._steps


def _request(scope_name: str) -> tuple[ExportTraceServiceRequest, ScopeSpans]:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    _put(resource.resource.attributes.add(), "service.name", "benchmark")
    scope = resource.scope_spans.add()
    scope.scope.name = scope_name
    return request, scope


def _span(scope: ScopeSpans, trace_id: bytes, span_id: bytes, name: str, kind: Span.SpanKind.ValueType) -> Span:
    return scope.spans.add(
        trace_id=trace_id,
        span_id=span_id,
        name=name,
        kind=kind,
        flags=0x100,
        start_time_unix_nano=START_NS,
        end_time_unix_nano=START_NS + SPAN_NS,
    )


def _step(scope: ScopeSpans, trace: bytes, span_id: bytes, parent: bytes, at_ns: int) -> Span:
    span = _span(scope, bytes(8) + trace, span_id, "decode_loop", Span.SPAN_KIND_INTERNAL)
    span.parent_span_id = parent
    span.start_time_unix_nano, span.end_time_unix_nano = at_ns, at_ns + 19_000_000
    return span


def _describe(span: Span, tokens: int) -> None:
    _put(span.attributes.add(), "gen_ai.request.model", "llama-3.1-8b")
    _put(span.attributes.add(), "gen_ai.usage.input_tokens", 1000)
    _put(span.attributes.add(), "gen_ai.usage.output_tokens", tokens)


def _put(pair: KeyValue, key: str, value: str | int) -> None:
    pair.key = key
    if isinstance(value, str):
        pair.value.string_value = value
    else:
        pair.value.int_value = value
