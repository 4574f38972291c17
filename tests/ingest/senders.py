"""What servers send, made with the official SDK and encoder, and decoded by gpumon: the tests' inference servers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

from gpumon.ingest.assembly import Assembler
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.records import Decoded
from gpumon.model import RequestRecord

T0 = 1_795_953_600_000_000_000
"""2026-11-29T12:00:00Z."""
MS = 1_000_000
NOW_S = 5000.0
"""Steady time at which the tests' spans arrive, half a minute after T0."""

Event = tuple[str, int, Mapping[str, Any]]


def to_steady(unix_ns: int) -> float:
    return (unix_ns - T0) / 1e9 + NOW_S - 30.0


class Ids(IdGenerator):
    """SGLang's: trace ids of 64 random bits, the upper eight bytes zero."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(64)

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64)


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class Sender:
    """One process that traces. ``spans`` in the order in which they ended, as a batch processor exports them."""

    def __init__(
        self,
        scope: str,
        resource: Mapping[str, Any] | None = None,
        ids: IdGenerator | None = None,
        limits: SpanLimits | None = None,
    ) -> None:
        self._ended = _Ended()
        provider = TracerProvider(
            resource=Resource(dict(resource or {})),
            id_generator=ids,
            span_limits=limits or SpanLimits(max_events=100_000),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._ended)
        self.tracer = provider.get_tracer(scope)

    @property
    def spans(self) -> list[ReadableSpan]:
        return self._ended.spans

    def start(
        self,
        name: str,
        start_ns: int,
        *,
        parent: Span | SpanContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
    ) -> Span:
        span = self.tracer.start_span(
            name, context=_context(parent), kind=kind, start_time=start_ns, attributes=attributes
        )
        assert isinstance(span, Span)
        return span

    def span(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        parent: Span | SpanContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        error: bool = False,
    ) -> Span:
        span = self.start(name, start_ns, parent=parent, kind=kind, attributes=attributes)
        for event_name, at_ns, event_attributes in events:
            span.add_event(event_name, event_attributes, at_ns)
        if error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)
        return span


def _context(parent: Span | SpanContext | None) -> Context:
    if parent is None:
        return Context()
    if isinstance(parent, SpanContext):
        return set_span_in_context(NonRecordingSpan(parent), Context())
    return set_span_in_context(parent, Context())


def decode(spans: Sequence[ReadableSpan]) -> Decoded:
    """One request's body with these spans, decoded."""
    [decoded] = decode_traces([encode_spans(spans).SerializeToString()])
    assert isinstance(decoded, Decoded), decoded
    assert not decoded.rejected
    return decoded


def assemble(
    *batches: Sequence[ReadableSpan], assembler: Assembler | None = None, later_s: float = 10.0
) -> list[RequestRecord]:
    """The records of batches that arrive one after the other, ``later_s`` after the last."""
    assembler = assembler or Assembler()
    for batch in batches:
        assembler.add(decode(batch), "10.0.0.7:40000", NOW_S, to_steady)
    return assembler.tick(NOW_S + later_s)


def dropped(assembler: Assembler) -> dict[str, float]:
    """What was dropped, by reason, without the zeros."""
    return counts(assembler, "gpumon_spans_dropped_total")


def counts(assembler: Assembler, name: str) -> dict[str, Any]:
    """Samples of a family by its labels, without the zeros."""
    found = [sample for sample in assembler.samples() if sample.metric.name == name and sample.value]
    return {sample.labels[0] if len(sample.labels) == 1 else sample.labels: sample.value for sample in found}  # type: ignore[misc]
