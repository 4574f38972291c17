from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from gpumon.ingest.attributes import DROPPED_PREFIXES
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.decode_limits import DEFAULT_LIMITS
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.records import DROPPED_ATTRIBUTES, Decoded, DecodeError
from gpumon.ingest.request import Signal
from gpumon.ingest.signals import EVALUATION, decode_logs
from gpumon.record.strip import strip

SECRET = "the patient Jane Doe said"
DROPPED = [*sorted(DROPPED_ATTRIBUTES), *(f"{prefix}.0.content" for prefix in DROPPED_PREFIXES)]
LONG = "y" * 3000
UNREAD = (
    *("traceloop.entity.input", "traceloop.entity.output", "ai.prompt.messages", "mlflow.spanInputs"),
    *("langfuse.observation.input", "http.request.header.authorization", "retrieval.documents.0.content"),
    *("db.statement", "url.full", "exception.message", "exception.type", "my.note", ""),
)
"""Of those that people really send."""


def attribute(key: str, value: object) -> KeyValue:
    pair = KeyValue(key=key)
    _set(pair.value, value)
    return pair


def _set(target: AnyValue, value: object) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bytes):
        target.bytes_value = value
    elif isinstance(value, dict):
        target.kvlist_value.values.extend(attribute(key, item) for key, item in value.items())
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in value:
            _set(target.array_value.values.add(), item)


KEPT: dict[str, object] = {
    "gen_ai.request.model": "llama",
    "gen_ai.usage.input_tokens": 17,
    "gen_ai.request.temperature": 0.5,
    "flag": True,
    "gen_ai.response.finish_reasons": ["stop", "length"],
    "gen_ai.token.times_ns": list(range(0, 4000, 100)),
    "gpumon.gpu.uuid": [1, "two"],
    "host.name": LONG,
    "tenant.id": "acme",
    "numbers": [0.5, 1.5],
}
SECRETS: dict[str, object] = {
    **dict.fromkeys(DROPPED, SECRET),
    "map": {"prompt": SECRET},
    "bytes": SECRET.encode(),
    **dict.fromkeys(UNREAD, SECRET),
    "texts": [SECRET],
    "some texts": [1, SECRET],
    "maps": [{"prompt": SECRET}],
    "nested": [[SECRET]],
    "service.name": "x" * (DEFAULT_LIMITS.max_text + 1) + SECRET,
}


def attributes() -> list[KeyValue]:
    return [attribute(key, value) for key, value in (KEPT | SECRETS).items()]


