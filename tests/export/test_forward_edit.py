"""Editing in passing, against the official classes on the same bytes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gpumon.export.forward_cut import by_trace, split
from gpumon.export.forward_edit import Attribute, edit
from gpumon.export.forward_json import count_items as count_json_items
from gpumon.export.forward_json import to_protobuf
from gpumon.export.forward_schema import EditError, count_items
from gpumon.ingest.request import Signal
from tests.export.otlp_requests import START_NS, as_json, logs, metrics, traces

ADDED: list[Attribute] = [
    ("gpumon.gpu.uuids", ("GPU-1", "MIG-2")),
    ("gpumon.gpu.sm_active", 0.25),
    ("gpumon.process.major_faults", 1 << 40),
    ("gpumon.note", "ä"),
]

text = st.text(max_size=12)


def some_value(rnd: Random, depth: int = 0) -> AnyValue:
    kind = rnd.randrange(7 if depth < 3 else 6)
    if kind == 0:
        return AnyValue()
    if kind == 1:
        return AnyValue(string_value="".join(rnd.choices("aé漢\0 ", k=rnd.randrange(200))))
    if kind == 2:
        return AnyValue(int_value=rnd.choice([0, -1, 1 << 62, -(1 << 63), rnd.randrange(1000)]))
    if kind == 3:
        return AnyValue(double_value=rnd.choice([0.0, -0.0, 1e300, rnd.random(), float("inf")]))
    if kind == 4:
        return AnyValue(bool_value=rnd.random() < 0.5)
    if kind == 5:
        return AnyValue(bytes_value=rnd.randbytes(rnd.randrange(20)))
    values = [some_value(rnd, depth + 1) for _ in range(rnd.randrange(4))]
    return AnyValue(array_value=ArrayValue(values=values))


def some_attributes(rnd: Random) -> list[KeyValue]:
    keys = ["", "a", "gen_ai.request.model", "gpumon.gpu.sm_active", "ключ"]
    return [KeyValue(key=rnd.choice(keys), value=some_value(rnd)) for _ in range(rnd.randrange(4))]


def some_span(rnd: Random) -> Span:
    span = Span(
        trace_id=rnd.choice(
            [rnd.randrange(4).to_bytes(16, "big"), rnd.randbytes(16), rnd.randbytes(rnd.randrange(26))]
        ),
        span_id=rnd.choice([rnd.randrange(4).to_bytes(8, "big"), rnd.randbytes(8), rnd.randbytes(rnd.randrange(13))]),
        parent_span_id=rnd.randbytes(rnd.choice([0, 8])),
        trace_state=rnd.choice(["", "a=b"]),
        flags=rnd.choice([0, 0x100, 0xFFFFFFFF]),
        name=rnd.choice(["", "llm_request", "decode_loop", "имя"]),
        kind=rnd.choice([Span.SPAN_KIND_UNSPECIFIED, Span.SPAN_KIND_SERVER]),
        start_time_unix_nano=rnd.choice([0, (1 << 64) - 1, START_NS + rnd.randrange(1 << 40)]),
        end_time_unix_nano=rnd.choice([0, START_NS + rnd.randrange(1 << 40)]),
        attributes=some_attributes(rnd),
        dropped_attributes_count=rnd.randrange(3),
        dropped_events_count=rnd.randrange(3),
    )
    for _ in range(rnd.randrange(4)):
        span.events.add(time_unix_nano=START_NS, name="token", attributes=some_attributes(rnd))
    for _ in range(rnd.randrange(2)):
        span.links.add(trace_id=rnd.randbytes(16), span_id=rnd.randbytes(8), attributes=some_attributes(rnd))
    if rnd.random() < 0.5:
        span.status.SetInParent()
        span.status.message = rnd.choice(["", "it failed"])
        span.status.code = rnd.choice([Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR])
    return span


def some_request(seed: int) -> ExportTraceServiceRequest:
    """Everything a request can hold, empty envelopes and wrong ids among it."""
    rnd = Random(seed)
    request = ExportTraceServiceRequest()
    for _ in range(rnd.randrange(4)):
        resource = request.resource_spans.add(schema_url=rnd.choice(["", "https://schema"]))
        if rnd.random() < 0.7:
            resource.resource.attributes.extend(some_attributes(rnd))
        for _ in range(rnd.randrange(4)):
            scope = resource.scope_spans.add(schema_url=rnd.choice(["", "https://schema"]))
            if rnd.random() < 0.7:
                scope.scope.name = rnd.choice(["", "vllm.tracing.otel"])
                scope.scope.attributes.extend(some_attributes(rnd))
            scope.spans.extend([some_span(rnd) for _ in range(rnd.randrange(6))])
    return request


requests = st.integers(0, 1 << 40).map(some_request)
unknown = st.binary(max_size=10).map(lambda data: b"\xea\x3e" + bytes([len(data)]) + data)
"""Field 1005 of some later version of the protocol."""


def valid(span: Span) -> bool:
    return len(span.trace_id) == 16 and any(span.trace_id) and len(span.span_id) == 8 and any(span.span_id)


def annotate(trace_id: bytes, span_id: bytes, start_ns: int, end_ns: int) -> list[Attribute]:
    return ADDED if span_id[-1] % 2 else []


def expected(data: bytes) -> ExportTraceServiceRequest:
    """The same by the official classes."""
    request = ExportTraceServiceRequest.FromString(data)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            kept = [span for span in scope.spans if valid(span)]
            del scope.spans[:]
            scope.spans.extend(kept)
            for span in scope.spans:
                known = {attribute.key for attribute in span.attributes}
                if not span.span_id[-1] % 2 or span.name == "decode_loop":
                    continue
                for key, value in ADDED:
                    if key in known:
                        continue
                    added = span.attributes.add(key=key).value
                    if isinstance(value, tuple):
                        added.array_value.values.extend([AnyValue(string_value=entry) for entry in value])
                    elif isinstance(value, str):
                        added.string_value = value
                    elif isinstance(value, int):
                        added.int_value = value
                    else:
                        added.double_value = value
    return request


@settings(max_examples=400, deadline=None)
@given(request=requests, tail=unknown | st.just(b""))
def test_nothing_but_the_added_attributes_changes(request: ExportTraceServiceRequest, tail: bytes) -> None:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                span.MergeFromString(tail)
            scope.MergeFromString(tail)
        resource.MergeFromString(tail)
    data = request.SerializeToString() + tail
    edited = edit(data, annotate=annotate)
    want = expected(data)
    found = ExportTraceServiceRequest.FromString(edited.data)
    assert found.SerializeToString(deterministic=True) == want.SerializeToString(deterministic=True)
    every = [span for r in request.resource_spans for s in r.scope_spans for span in s.spans]
    assert edited.spans == sum(map(valid, every))
    assert edited.invalid == len(every) - edited.spans
    assert edited.unwanted == 0


@settings(max_examples=200, deadline=None)
@given(request=requests)
def test_a_trace_cut_out_has_all_of_its_spans_and_nothing_else(request: ExportTraceServiceRequest) -> None:
    data = request.SerializeToString()
    parts, invalid = by_trace(data)
    every = [(r, s, span) for r in request.resource_spans for s in r.scope_spans for span in s.spans]
    assert invalid == sum(not valid(span) for *_, span in every)
    assert set(parts) == {span.trace_id for *_, span in every if valid(span)}
    for trace_id, part in parts.items():
        found = ExportTraceServiceRequest.FromString(part.data)
        got = [(r.resource, r.schema_url, s.scope, s.schema_url, span) for r in found.resource_spans for s in r.scope_spans for span in s.spans]  # fmt: skip  # noqa: E501
        of_it = [(r.resource, r.schema_url, s.scope, s.schema_url, span) for r, s, span in every if span.trace_id == trace_id and valid(span)]  # fmt: skip  # noqa: E501
        assert got == of_it
        assert part.items == len(of_it)
        assert part.end_ns == max(span.end_time_unix_nano for *_, span in of_it)
        assert part.start_ns == min((s.start_time_unix_nano for *_, s in of_it if s.start_time_unix_nano), default=0)


@settings(max_examples=200, deadline=None)
@given(request=requests, max_bytes=st.integers(1, 2000), max_items=st.integers(1, 5))
@example(request=some_request(1513), max_bytes=1991, max_items=3)  # a resource that says nothing beside one that does
def test_pieces_hold_every_span_once_and_keep_the_bounds(
    request: ExportTraceServiceRequest, max_bytes: int, max_items: int
) -> None:
    data = request.SerializeToString()
    parts = split(data, max_bytes, max_items)
    total: Counter[bytes] = Counter()
    for part in parts:
        found = ExportTraceServiceRequest.FromString(part.data)
        entries = [(r.resource, s.scope, span) for r in found.resource_spans for s in r.scope_spans for span in s.spans]
        assert part.items == len(entries) <= max_items or len(parts) == 1
        assert len(part.data) <= max_bytes or len(entries) <= 1
        total.update(b"|".join(message.SerializeToString() for message in entry) for entry in entries)
    assert total == Counter(
        b"|".join(message.SerializeToString() for message in (r.resource, s.scope, span))
        for r in request.resource_spans
        for s in r.scope_spans
        for span in s.spans
    )


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_request_raise_nothing_but_the_error(data: bytes) -> None:
    for read in (
        partial(count_items, Signal.TRACES),
        lambda data: edit(data, annotate=annotate),
        by_trace,
        lambda data: split(data, 1, 1),
    ):
        try:
            read(data)
        except EditError:
            pass


def test_an_unchanged_request_is_the_same_object() -> None:
    data = traces(1, 5, events=3).SerializeToString()
    assert edit(data).data is data
    assert edit(data, annotate=lambda *_: [], keep=lambda trace_id: True).data is data


def test_step_spans_are_not_asked_about() -> None:
    request = traces(1, 3)
    request.resource_spans[0].scope_spans[0].spans[1].name = "decode_loop"
    asked: list[bytes] = []

    def ask(trace_id: bytes, span_id: bytes, start_ns: int, end_ns: int) -> list[Attribute]:
        asked.append(span_id)
        return []

    edit(request.SerializeToString(), annotate=ask)
    assert [span_id[-1] for span_id in asked] == [1, 3]


def test_repeated_singular_messages_still_merge() -> None:
    # Two resource fields in one ResourceSpans are one resource to a parser; both must be there, in their order.
    first, second = traces(1), traces(1)
    del second.resource_spans[0].scope_spans[:]
    second.resource_spans[0].resource.attributes[0].key = "second"
    inner = first.resource_spans[0].SerializeToString() + second.resource_spans[0].SerializeToString()
    data = b"\x0a" + bytes([len(inner) & 0x7F | 0x80, len(inner) >> 7]) + inner
    found = ExportTraceServiceRequest.FromString(edit(data, annotate=annotate).data).resource_spans[0]
    assert [attribute.key for attribute in found.resource.attributes] == ["service.name", "second"]
    assert len(found.scope_spans[0].spans[0].attributes) == 5


@pytest.mark.parametrize(
    ("signal", "request_"), [(Signal.TRACES, traces(1, 4)), (Signal.LOGS, logs(3)), (Signal.METRICS, metrics(2))]
)
def test_items_are_counted_alike_in_both_encodings(signal: Signal, request_: ExportTraceServiceRequest) -> None:
    number = count_items(signal, request_.SerializeToString())
    assert number == count_json_items(signal, as_json(request_))
    assert number in (2, 3, 4)


@settings(max_examples=150, deadline=None)
@given(request=requests)
def test_json_becomes_the_protobuf_it_was_made_from(request: ExportTraceServiceRequest) -> None:
    assert ExportTraceServiceRequest.FromString(to_protobuf(Signal.TRACES, as_json(request))) == request


@pytest.mark.parametrize("given_id", ["W47/95gDgQPSabYzgT/GDA==", "zz", "5B8EFFF798038103D269B633813FC60C", ""])
def test_ids_in_json_are_hexadecimal_or_nothing(given_id: str) -> None:
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%s","later":[1]}]}]}]}' % given_id.encode()
    span = (
        ExportTraceServiceRequest.FromString(to_protobuf(Signal.TRACES, body)).resource_spans[0].scope_spans[0].spans[0]
    )
    assert span.trace_id == (bytes.fromhex(given_id) if given_id.startswith("5B8E") else b"")


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=100) | st.recursive(st.none() | text | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(text | st.sampled_from(["resourceSpans", "scopeSpans", "spans", "traceId"]), inner)).map(repr).map(lambda text: text.replace("'", '"').replace("None", "null").encode("utf-8", "replace")))  # fmt: skip  # noqa: E501
def test_json_of_any_shape_raises_nothing_but_the_error(body: bytes) -> None:
    for signal in Signal:
        for read in (to_protobuf, count_json_items):
            try:
                read(signal, body)
            except EditError:
                pass
