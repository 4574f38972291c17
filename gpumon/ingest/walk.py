"""Traces decoded field by field with the official protobuf classes: plain, slow, and the oracle of the fast path."""

from __future__ import annotations

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from gpumon.ingest.arrays import read_no_ints
from gpumon.ingest.attributes import count_of, cut, latency_of, read_scalar
from gpumon.ingest.columns import MAX_ATTRIBUTES
from gpumon.ingest.decode_limits import DEFAULT_LIMITS, DecodeLimits
from gpumon.ingest.failures import unreadable
from gpumon.ingest.records import (
    STEP_SPAN_NAMES,
    TOKEN_COUNT,
    TOKEN_EVENT_NAMES,
    TOKEN_LATENCY_US,
    Decoded,
    EventRecord,
    SpanRecord,
    TokenColumns,
)
from gpumon.ingest.schema import ProtobufError
from gpumon.ingest.spans import Resources, SpanReader, possible_ns


def decode_traces_walk(body: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> Decoded:
    """Decode one ``ExportTraceServiceRequest``.

    Raises:
        DecodeError: it cannot be parsed.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except ProtobufError as err:
        raise unreadable(body, "trace") from err
    reader = SpanReader(limits, Resources(), read_no_ints)
    for resource_spans in reader.some_resources(request.resource_spans):
        resource = reader.resource(resource_spans.resource)
        for scope_spans in reader.some_scopes(resource_spans.scope_spans):
            scope = reader.scope(scope_spans.scope)
            for span in reader.some_spans(scope_spans.spans):
                if span.name in STEP_SPAN_NAMES and reader.read_step(resource, scope, span.name, span):
                    continue
                record = reader.read_span(resource, scope, span.name, span)
                if record is not None:
                    _add_events(reader, record, span, limits)
    return reader.finish()


def token_of(event: trace_pb2.Span.Event) -> tuple[int, int, float | None]:
    """Time (ns), tokens and latency (µs) of a token event."""
    count: int | None = None
    latency: float | None = None
    for pair in event.attributes[:MAX_ATTRIBUTES]:
        key = pair.key
        if key == TOKEN_COUNT:
            count = count_of(read_scalar(pair.value))
        elif key == TOKEN_LATENCY_US:
            latency = latency_of(read_scalar(pair.value))
    return possible_ns(event.time_unix_nano), 1 if count is None else count, latency


def token_columns(tokens: list[tuple[int, int, float | None]]) -> TokenColumns | None:
    """Columns of (time, tokens, latency); None where there are none."""
    if not tokens:
        return None
    counts = [count for _, count, _ in tokens]
    latencies = [latency for _, _, latency in tokens if latency is not None]
    return TokenColumns(
        np.array([at for at, _, _ in tokens], np.int64),
        np.array(counts, np.int32) if any(count != 1 for count in counts) else None,
        np.array(latencies, np.float64) if len(latencies) == len(tokens) else None,
    )


def _add_events(reader: SpanReader, record: SpanRecord, span: trace_pb2.Span, limits: DecodeLimits) -> None:
    tokens: list[tuple[int, int, float | None]] = []
    others: list[EventRecord] = []
    for event in span.events:
        if event.name in TOKEN_EVENT_NAMES:
            if len(tokens) < limits.max_token_events:
                tokens.append(token_of(event))
            else:
                cut(reader.decoded.truncated, "tokens")
        elif len(others) < limits.max_events:
            others.append(reader.read_event(event))
        else:
            cut(reader.decoded.truncated, "events")
    record.events = others
    record.tokens = token_columns(tokens)
