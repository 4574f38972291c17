"""OTLP JSON into OTLP protobuf, by the official classes: what came as JSON is forwarded as protobuf.

Ids are hexadecimal in OTLP's JSON, where protobuf's own JSON has base64 and would silently decode them to something
else; they are rewritten before. An id that is not hexadecimal becomes empty, so that its span is left out as one
without a valid id. Unknown fields are ignored, as OTLP demands of every receiver: they are the one thing lost.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.export.forward_schema import EditError
from gpumon.ingest.request import Signal

_REQUESTS: dict[Signal, type[Message]] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
_LISTS = {
    Signal.TRACES: ("resourceSpans", "scopeSpans", "spans"),
    Signal.METRICS: ("resourceMetrics", "scopeMetrics", "metrics"),
    Signal.LOGS: ("resourceLogs", "scopeLogs", "logRecords"),
}
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})
"""As names of fields; attributes have theirs in a field called key, so no attribute can be one of these."""


def to_protobuf(signal: Signal, body: bytes) -> bytes:
    """The request on the protobuf wire.

    Raises:
        EditError: it is not OTLP JSON.
    """
    try:
        tree = json.loads(body)
        if not isinstance(tree, dict):
            raise EditError("not a JSON object")
        _rewrite_ids(tree)
        request = _REQUESTS[signal]()
        json_format.ParseDict(tree, request, ignore_unknown_fields=True)
        return request.SerializeToString()
    except (ValueError, json_format.ParseError, RecursionError, ProtobufError) as error:
        raise EditError("not OTLP JSON") from error  # without the parser's words, which quote values


def count_items(signal: Signal, body: bytes) -> int:
    """Spans, log records or metrics in a JSON request, by its shape alone.

    Raises:
        EditError: it has another shape.
    """
    resources, scopes, items = _LISTS[signal]
    try:
        return sum(
            len(scope.get(items, ()))
            for resource in json.loads(body).get(resources, ())
            for scope in resource.get(scopes, ())
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EditError("not OTLP JSON") from error


def _rewrite_ids(tree: Any) -> None:  # noqa: ANN401 - any JSON value
    if isinstance(tree, list):
        for entry in tree:
            _rewrite_ids(entry)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if key in _IDS and isinstance(value, str):
                tree[key] = _base64_of(value)
            elif isinstance(value, dict | list):
                _rewrite_ids(value)


def _base64_of(text: str) -> str:
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except ValueError:
        return ""
