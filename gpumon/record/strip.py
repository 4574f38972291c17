"""What of an OTLP request is recorded: what gpumon reads of it, and no text of prompts or completions.

Left out, wherever they stand: the attributes that ``ingest.attributes.is_dropped`` names, texts and arrays with texts
of all attributes but those in ``kept_texts``, values that are maps or bytes, log bodies, status texts, trace states,
attributes of links, of scopes and of log records that are no evaluation results, and every field that is unknown.
Numbers, booleans and arrays of them stay. Texts are cut a character after the decoders' limit. Of metrics only their
number is recorded. So a replay makes of it the requests that were made of the request itself.

Protobuf is edited in the official classes; JSON is parsed into the decoders' own messages, which have no place for
anything else, and written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence, Sequence

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
from gpumon.ingest.json_values import read_double, read_int64
from gpumon.ingest.records import DecodeError
from gpumon.ingest.request import Signal
from gpumon.ingest.signals import EVALUATION, count_metrics
from gpumon.record.kept_texts import TENANTS, Texts

Replace = Callable[[str, str], str]
"""From an attribute's name and its text to the text that is recorded."""

_MOST_TEXT = DEFAULT_LIMITS.max_text + 1
_EVENT_NAME = "event.name"
_KEPT_KINDS = frozenset({"string_value", "int_value", "double_value", "bool_value"})
_SPANS = msgspec.json.Decoder(list[messages.ResourceSpans] | None)
_LOGS = msgspec.json.Decoder(list[messages.ResourceLogs] | None)


def strip(
    signal: Signal, body: bytes, is_json: bool, replace: Replace | None = None, tenants: Collection[str] = TENANTS
) -> tuple[bytes, int]:
    """What is recorded of a request: its body, and how many data points it had if it is one of metrics.

    tenants: attributes that name one, whose texts are kept. Raises DecodeError for what cannot be read.
    """
    texts = Texts(replace, tenants)
    if signal is Signal.METRICS:
        return b"", count_metrics(body, is_json)
    try:
        if signal is Signal.TRACES:
            return (_json_traces(body, texts) if is_json else _traces(body, texts)), 0
        return (_json_logs(body, texts) if is_json else _logs(body, texts)), 0
    except (ProtobufError, UnicodeError) as err:
        raise DecodeError("cannot be read") from err


def stripped(
    signal: Signal, body: bytes, is_json: bool, replace: Replace | None = None, tenants: Collection[str] = TENANTS
) -> tuple[bytes, int] | None:
    """``strip``; None for what cannot be read."""
    try:
        return strip(signal, body, is_json, replace, tenants)
    except DecodeError:
        return None


# --- protobuf --------------------------------------------------------------------------------------------------------


def _traces(body: bytes, texts: Texts) -> bytes:
    request = ExportTraceServiceRequest.FromString(body)
    request.DiscardUnknownFields()
    for resource in request.resource_spans:
        _attributes(resource.resource.attributes, texts)
        resource.ClearField("schema_url")
        for scope in resource.scope_spans:
            _scope(scope.scope)
            scope.ClearField("schema_url")
            for span in scope.spans:
                _span(span, texts)
    return request.SerializeToString()


def _span(span: Span, texts: Texts) -> None:
    _attributes(span.attributes, texts)
    span.ClearField("trace_state")
    span.status.ClearField("message")
    for event in span.events:
        if event.attributes:
            _attributes(event.attributes, texts)
    for link in span.links:
        del link.attributes[:]
        link.ClearField("trace_state")


def _logs(body: bytes, texts: Texts) -> bytes:
    request = ExportLogsServiceRequest.FromString(body)
    request.DiscardUnknownFields()
    for resource in request.resource_logs:
        _attributes(resource.resource.attributes, texts)
        resource.ClearField("schema_url")
        for scope in resource.scope_logs:
            _scope(scope.scope)
            scope.ClearField("schema_url")
            for record in scope.log_records:
                _log_record(record, texts)
    return request.SerializeToString()


