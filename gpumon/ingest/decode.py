"""OTLP protobuf bodies to records: traces by the fast path, several requests per pass.

Requests are parsed one by one with span events left as bytes (``schema``); the token events of all of them are then
decoded together in numpy (``columns``), and so are int arrays (``arrays``): numpy's fixed cost per pass is that of some
hundred events. What numpy does not take (other events, odd encodings, small batches) is parsed by the official classes,
so the outcome is always that of ``walk``, which the tests hold it to.

Memory: the parse takes about as much as the body, the columns 22 bytes a token; events are read 16,384 at a time. A
body of nothing but empty messages is the worst: upb takes some 32 bytes for each of them (2 GiB for 64 MiB), before
any limit here can act. Whoever listens to strangers should take smaller bodies.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.ingest.arrays import ArrayGather, read_packed_ints
from gpumon.ingest.decode_limits import DEFAULT_LIMITS, DecodeLimits
from gpumon.ingest.failures import unreadable
from gpumon.ingest.gather import EventGather
from gpumon.ingest.records import STEP_SPAN_NAMES, Decoded, DecodeError
from gpumon.ingest.schema import ProtobufError, ReducedTraceRequest, raw_events
from gpumon.ingest.spans import Resources, SpanReader


def decode_traces(bodies: Sequence[bytes], limits: DecodeLimits = DEFAULT_LIMITS) -> list[Decoded | DecodeError]:
    """Decode ``ExportTraceServiceRequest`` bodies; one result per body, an error where it cannot be parsed."""
    gather = EventGather(limits)
    arrays = ArrayGather()
    resources = Resources()
    readers = [_read_body(body, SpanReader(limits, resources, read_packed_ints, arrays), gather) for body in bodies]
    arrays.finish()
    gather.finish()
    return [
        unreadable(body, "trace") if reader is None or reader in gather.unreadable else reader.finish()
        for body, reader in zip(bodies, readers, strict=True)
    ]


def _read_body(body: bytes, reader: SpanReader, gather: EventGather) -> SpanReader | None:
    """Read all spans of a body, their events into ``gather``; None where the body cannot be parsed."""
    try:
        _read_spans(ReducedTraceRequest.FromString(body), reader, gather)
        if not reader.saw_all:
            ExportTraceServiceRequest.FromString(body)  # the events too of spans that nobody looked at have to be sound
    except ProtobufError:
        return None
    return reader


def _read_spans(request: ExportTraceServiceRequest, reader: SpanReader, gather: EventGather) -> None:
    for resource_spans in reader.some_resources(request.resource_spans):
        resource = reader.resource(resource_spans.resource)
        for scope_spans in reader.some_scopes(resource_spans.scope_spans):
            scope = reader.scope(scope_spans.scope)
            for span in reader.some_spans(scope_spans.spans):
                name = span.name
                record = None
                if name not in STEP_SPAN_NAMES or not reader.read_step(resource, scope, name, span):
                    record = reader.read_span(resource, scope, name, span)
                events = raw_events(span)
                if events:
                    gather.add(reader, record, events)
    gather.end_of_body(reader)
