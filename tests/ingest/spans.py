"""Export requests for the receivers' tests, built with the official classes."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

START_NS = 1_795_953_600_000_000_000
TRACE_ID = bytes.fromhex("5b8efff798038103d269b633813fc60c")
NO_SPANS = b""
PROMPT = "the-secret-prompt-nobody-may-see"


def span(number: int = 1, **fields: Any) -> Span:
    """A valid request span; ``fields`` override."""
    given: dict[str, Any] = {
        "trace_id": TRACE_ID,
        "span_id": number.to_bytes(8, "big"),
        "name": "llm_request",
        "kind": Span.SPAN_KIND_SERVER,
        "start_time_unix_nano": START_NS,
        "end_time_unix_nano": START_NS + 10**9,
    }
    return Span(**(given | fields))


def message(*spans: Span) -> ExportTraceServiceRequest:
    """The spans in one envelope."""
    scope_spans = ScopeSpans(spans=spans)
    scope_spans.scope.name = "vllm.tracing.otel"
    resource_spans = ResourceSpans(scope_spans=[scope_spans])
    resource_spans.resource.attributes.append(text("service.name", "vllm"))
    return ExportTraceServiceRequest(resource_spans=[resource_spans])


def body(*spans: Span) -> bytes:
    """A protobuf body with these spans, or with one valid one."""
    return message(*(spans or (span(),))).SerializeToString()


def json_body(**changes: Any) -> bytes:
    """A JSON body with one valid span, whose JSON fields ``changes`` override; None leaves a field out."""
    fields: dict[str, Any] = {
        "traceId": TRACE_ID.hex(),
        "spanId": "eee19b7ec3c1b171",
        "name": "llm_request",
        "kind": 2,
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": str(START_NS + 10**9),
    }
    kept = {key: value for key, value in (fields | changes).items() if value is not None}
    scope_spans = [{"scope": {"name": "vllm.tracing.otel"}, "spans": [kept]}]
    return json.dumps({"resourceSpans": [{"scopeSpans": scope_spans}]}).encode()


def decode_loops(count: int) -> bytes:
    """Vector T16: so many of SGLang's step spans, each with its ``schedule`` event, in one request."""
    spans = []
    for number in range(1, count + 1):
        at = START_NS + number * 20_000_000
        one = span(
            number,
            trace_id=bytes(8) + TRACE_ID[:8],
            parent_span_id=TRACE_ID[:8],
            name="decode_loop",
            kind=Span.SPAN_KIND_INTERNAL,
            flags=256,
            start_time_unix_nano=at,
            end_time_unix_nano=at + 18_000_000,
            attributes=[KeyValue(key="decode_ct", value=AnyValue(int_value=number))],
        )
        event = one.events.add(time_unix_nano=at, name="schedule")
        event.attributes.append(KeyValue(key="bid", value=AnyValue(int_value=71)))
        event.attributes.append(KeyValue(key="batch_size", value=AnyValue(int_value=16)))
        event.attributes.append(text("forward_mode", "DECODE"))
        spans.append(one)
    return body(*spans)


def text(key: str, value: str) -> KeyValue:
    """A text attribute."""
    return KeyValue(key=key, value=AnyValue(string_value=value))


def as_json(data: bytes) -> Any:
    """A JSON answer."""
    return json.loads(data)
