"""OTLP/JSON bodies to records: traces here, and the typed reading that logs and metrics share.

OTLP/JSON is not protobuf's JSON mapping: ids are hex, keys are lowerCamelCase only, enums are ints only, unknown fields
are ignored. ``google.protobuf.json_format`` would read hex ids as base64 without an error, hence typed structs.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gpumon.ingest import json_messages as messages
from gpumon.ingest.arrays import read_no_ints
from gpumon.ingest.attributes import count_of, cut, index_of, latency_of, shortened
from gpumon.ingest.columns import MAX_ATTRIBUTES
from gpumon.ingest.decode_limits import DEFAULT_LIMITS, DecodeLimits
from gpumon.ingest.json_values import (
    is_base64_id,
    read_attributes,
    read_id,
    read_ns,
    read_scalar,
    read_scope,
)
from gpumon.ingest.records import (
    STEP_SPAN_NAMES,
    TOKEN_COUNT,
    TOKEN_EVENT_NAMES,
    TOKEN_LATENCY_US,
    Decoded,
    DecodeError,
    EventRecord,
    Resource,
    Scope,
    SpanRecord,
)
from gpumon.ingest.spans import STEP_INDEX, Resources, SpanReader, is_link, is_step_of, known, parent_of, possible_ns
from gpumon.ingest.walk import token_columns

T = TypeVar("T")

_REQUEST = msgspec.json.Decoder(messages.Request)
_SPANS = msgspec.json.Decoder(list[messages.ResourceSpans] | None)
_IMPOSSIBLE_NS = 2**64
"""Stands for a time that is no number; refused as any other that is too large."""
_BASE64 = "ids look like base64; OTLP/JSON wants them as hex digits"


def decode_traces_json(body: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> Decoded:
    """Decode one ``ExportTraceServiceRequest`` in JSON.

    Raises:
        DecodeError: it is no JSON, or a field has another type than OTLP says.
    """
    request = read_request(body, limits)
    reader = SpanReader(limits, Resources(), read_no_ints)
    decoded = reader.decoded
    found = read_json(_SPANS, request.resource_spans, "resourceSpans")
    for resource_spans in reader.some_resources(found or []):
        resource = read_resource(resource_spans.resource, reader.resources, limits)
        for scope_spans in reader.some_scopes(resource_spans.scope_spans or ()):
            scope = read_scope(scope_spans.scope, limits, decoded.truncated)
            for span in reader.some_spans(scope_spans.spans or ()):
                _read_span(reader, resource, scope, span, limits)
    if request.resource_spans is msgspec.UNSET:
        decoded.message = _wrong_field(request)
    return reader.finish()


def read_request(body: bytes, limits: DecodeLimits) -> messages.Request:
    """The outermost object, its fields still JSON.

    Raises:
        DecodeError: the body is no JSON object, or has too many objects inside.
    """
    if body.count(b"{") > limits.max_json_objects:
        raise DecodeError(f"the JSON body has more than {limits.max_json_objects} objects: send smaller requests")
    request = read_json(_REQUEST, msgspec.Raw(body), "")
    assert request is not None
    return request


def read_json(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw | msgspec.UnsetType, field: str) -> T | None:
    """The field's content; None where it is absent.

    Raises:
        DecodeError: with the place and what was expected there; msgspec's texts quote no content.
    """
    if isinstance(raw, msgspec.UnsetType):
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        text = str(err).replace("`$", f"`$.{field}" if field else "`$")
        raise DecodeError(f"cannot read the body as OTLP/JSON: {text}") from err
    except RecursionError as err:
        raise DecodeError("cannot read the body as OTLP/JSON: it is nested too deeply") from err


def read_resource(message: messages.Resource | None, resources: Resources, limits: DecodeLimits) -> Resource:
    attributes = message.attributes if message is not None else None
    return resources.of(read_attributes(attributes, limits, limits.max_attributes, {}))


def _read_span(reader: SpanReader, resource: Resource, scope: Scope, span: messages.Span, limits: DecodeLimits) -> None:
    ids = read_id(span.trace_id), read_id(span.span_id), read_id(span.parent_span_id)
    start_ns, end_ns = (
        _IMPOSSIBLE_NS if (at_ns := read_ns(time)) is None else at_ns
        for time in (span.start_time_unix_nano, span.end_time_unix_nano)
    )
    name = span.name or ""
    status = known((span.status.code if span.status is not None else None) or 0, 2)
    if not reader.ids_are_valid(*ids):
        if is_base64_id(span.trace_id, 16) or is_base64_id(span.span_id, 8):
            reader.decoded.message = _BASE64
        return
    if not reader.times_are_valid(start_ns, end_ns):
        return
    if name in STEP_SPAN_NAMES and is_step_of(ids[2], status):
        index = count = None
        for pair in (span.attributes or ())[: limits.max_attributes]:
            if pair.key in STEP_INDEX:
                index = index_of(read_scalar(pair.value))
            elif pair.key == TOKEN_COUNT:
                count = count_of(read_scalar(pair.value))
        reader.add_step(resource, scope, name, ids, (start_ns, end_ns), index, count)
        return
    if not reader.has_room():
        return
    cuts = reader.decoded.truncated
    record = SpanRecord(
        resource=resource,
        scope=scope,
        trace_id=ids[0],
        span_id=ids[1],
        parent_id=parent_of(ids[2]),
        name=shortened(name, limits.max_name, cuts),
        kind=known(span.kind or 0, 5),
        start_ns=start_ns,
        end_ns=end_ns,
        status=status,
        attributes=read_attributes(span.attributes, limits, limits.max_attributes, cuts),
        dropped_events=max(0, span.dropped_events_count or 0),
        links=_read_links(reader, span, limits),
    )
    reader.decoded.spans.append(record)
    if span.events:
        _read_events(reader, record, span.events, limits)


def _read_events(reader: SpanReader, record: SpanRecord, events: list[messages.Event], limits: DecodeLimits) -> None:
    cuts = reader.decoded.truncated
    tokens: list[tuple[int, int, float | None]] = []
    others: list[EventRecord] = []
    for event in events:
        name = event.name or ""
        if name in TOKEN_EVENT_NAMES:
            if len(tokens) < limits.max_token_events:
                tokens.append(_read_token(event))
            else:
                cut(cuts, "tokens")
        elif len(others) < limits.max_events:
            at_ns = possible_ns(read_ns(event.time_unix_nano) or 0)
            attributes = read_attributes(event.attributes, limits, limits.max_event_attributes, cuts)
            others.append(EventRecord(shortened(name, limits.max_name, cuts), at_ns, attributes))
        else:
            cut(cuts, "events")
    record.events = others
    record.tokens = token_columns(tokens)


def _read_token(event: messages.Event) -> tuple[int, int, float | None]:
    """Time (ns), tokens and latency (µs) of a token event."""
    count: int | None = None
    latency: float | None = None
    for pair in event.attributes[:MAX_ATTRIBUTES] if event.attributes else ():
        key = pair.key
        if key == TOKEN_COUNT:
            count = count_of(read_scalar(pair.value))
        elif key == TOKEN_LATENCY_US:
            latency = latency_of(read_scalar(pair.value))
    return possible_ns(read_ns(event.time_unix_nano) or 0), 1 if count is None else count, latency


def _read_links(reader: SpanReader, span: messages.Span, limits: DecodeLimits) -> tuple[tuple[bytes, bytes], ...]:
    links = span.links or []
    if len(links) > limits.max_links:
        cut(reader.decoded.truncated, "links", len(links) - limits.max_links)
    pairs = ((read_id(link.trace_id), read_id(link.span_id)) for link in links[: limits.max_links])
    return tuple(pair for pair in pairs if is_link(pair))


def _wrong_field(request: messages.Request) -> str:
    """What the sender may have meant by a trace request without ``resourceSpans``; empty where nothing tells."""
    if request.resource_logs is not msgspec.UNSET:
        return "the body has resourceLogs and no resourceSpans: send logs to /v1/logs"
    if request.resource_metrics is not msgspec.UNSET:
        return "the body has resourceMetrics and no resourceSpans: send metrics to /v1/metrics"
    if request.snake_case is not msgspec.UNSET:
        return "the body has resource_spans and no resourceSpans: OTLP/JSON keys are lowerCamelCase"
    return ""
