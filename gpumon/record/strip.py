"""What of an OTLP request is recorded: what gpumon's decoders read, and no text of prompts or completions.

Left out, wherever they stand: the attributes that ``ingest.attributes.is_dropped`` names, texts of exceptions, values
that are maps or bytes, log bodies, status texts, trace states, attributes of links, of scopes and of log records that
are no evaluation results, and every field that is unknown. Texts are cut a character after the decoders' limit. Of
metrics only their number is recorded. So a replay decodes to the records that the request itself did.

Protobuf is edited in the official classes; JSON is parsed into the decoders' own messages, which have no place for
anything else, and written anew.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence

import msgspec
from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon.ingest import json_messages as messages
from gpumon.ingest.attributes import is_dropped
from gpumon.ingest.decode_limits import DEFAULT_LIMITS
from gpumon.ingest.json_decode import read_json, read_request
from gpumon.ingest.records import DecodeError
from gpumon.ingest.request import Signal
from gpumon.ingest.signals import EVALUATION, count_metrics

Replace = Callable[[str, str], str]
"""From an attribute's name and its text to the text that is recorded."""

_MOST_TEXT = DEFAULT_LIMITS.max_text + 1
_EVENT_NAME = "event.name"
_FREE_TEXTS = frozenset({"exception.message", "exception.stacktrace"})
"""Nothing reads them, and a server's error may quote a request."""
_KEPT_KINDS = frozenset({"string_value", "int_value", "double_value", "bool_value"})
_SPANS = msgspec.json.Decoder(list[messages.ResourceSpans] | None)
_LOGS = msgspec.json.Decoder(list[messages.ResourceLogs] | None)


def strip(signal: Signal, body: bytes, is_json: bool, replace: Replace | None = None) -> tuple[bytes, int]:
    """What is recorded of a request: its body, and how many data points it had if it is one of metrics.

    Raises DecodeError for what cannot be read.
    """
    replace = replace or _as_it_is
    if signal is Signal.METRICS:
        return b"", count_metrics(body, is_json)
    try:
        if signal is Signal.TRACES:
            return (_json_traces(body, replace) if is_json else _traces(body, replace)), 0
        return (_json_logs(body, replace) if is_json else _logs(body, replace)), 0
    except (ProtobufError, UnicodeError) as err:
        raise DecodeError("cannot be read") from err


def _is_dropped(key: str) -> bool:
    return is_dropped(key) or key in _FREE_TEXTS


def stripped(signal: Signal, body: bytes, is_json: bool, replace: Replace | None = None) -> tuple[bytes, int] | None:
    """``strip``; None for what cannot be read."""
    try:
        return strip(signal, body, is_json, replace)
    except DecodeError:
        return None


def _as_it_is(_key: str, text: str) -> str:
    return text


# --- protobuf --------------------------------------------------------------------------------------------------------


def _traces(body: bytes, replace: Replace) -> bytes:
    request = ExportTraceServiceRequest.FromString(body)
    request.DiscardUnknownFields()
    for resource in request.resource_spans:
        _attributes(resource.resource.attributes, replace)
        resource.ClearField("schema_url")
        for scope in resource.scope_spans:
            _scope(scope.scope)
            scope.ClearField("schema_url")
            for span in scope.spans:
                _span(span, replace)
    return request.SerializeToString()


def _span(span: Span, replace: Replace) -> None:
    _attributes(span.attributes, replace)
    span.ClearField("trace_state")
    span.status.ClearField("message")
    for event in span.events:
        if event.attributes:
            _attributes(event.attributes, replace)
    for link in span.links:
        del link.attributes[:]
        link.ClearField("trace_state")


def _logs(body: bytes, replace: Replace) -> bytes:
    request = ExportLogsServiceRequest.FromString(body)
    request.DiscardUnknownFields()
    for resource in request.resource_logs:
        _attributes(resource.resource.attributes, replace)
        resource.ClearField("schema_url")
        for scope in resource.scope_logs:
            _scope(scope.scope)
            scope.ClearField("schema_url")
            for record in scope.log_records:
                _log_record(record, replace)
    return request.SerializeToString()


