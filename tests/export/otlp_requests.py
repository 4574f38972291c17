"""OTLP requests for tests, made of the official classes."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

START_NS = 1_800_000_000_000_000_000


def trace_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def span_id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def traces(first: int, spans: int = 1, *, events: int = 0, trace: int | None = None) -> ExportTraceServiceRequest:
    """Spans with ids from ``first`` on, each in a trace of its own unless told."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "vllm"
    resource.schema_url = "https://opentelemetry.io/schemas/1.30.0"
    scope = resource.scope_spans.add()
    scope.scope.name = "vllm.tracing.otel"
    for number in range(first, first + spans):
        span = scope.spans.add()
        span.trace_id = trace_id(number if trace is None else trace)
        span.span_id = span_id(number)
        span.name = "llm_request"
        span.kind = span.SPAN_KIND_SERVER
        span.start_time_unix_nano = START_NS
        span.end_time_unix_nano = START_NS + 1_000_000_000
        span.attributes.add(key="gen_ai.request.model").value.string_value = "llama"
        for event in range(events):
            token = span.events.add(name="gen_ai.token.generated", time_unix_nano=START_NS + event)
            token.attributes.add(key="latency_us").value.int_value = event
    return request


def logs(records: int = 1) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for number in range(records):
        record = scope.log_records.add(severity_number=9, trace_id=trace_id(number + 1), span_id=span_id(number + 1))
        record.body.string_value = "a line"
    return request


def metrics(count: int = 1) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    for number in range(count):
        metric = scope.metrics.add(name=f"m{number}")
        metric.gauge.data_points.add(as_double=1.5)
    return request


def as_json(request: Message) -> bytes:
    """OTLP JSON: hexadecimal ids, enums as numbers."""

    def fix(tree: Any) -> Any:
        if isinstance(tree, list):
            return [fix(entry) for entry in tree]
        if isinstance(tree, dict):
            return {
                key: base64.b64decode(value).hex() if key in ("traceId", "spanId", "parentSpanId") else fix(value)
                for key, value in tree.items()
            }
        return tree

    return json.dumps(fix(MessageToDict(request, use_integers_for_enums=True))).encode()
