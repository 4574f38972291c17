"""OTLP logs and metrics: evaluation results out of the logs, and how many data points a metrics request has."""

from __future__ import annotations

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from gpumon.ingest import json_messages as messages
from gpumon.ingest import json_values
from gpumon.ingest.arrays import read_no_ints
from gpumon.ingest.attributes import cut, read_attributes, read_scalar, shortened
from gpumon.ingest.decode_limits import DEFAULT_LIMITS, DecodeLimits
from gpumon.ingest.failures import unreadable
from gpumon.ingest.json_decode import read_json, read_request, read_resource
from gpumon.ingest.records import Decoded, LogEvent, Resource, Scope, Value
from gpumon.ingest.schema import ProtobufError
from gpumon.ingest.spans import Resources, possible_ns

EVALUATION = "gen_ai.evaluation.result"
"""Name of the one log event that is kept."""

_EVENT_NAME = "event.name"
"""Attribute that named an event before log records had a field for it."""
_LOGS = msgspec.json.Decoder(list[messages.ResourceLogs] | None)
_METRICS = msgspec.json.Decoder(list[messages.ResourceMetrics] | None)
_POINTS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


def decode_logs(body: bytes, json: bool, limits: DecodeLimits = DEFAULT_LIMITS) -> Decoded:
    """Decode one ``ExportLogsServiceRequest``: evaluation results into ``logs``, the rest into ``ignored``.

    Raises:
        DecodeError: it cannot be read.
    """
    decoded = Decoded()
    if json:
        _read_json_logs(body, decoded, limits)
    else:
        _read_logs(body, decoded, limits)
    if decoded.rejected:
        decoded.message = f"{decoded.rejected_count} log records rejected: {', '.join(decoded.rejected)}"
    return decoded


def count_metrics(body: bytes, json: bool, limits: DecodeLimits = DEFAULT_LIMITS) -> int:
    """Data points in one ``ExportMetricsServiceRequest``; their values are not read.

    Raises:
        DecodeError: it cannot be read.
    """
    if json:
        return sum(
            len(points.data_points or ())
            for resource in read_json(_METRICS, read_request(body, limits).resource_metrics, "resourceMetrics") or ()
            for scope in resource.scope_metrics or ()
            for metric in scope.metrics or ()
            for kind in _POINTS
            if (points := getattr(metric, kind)) is not None
        )
    try:
        request = ExportMetricsServiceRequest.FromString(body)
    except ProtobufError as err:
        raise unreadable(body, "metrics") from err
    return sum(
        len(getattr(metric, kind).data_points)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if (kind := metric.WhichOneof("data")) is not None
    )


def _read_logs(body: bytes, decoded: Decoded, limits: DecodeLimits) -> None:
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except ProtobufError as err:
        raise unreadable(body, "logs") from err
    resources = Resources()
    cuts = decoded.truncated
    for resource_logs in request.resource_logs:
        resource = resources.read(resource_logs.resource, limits, read_no_ints)
        for scope_logs in resource_logs.scope_logs:
            message = scope_logs.scope
            scope = Scope(*(shortened(text, limits.max_name, cuts) for text in (message.name, message.version)))
            for record in scope_logs.log_records:
                names = (
                    read_scalar(pair.value)
                    for pair in record.attributes[: limits.max_attributes]
                    if pair.key == _EVENT_NAME
                )
                if record.event_name != EVALUATION and (record.event_name or EVALUATION not in names):
                    decoded.ignored += 1
                    continue
                attributes = read_attributes(record.attributes, limits, limits.max_attributes, cuts, read_no_ints)
                at_ns = record.time_unix_nano or record.observed_time_unix_nano
                _add(decoded, limits, resource, scope, (record.trace_id, record.span_id), at_ns, attributes)


def _read_json_logs(body: bytes, decoded: Decoded, limits: DecodeLimits) -> None:
    request = read_request(body, limits)
    resources = Resources()
    cuts = decoded.truncated
    for resource_logs in read_json(_LOGS, request.resource_logs, "resourceLogs") or ():
        resource = read_resource(resource_logs.resource, resources, limits)
        for scope_logs in resource_logs.scope_logs or ():
            scope = json_values.read_scope(scope_logs.scope, limits, cuts)
            for record in scope_logs.log_records or ():
                pairs = (record.attributes or [])[: limits.max_attributes]
                names = (json_values.read_scalar(pair.value) for pair in pairs if pair.key == _EVENT_NAME)
                if record.event_name != EVALUATION and (record.event_name or EVALUATION not in names):
                    decoded.ignored += 1
                    continue
                attributes = json_values.read_attributes(pairs, limits, limits.max_attributes, cuts)
                times = record.time_unix_nano, record.observed_time_unix_nano
                at_ns = next((at for time in times if (at := json_values.read_ns(time))), 0)
                ids = json_values.read_id(record.trace_id), json_values.read_id(record.span_id)
                _add(decoded, limits, resource, scope, ids, at_ns, attributes)


def _add(
    decoded: Decoded,
    limits: DecodeLimits,
    resource: Resource,
    scope: Scope,
    ids: tuple[bytes, bytes],
    at_ns: int,
    attributes: dict[str, Value],
) -> None:
    """Add an evaluation result; its ids may be absent (empty or all zero), but not of a wrong length."""
    trace_id, span_id = ids
    if len(trace_id) not in (0, 16) or len(span_id) not in (0, 8):
        cut(decoded.rejected, "bad_id")
    elif len(decoded.logs) >= limits.max_spans:
        cut(decoded.rejected, "too_many_logs")
    else:
        decoded.logs.append(
            LogEvent(
                resource=resource,
                scope=scope,
                trace_id=trace_id if any(trace_id) else None,
                span_id=span_id if any(span_id) else None,
                name=EVALUATION,
                at_ns=possible_ns(at_ns),
                attributes=attributes,
            )
        )