def _log_record(record: LogRecord, replace: Replace) -> None:
    for field in ("body", "severity_text"):
        record.ClearField(field)
    named = [pair.value.string_value for pair in record.attributes if pair.key == _EVENT_NAME]
    if EVALUATION in (record.event_name, *named):
        _attributes(record.attributes, replace)
    else:
        del record.attributes[:]


def _scope(scope: InstrumentationScope) -> None:
    del scope.attributes[:]


def _attributes(pairs: MutableSequence[KeyValue], replace: Replace) -> None:
    wanted = [pair for pair in pairs if not _is_dropped(pair.key) and _value(pair.key, pair.value, replace)]
    if len(wanted) < len(pairs):
        kept = [KeyValue.FromString(pair.SerializeToString()) for pair in wanted]
        del pairs[:]
        pairs.extend(kept)


def _value(key: str, value: AnyValue, replace: Replace) -> bool:
    """Edit the value; whether there is anything of it to keep."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        value.string_value = replace(key, value.string_value)[:_MOST_TEXT]
    elif kind == "array_value":
        for element in value.array_value.values:
            element_kind = element.WhichOneof("value")
            if element_kind == "string_value":
                element.string_value = replace(key, element.string_value)[:_MOST_TEXT]
            elif element_kind is not None and element_kind not in _KEPT_KINDS:
                element.Clear()  # an element without a value is read as the map was: the array is a mixed one
    return kind == "array_value" or kind in _KEPT_KINDS


# --- JSON ------------------------------------------------------------------------------------------------------------


def _json_traces(body: bytes, replace: Replace) -> bytes:
    found = read_json(_SPANS, read_request(body, DEFAULT_LIMITS).resource_spans, "resourceSpans")
    for resource in found or ():
        _json_resource(resource.resource, replace)
        for scope in resource.scope_spans or ():
            for span in scope.spans or ():
                span.attributes = _json_attributes(span.attributes, replace)
                for event in span.events or ():
                    event.attributes = _json_attributes(event.attributes, replace)
    return _lean({"resourceSpans": found})


def _json_logs(body: bytes, replace: Replace) -> bytes:
    found = read_json(_LOGS, read_request(body, DEFAULT_LIMITS).resource_logs, "resourceLogs")
    for resource in found or ():
        _json_resource(resource.resource, replace)
        for scope in resource.scope_logs or ():
            for record in scope.log_records or ():
                named = [p.value.string_value for p in record.attributes or () if p.key == _EVENT_NAME and p.value]
                known = EVALUATION in (record.event_name, *named)
                record.attributes = _json_attributes(record.attributes, replace) if known else None
    return _lean({"resourceLogs": found})


def _json_resource(resource: messages.Resource | None, replace: Replace) -> None:
    if resource is not None:
        resource.attributes = _json_attributes(resource.attributes, replace)


def _json_attributes(pairs: Sequence[messages.KeyValue] | None, replace: Replace) -> list[messages.KeyValue] | None:
    kept = [pair for pair in pairs or () if not _is_dropped(pair.key)]
    for pair in kept:
        if pair.value is None:
            continue
        elements = pair.value.array_value.values or () if pair.value.array_value is not None else ()
        for element in elements:
            element.array_value = None  # arrays of arrays are not read
        for value in (pair.value, *elements):
            if value.string_value is not None:
                value.string_value = replace(pair.key, value.string_value)[:_MOST_TEXT]
    return kept or None


def _lean(request: object) -> bytes:
    """As JSON, without the fields that are absent."""
    return msgspec.json.encode(_without_nulls(msgspec.to_builtins(request)))


def _without_nulls(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _without_nulls(item) for key, item in tree.items() if item is not None}
    if isinstance(tree, list):
        return [_without_nulls(item) for item in tree]
    return tree