def _log_record(record: LogRecord, texts: Texts) -> None:
    for field in ("body", "severity_text"):
        record.ClearField(field)
    named = [pair.value.string_value for pair in record.attributes if pair.key == _EVENT_NAME]
    if EVALUATION in (record.event_name, *named):
        _attributes(record.attributes, texts)
    else:
        del record.attributes[:]


def _scope(scope: InstrumentationScope) -> None:
    del scope.attributes[:]


def _attributes(pairs: MutableSequence[KeyValue], texts: Texts) -> None:
    wanted = [pair for pair in pairs if not is_dropped(pair.key) and _value(pair.key, pair.value, texts)]
    if len(wanted) < len(pairs):
        kept = [KeyValue.FromString(pair.SerializeToString()) for pair in wanted]
        del pairs[:]
        pairs.extend(kept)


def _value(key: str, value: AnyValue, texts: Texts) -> bool:
    """Edit the value; whether there is anything of it to keep."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        if texts.keeps(key):
            value.string_value = texts.of(key, value.string_value)[:_MOST_TEXT]
            return True
        return False
    if kind != "array_value":
        return kind in _KEPT_KINDS
    for element in value.array_value.values:
        element_kind = element.WhichOneof("value")
        if element_kind == "string_value":
            if not texts.keeps(key):
                return False
            element.string_value = texts.of(key, element.string_value)[:_MOST_TEXT]
        elif element_kind is not None and element_kind not in _KEPT_KINDS:
            element.Clear()  # an element without a value is read as the map was: the array is a mixed one
    return True


# --- JSON ------------------------------------------------------------------------------------------------------------


def _json_traces(body: bytes, texts: Texts) -> bytes:
    found = read_json(_SPANS, read_request(body, DEFAULT_LIMITS).resource_spans, "resourceSpans")
    for resource in found or ():
        _json_resource(resource.resource, texts)
        for scope in resource.scope_spans or ():
            for span in scope.spans or ():
                span.attributes = _json_attributes(span.attributes, texts)
                for event in span.events or ():
                    event.attributes = _json_attributes(event.attributes, texts)
    return _lean({"resourceSpans": found})


def _json_logs(body: bytes, texts: Texts) -> bytes:
    found = read_json(_LOGS, read_request(body, DEFAULT_LIMITS).resource_logs, "resourceLogs")
    for resource in found or ():
        _json_resource(resource.resource, texts)
        for scope in resource.scope_logs or ():
            for record in scope.log_records or ():
                named = [p.value.string_value for p in record.attributes or () if p.key == _EVENT_NAME and p.value]
                known = EVALUATION in (record.event_name, *named)
                record.attributes = _json_attributes(record.attributes, texts) if known else None
    return _lean({"resourceLogs": found})


def _json_resource(resource: messages.Resource | None, texts: Texts) -> None:
    if resource is not None:
        resource.attributes = _json_attributes(resource.attributes, texts)


def _json_attributes(pairs: Sequence[messages.KeyValue] | None, texts: Texts) -> list[messages.KeyValue] | None:
    kept = [pair for pair in pairs or () if not is_dropped(pair.key) and _json_value(pair.key, pair.value, texts)]
    return kept or None


def _json_value(key: str, value: messages.AnyValue | None, texts: Texts) -> bool:
    """Edit the value; whether there is anything of it to keep."""
    if value is None:
        return True
    elements = value.array_value.values or () if value.array_value is not None else ()
    for element in elements:
        element.array_value = None  # arrays of arrays are not read
    for one in (value, *elements):
        if isinstance(one.int_value, str) and read_int64(one.int_value) is None:
            one.int_value = ""  # no number, as any text in its place
        if isinstance(one.double_value, str) and read_double(one.double_value) is None:
            one.double_value = ""
        if one.string_value is not None:
            if not texts.keeps(key):
                return False
            one.string_value = texts.of(key, one.string_value)[:_MOST_TEXT]
    return True


def _lean(request: object) -> bytes:
    """As JSON, without the fields that are absent."""
    return msgspec.json.encode(_without_nulls(msgspec.to_builtins(request)))


def _without_nulls(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _without_nulls(item) for key, item in tree.items() if item is not None}
    if isinstance(tree, list):
        return [_without_nulls(item) for item in tree]
    return tree