def traces() -> ExportTraceServiceRequest:
    """A request with everything everywhere."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add(schema_url=SECRET)
    resource.resource.attributes.extend(attributes())
    scope = resource.scope_spans.add(schema_url=SECRET)
    scope.scope.name, scope.scope.version = "vllm", "1"
    scope.scope.attributes.extend(attributes())
    for number, name in enumerate(("llm_request", "decode_step")):
        span = scope.spans.add(
            trace_id=bytes(range(1, 17)),
            span_id=bytes([number + 1] * 8),
            parent_span_id=b"\x07" * 8,
            name=name,
            start_time_unix_nano=1_000_000_000,
            end_time_unix_nano=2_000_000_000,
            trace_state=SECRET,
            dropped_events_count=2,
            kind=2,
        )
        span.attributes.extend(attributes())
        span.status.message = SECRET
        for event_name in ("gen_ai.token.generated", "other"):
            event = span.events.add(name=event_name, time_unix_nano=1_500_000_000)
            event.attributes.extend([*attributes(), attribute("gen_ai.token.count", 3)])
        link = span.links.add(trace_id=b"\x09" * 16, span_id=b"\x08" * 8, trace_state=SECRET)
        link.attributes.extend(attributes())
    return request


def logs() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add(schema_url=SECRET)
    resource.resource.attributes.extend(attributes())
    scope = resource.scope_logs.add(schema_url=SECRET)
    scope.scope.attributes.extend(attributes())
    for name in (EVALUATION, "something.else", ""):
        record = scope.log_records.add(time_unix_nano=5, event_name=name, severity_text=SECRET)
        record.body.string_value = SECRET
        record.attributes.extend([*attributes(), attribute("gen_ai.evaluation.score.value", 0.5)])
    record.attributes.append(attribute("event.name", EVALUATION))
    return request


# --- JSON of the same ------------------------------------------------------------------------------------------------


def json_value(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bytes):
        return {"bytesValue": value.decode()}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": json_value(item)} for key, item in value.items()]}}
    assert isinstance(value, list)
    return {"arrayValue": {"values": [json_value(item) for item in value]}}


def json_attributes(**more: object) -> list[dict[str, object]]:
    return [{"key": key, "value": json_value(value)} for key, value in (KEPT | SECRETS | more).items()]


def json_traces() -> bytes:
    span = {
        "traceId": "01" * 16,
        "spanId": "02" * 8,
        "parentSpanId": "",
        "name": "llm_request",
        "kind": 2,
        "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "2000000000",
        "traceState": SECRET,
        "droppedEventsCount": 2,
        "status": {"code": 1, "message": SECRET},
        "attributes": json_attributes(),
        "events": [
            {"name": name, "timeUnixNano": 1_500_000_000, "attributes": json_attributes(), "more": SECRET}
            for name in ("gen_ai.token.generated", "other")
        ],
        "links": [{"traceId": "09" * 16, "spanId": "08" * 8, "attributes": json_attributes(), "traceState": SECRET}],
        "unknown": {"deep": [SECRET]},
    }
    step = {**span, "name": "decode_step", "parentSpanId": "07" * 8, "spanId": "03" * 8, "events": None}
    scope = {"name": "vllm", "version": None, "attributes": json_attributes()}
    resource = {"resource": {"attributes": json_attributes()}, "schemaUrl": SECRET}
    body = {
        "resourceSpans": [{**resource, "scopeSpans": [{"scope": scope, "spans": [span, step], "schemaUrl": SECRET}]}]
    }
    return json.dumps({**body, "comment": SECRET}).encode()


def json_logs() -> bytes:
    records = [
        {
            "timeUnixNano": "5",
            "eventName": name,
            "severityText": SECRET,
            "body": {"stringValue": SECRET},
            "attributes": json_attributes(**more),
        }
        for name, more in ((EVALUATION, {"score": 1}), ("other", {}), (None, {"event.name": EVALUATION}))
    ]
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records, "scope": {"name": "s"}}]}]}).encode()


# --- properties ------------------------------------------------------------------------------------------------------


def shown(decoded: Decoded) -> str:
    """All that the decoders made of a request, but for what tells that texts were cut."""
    cuts = {kind: count for kind, count in decoded.truncated.items() if kind != "strings"}
    records = [
        [
            (span.resource.attributes, span.scope, span.trace_id, span.span_id, span.parent_id, span.name, span.kind),
            (span.start_ns, span.end_ns, span.status, list(span.attributes.items()), span.events),
            (span.tokens.at_ns, span.tokens.counts) if span.tokens is not None else None,
            (span.dropped_events, span.links),
        ]
        for span in decoded.spans
    ]
    steps = [(step.name, step.trace_id, step.start_ns, step.counts) for step in decoded.steps]
    events = [(event.resource.attributes, event.name, event.at_ns, event.attributes) for event in decoded.logs]
    return repr((records, steps, events, decoded.rejected, cuts, decoded.ignored))


def without_unread(body: bytes, signal: Signal, is_json: bool) -> bytes:
    """The same request from a sender that never had the texts nobody reads."""
    gone = {*UNREAD, "texts", "some texts"}
    if is_json:

        def lean(tree: Any) -> Any:
            if isinstance(tree, dict):
                return {key: lean(item) for key, item in tree.items()}
            if isinstance(tree, list):
                return [lean(item) for item in tree if not (isinstance(item, dict) and item.get("key") in gone)]
            return tree

        return json.dumps(lean(json.loads(body))).encode()
    if signal is Signal.LOGS:
        logs = ExportLogsServiceRequest.FromString(body)
        _remove(logs, gone)
        return logs.SerializeToString()
    traces = ExportTraceServiceRequest.FromString(body)
    _remove(traces, gone)
    return traces.SerializeToString()


def _remove(message: Any, gone: set[str]) -> None:
    for field, value in message.ListFields():
        if field.name == "attributes":
            kept = [pair for pair in value if pair.key not in gone]
            del value[:]
            value.extend(kept)
        elif field.message_type is not None:
            for one in value if isinstance(value, Sequence) else [value]:
                _remove(one, gone)


def decode(signal: Signal, body: bytes, is_json: bool) -> Decoded:
    if signal is Signal.LOGS:
        return decode_logs(body, is_json)
    if is_json:
        return decode_traces_json(body)
    [decoded] = decode_traces([body])
    assert isinstance(decoded, Decoded)
    return decoded


BODIES: dict[str, tuple[Signal, Callable[[], bytes], bool]] = {
    "traces": (Signal.TRACES, lambda: traces().SerializeToString(), False),
    "logs": (Signal.LOGS, lambda: logs().SerializeToString(), False),
    "traces as JSON": (Signal.TRACES, json_traces, True),
    "logs as JSON": (Signal.LOGS, json_logs, True),
}


@pytest.mark.parametrize("name", BODIES)
def test_no_text_is_left_and_the_decoders_see_no_difference(name: str) -> None:
    signal, make, is_json = BODIES[name]
    body = make()
    assert SECRET.encode() in body
    stripped, points = strip(signal, body, is_json)
    assert points == 0
    for word in (SECRET, "Jane", "patient"):
        assert word.encode() not in stripped
    lean = without_unread(body, signal, is_json)
    assert shown(decode(signal, stripped, is_json)) == shown(decode(signal, lean, is_json))
    assert strip(signal, stripped, is_json)[0] == stripped, "again: nothing more"


@pytest.mark.parametrize("name", BODIES)
def test_kept_texts_go_through_the_mask_with_the_name_of_their_attribute(name: str) -> None:
    signal, make, is_json = BODIES[name]
    asked: set[str] = set()

    def replace(key: str, text: str) -> str:
        asked.add(key)
        return "masked" if text == "llama" else text

    stripped, _ = strip(signal, make(), is_json, replace)
    assert b"llama" not in stripped
    assert {"gen_ai.request.model", "gen_ai.response.finish_reasons"} <= asked
    assert asked.isdisjoint([*DROPPED, *UNREAD])


def test_unknown_fields_of_a_message_are_left_out() -> None:
    body = traces().SerializeToString() + b"\xfa\x3f" + bytes([len(SECRET)]) + SECRET.encode()
    assert ExportTraceServiceRequest.FromString(body).resource_spans
    assert SECRET.encode() not in strip(Signal.TRACES, body, False)[0]


def test_of_metrics_only_the_number_is_kept() -> None:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=SECRET)
    for _ in range(3):
        metric.gauge.data_points.add(as_int=1)
    assert strip(Signal.METRICS, request.SerializeToString(), False) == (b"", 3)
    points: dict[str, object] = {"gauge": {"dataPoints": [{}, {}]}}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [points]}]}]}).encode()
    assert strip(Signal.METRICS, body, True) == (b"", 2)


@pytest.mark.parametrize("key", ["acme.customer", "x-team"])
def test_configured_tenants_are_kept_and_no_others(key: str) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    span.attributes.extend([attribute(key, "acme"), attribute("tenant.id", "other")])
    stripped, _ = strip(Signal.TRACES, request.SerializeToString(), False, tenants=(key,))
    assert b"acme" in stripped
    assert b"other" not in stripped
    assert b"acme" not in strip(Signal.TRACES, request.SerializeToString(), False)[0]


@pytest.mark.parametrize(
    ("key", "text", "kept"),
    [
        ("parameters", SECRET, ""),
        ("error.type", SECRET, ""),
        ("abort_info", SECRET, ""),
        ("uri", "/v1/completions?key=" + SECRET, "/v1/completions"),
        ("reason", "auto closed, " + SECRET, "auto closed"),
        ("reason", SECRET, ""),
        ("gen_ai.token.times_ns", SECRET, ""),
    ],
)
def test_of_some_texts_only_what_is_asked_of_them_is_kept(key: str, text: str, kept: str) -> None:
    for body, is_json in (
        (one_span([attribute(key, text)]), False),
        (json_span([{"key": key, "value": {"stringValue": text}}]), True),
    ):
        [span] = decode(Signal.TRACES, strip(Signal.TRACES, body, is_json)[0], is_json).spans
        assert dict(span.attributes) == {key: kept}


def one_span(pairs: list[KeyValue]) -> bytes:
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, start_time_unix_nano=1, end_time_unix_nano=2)
    )
    span.attributes.extend(pairs)
    return request.SerializeToString()


def json_span(pairs: Sequence[Mapping[str, object]]) -> bytes:
    span = {"traceId": "01" * 16, "spanId": "02" * 8, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "attributes": pairs}]}]}]}).encode()


@pytest.mark.parametrize("kind", ["intValue", "doubleValue", "boolValue"])
def test_a_text_in_the_place_of_a_number_is_left_out(kind: str) -> None:
    for pairs in (
        [{"key": "my.note", "value": {kind: SECRET}}],
        [{"key": "my.note", "value": {"arrayValue": {"values": [{kind: SECRET}]}}}],
    ):
        try:
            stripped, _ = strip(Signal.TRACES, json_span(pairs), True)
        except DecodeError:
            continue
        assert SECRET.encode() not in stripped


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    "body", [b"\xff\xff", b"[", b"[1]", b'{"resourceSpans":3,"resourceLogs":3,"resourceMetrics":3}']
)
def test_what_cannot_be_read_is_not_recorded(signal: Signal, is_json: bool, body: bytes) -> None:
    with pytest.raises(DecodeError):
        strip(signal, body, is_json)


@given(st.binary(max_size=200), st.sampled_from(Signal), st.booleans())
def test_nothing_but_its_own_error_is_raised(body: bytes, signal: Signal, is_json: bool) -> None:
    try:
        strip(signal, body, is_json)
    except DecodeError:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["resourceSpans", "resourceLogs", "resource", "attributes", "scopeSpans", "scopeLogs", "spans", "logRecords",
         "key", "value", "stringValue", "arrayValue", "values", "events", "intValue"]), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON, st.sampled_from([Signal.TRACES, Signal.LOGS]))
def test_any_json_is_stripped_or_refused(tree: Any, signal: Signal) -> None:
    try:
        strip(signal, json.dumps(tree).encode(), True)
    except DecodeError:
        return
