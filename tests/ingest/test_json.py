"""OTLP/JSON: what sets it apart from protobuf's JSON mapping, wrong input, and equality with protobuf."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from gpumon.ingest.decode_limits import DecodeLimits
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.records import Decoded, DecodeError, TokenColumns
from gpumon.ingest.walk import decode_traces_walk
from tests.ingest.differential import SMALL_LIMITS, plain
from tests.ingest.payloads import PROMPT, START_NS
from tests.ingest.vectors import SPAN, START, TRACE, Json, attribute, decode_json, envelope, from_protobuf, span


def with_value(text: str) -> Decoded:
    """A span whose one attribute ``a`` has this JSON for a value."""
    request = envelope(span(attributes=[attribute("a", marker=1)]))
    return decode_traces_json(json.dumps(request).replace('{"marker": 1}', text).encode())


def value_of(text: str) -> object:
    [record] = with_value(text).spans
    return record.attributes.get("a")


def tokens_of(events: Json) -> TokenColumns:
    [record] = decode_json(envelope(span(events=events))).spans
    assert record.tokens is not None
    return record.tokens


# Ids


def test_ids_are_hex_of_either_case() -> None:
    [record] = decode_json(envelope(span(traceId=TRACE.upper(), spanId=SPAN.upper()))).spans
    assert (record.trace_id.hex(), record.span_id.hex()) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "ids",
    [
        {"traceId": "W47/95gDgQPSabYzgT/GDA==", "spanId": "7uGbfsPBsXQ="},
        {"traceId": "W47/95gDgQPSabYzgT/GDA", "spanId": "7uGbfsPBsXQ"},
        {"traceId": "W47/95gDgQPSabYzgT/GDA=="},
        {"spanId": "7uGbfsPBsXQ="},
    ],
)
def test_base64_ids_are_refused_with_a_message_that_names_the_problem(ids: Json) -> None:
    decoded = decode_json(envelope(span(**ids), span()))
    assert (len(decoded.spans), decoded.rejected) == (1, {"bad_id": 1})
    assert "base64" in decoded.message
    assert "hex" in decoded.message


@pytest.mark.parametrize(
    "trace_id", ["", "xyz", TRACE[:-1], TRACE + "0", TRACE[:-2], " " + TRACE[1:], TRACE[:30] + " 0"]
)
def test_ids_that_are_no_ids_reject_the_span(trace_id: str) -> None:
    decoded = decode_json(envelope(span(traceId=trace_id)))
    assert decoded.rejected == {"bad_id": 1}
    assert "base64" not in decoded.message


# Numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"intValue": "7"}', 7),
        ('{"intValue": 7}', 7),
        ('{"intValue": 7.0}', 7),
        ('{"intValue": "-9223372036854775808"}', -(2**63)),
        ('{"intValue": 9223372036854775807}', 2**63 - 1),
        ('{"intValue": 9223372036854775808}', None),
        ('{"intValue": "9223372036854775808"}', None),
        ('{"intValue": "1.5"}', None),
        ('{"intValue": 1.5}', None),
        ('{"intValue": " 7"}', None),
        ('{"intValue": "1_0"}', None),
        ('{"intValue": "\\u0667"}', None),
        ('{"intValue": ""}', None),
        ('{"doubleValue": 2}', 2.0),
        ('{"doubleValue": "2.5"}', 2.5),
        ('{"doubleValue": "-1e-3"}', -0.001),
        ('{"doubleValue": "Infinity"}', math.inf),
        ('{"doubleValue": "-Infinity"}', -math.inf),
        ('{"doubleValue": "infinity"}', None),
        ('{"doubleValue": "1_0"}', None),
        ('{"boolValue": false}', False),
        ('{"stringValue": ""}', ""),
        ('{"stringValue": null, "intValue": 3}', 3),
        ('{"futureValue": {"a": [1]}}', None),
        ("{}", None),
        ("null", None),
        ('{"arrayValue": {"values": [{"intValue": "1"}, {"intValue": 2}]}}', (1, 2)),
        ('{"arrayValue": {"values": null}}', ()),
    ],
)
def test_values(text: str, value: object) -> None:
    found = value_of(text)
    assert (type(found), found) == (type(value), value)


def test_not_a_number_is_a_double() -> None:
    found = value_of('{"doubleValue": "NaN"}')
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize("at", [START, str(START), float(START)])
def test_times_may_be_strings_or_numbers(at: Json) -> None:
    [record] = decode_json(envelope(span(startTimeUnixNano=at))).spans
    assert record.start_ns == START


@pytest.mark.parametrize("at", ["soon", "-1", -1, 1.5, "1e18", str(2**64), 2**63, "9" * 4000])
def test_times_that_are_none_reject_the_span(at: Json) -> None:
    assert decode_json(envelope(span(startTimeUnixNano=at))).rejected == {"bad_time": 1}


def test_token_events_in_every_spelling_of_numbers() -> None:
    events = [
        {"name": "token_generated", "timeUnixNano": str(START), "attributes": [attribute("latency_us", intValue="5")]},
        {"name": "token_generated", "timeUnixNano": START, "attributes": [attribute("latency_us", doubleValue=2.5)]},
        {"name": "token_generated", "timeUnixNano": "x", "attributes": [attribute("latency_us", doubleValue="NaN")]},
    ]
    columns = tokens_of(events)
    assert columns.at_ns.tolist() == [START, START, 0]
    assert columns.latency_us is not None
    assert repr(columns.latency_us.tolist()) == "[5.0, 2.5, nan]"


# Form


def test_unknown_fields_and_nulls_are_ignored_everywhere() -> None:
    request = envelope(span(events=None, links=None, futureField={"deep": [1, {"a": None}]}))
    request["anotherField"] = [{}]
    request["resourceSpans"][0]["schemaUrl"] = None
    request["resourceSpans"].append({"resource": None, "scopeSpans": None})
    text = json.dumps(request).replace('"kind": 2', '"kind": null, "status": null, "attributes": null, "events": null')
    [record] = decode_traces_json(text.encode()).spans
    assert (record.kind, record.status, record.attributes) == (0, 0, {})


def test_of_equal_keys_of_an_object_the_last_wins() -> None:
    text = json.dumps(envelope(span())).replace('"kind": 2', '"kind": 2, "kind": 3')
    [record] = decode_traces_json(text.encode()).spans
    assert record.kind == 3


@pytest.mark.parametrize("field", [{"kind": "SPAN_KIND_SERVER"}, {"status": {"code": "STATUS_CODE_OK"}}])
def test_enums_are_ints_only(field: Json) -> None:
    with pytest.raises(DecodeError, match=r"Expected `int \| null`, got `str` - at `\$.resourceSpans\[0\]"):
        decode_json(envelope(span(**field)))


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'{"resourceSpans": {}}', "Expected `array"),
        (b'{"resourceSpans": [{}', "truncated"),
        (b"\xff\xfe{}", "malformed"),
        (b'{"resourceSpans": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"unknown": ' + b'{"a":' * 200_000, "nested too deeply"),
        (json.dumps(envelope(span(name=PROMPT))).encode().replace(b"nobody", b"\xff"), "Invalid UTF-8"),
        (json.dumps(envelope(span(kind=PROMPT))).encode(), "kind"),
        (json.dumps(envelope(span(attributes=[PROMPT]))).encode(), "Expected `object`"),
    ],
)
def test_what_cannot_be_read_is_refused_without_a_quotation(body: bytes, hint: str) -> None:
    with pytest.raises(DecodeError, match="cannot read the body as OTLP/JSON") as caught:
        decode_traces_json(body)
    assert hint.lower() in str(caught.value).lower()
    assert PROMPT not in str(caught.value)


def test_a_deep_value_is_refused() -> None:
    text = '{"arrayValue": {"values": [' * 5000 + "]}}" * 5000
    with pytest.raises(DecodeError, match="nested too deeply"):
        with_value(text)


def test_more_objects_than_the_limit_are_refused_before_they_take_memory() -> None:
    with pytest.raises(DecodeError, match="more than 10 objects"):
        decode_traces_json(b'{"resourceSpans":[' + b"{}," * 10 + b"{}]}", DecodeLimits(max_json_objects=10))


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}', "/v1/logs"),
        (b'{"resourceMetrics":[]}', "/v1/metrics"),
        (b'{"resource_spans":[]}', "lowerCamelCase"),
        (b"{}", ""),
    ],
)
def test_another_signal_on_the_trace_path_is_a_success_with_a_warning(body: bytes, hint: str) -> None:
    decoded = decode_traces_json(body)
    assert (decoded.spans, decoded.rejected) == ([], {})
    assert hint in decoded.message
    assert bool(hint) == bool(decoded.message)


# Equality with protobuf

NAMES = st.sampled_from(("llm_request", "decode_loop", "gen_ai.token", "token_generated", "exception", "é", ""))
KEYS = st.sampled_from(("gen_ai.token.count", "latency_us", "decode_ct", "gen_ai.prompt", "a", "b"))
SCALARS = st.one_of(
    st.builds(lambda value: AnyValue(int_value=value), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)),
    st.builds(lambda value: AnyValue(double_value=value), st.floats()),
    st.builds(lambda value: AnyValue(string_value=value), st.text(max_size=15)),
    st.builds(lambda value: AnyValue(bool_value=value), st.booleans()),
    st.just(AnyValue()),
    st.just(AnyValue(bytes_value=b"\0\1")),
)


@st.composite
def values(draw: st.DrawFn) -> AnyValue:
    """Scalars and arrays of scalars."""
    if draw(st.integers(0, 4)):
        scalar: AnyValue = draw(SCALARS)
        return scalar
    value = AnyValue()
    value.array_value.values.extend(draw(st.lists(SCALARS, max_size=5)) * draw(st.sampled_from((1, 1, 6))))
    return value


@st.composite
def requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    """Requests that JSON can express."""
    pairs = st.lists(st.builds(lambda key, value: KeyValue(key=key, value=value), KEYS, values()), max_size=4)
    request = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.extend(draw(pairs))
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name = draw(NAMES)
        for _ in range(draw(st.integers(0, 3))):
            one = scope_spans.spans.add()
            one.trace_id = draw(st.sampled_from((b"0123456789abcdef", bytes(16), b"", b"short")))
            one.span_id = draw(st.sampled_from((b"01234567", bytes(8), b"")))
            one.parent_span_id = draw(st.sampled_from((b"", b"parent-1", bytes(8))))
            one.name = draw(NAMES)
            one.kind = draw(st.integers(0, 5))  # type: ignore[assignment]
            one.start_time_unix_nano = draw(st.sampled_from((START_NS, 0, 2**64 - 1)))
            one.end_time_unix_nano = START_NS + 1
            one.dropped_events_count = draw(st.integers(0, 2**32 - 1))
            one.status.code = draw(st.integers(0, 2))  # type: ignore[assignment]
            one.attributes.extend(draw(pairs))
            for _ in range(draw(st.integers(0, 3))):
                event = one.events.add()
                event.name = draw(NAMES)
                event.time_unix_nano = draw(st.integers(0, 2**64 - 1))
                event.attributes.extend(draw(pairs))
    return request


@given(requests(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_request_says_the_same_in_json_and_in_protobuf(request: ExportTraceServiceRequest, small: bool) -> None:
    body = request.SerializeToString()
    limits = SMALL_LIMITS if small else DecodeLimits()
    assert plain(decode_traces_json(from_protobuf(body), limits)) == plain(decode_traces_walk(body, limits))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    (
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "events",
                        "attributes",
                        "value",
                        "arrayValue",
                        "values",
                        "resource",
                        "traceId",
                        "key",
                    )
                ),
                inner,
            )
        ),
    )
)
@settings(max_examples=300, deadline=None)
def test_no_json_raises_anything_but_a_decode_error(value: Json) -> None:
    try:
        decode_traces_json(json.dumps(value).encode())
    except DecodeError:
        pass
