"""Incidents as OTLP spans, read with the official classes and by gpumon's own receiver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon.detect.detector import Entity, Evidence, Severity
from gpumon.detect.incident import Incident
from gpumon.detect.incident_spans import IncidentSpans, export_request
from gpumon.export.forward_schema import count_items
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.records import DecodeError
from gpumon.ingest.request import Signal
from gpumon.model import Unit
from tests.detect.findings import GPU3, OFFSET_S, to_unix

CLOSED = Incident(
    id="20270115T081641Z-thermal_throttle-gpu-3",
    kind="thermal_throttle",
    entity=GPU3,
    severity=Severity.WARNING,
    since_s=998.5,
    opened_s=1001.0,
    seen_s=1010.0,
    summary="SM clock 1410 → 1005 MHz at 90 °C",
    evidence=(
        Evidence("sm_clock", 1.005e9, Unit.HERTZ, 1.41e9),
        Evidence("throttled", 0.4, Unit.NONE),
    ),
    action="Cool it.",
    closed_s=1020.0,
    traces=("0" * 31 + "1", "0" * 31 + "2"),
    spans=("0" * 15 + "7", ""),
    requests=40,
)


def plain(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [plain(each) for each in value.array_value.values]
    return getattr(value, which or "")


def the_span(body: bytes) -> Span:
    request = ExportTraceServiceRequest.FromString(body)
    ((span,),) = [scope.spans for resource in request.resource_spans for scope in resource.scope_spans]
    return span


def attributes(span: Span) -> dict[str, Any]:
    told = {attribute.key: plain(attribute.value) for attribute in span.attributes}
    assert len(told) == len(span.attributes), "a key twice"
    return told


def test_an_incident_is_a_span_from_its_beginning_to_when_it_last_held() -> None:
    span = the_span(export_request(CLOSED, to_unix))
    assert span.name == "gpumon.incident"
    assert span.kind == Span.SPAN_KIND_INTERNAL
    assert span.start_time_unix_nano == round((OFFSET_S + 998.5) * 1e9)
    assert span.end_time_unix_nano == round((OFFSET_S + 1010.0) * 1e9)
    assert attributes(span) == {
        "gpumon.incident.id": "20270115T081641Z-thermal_throttle-gpu-3",
        "gpumon.incident.kind": "thermal_throttle",
        "gpumon.incident.severity": "warning",
        "gpumon.incident.entity": "gpu 3",
        "gpumon.incident.summary": "SM clock 1410 → 1005 MHz at 90 °C",
        "gpumon.incident.action": "Cool it.",
        "gpumon.incident.open": False,
        "gpumon.incident.requests": 40,
        "gpumon.gpu.uuids": ["GPU-0003"],
        "gpumon.evidence.sm_clock.observed": 1.005e9,
        "gpumon.evidence.sm_clock.baseline": 1.41e9,
        "gpumon.evidence.sm_clock.unit": "hertz",
        "gpumon.evidence.throttled.observed": 0.4,
    }


def test_it_says_who_speaks() -> None:
    request = ExportTraceServiceRequest.FromString(export_request(CLOSED, to_unix, "node-7"))
    told = {each.key: plain(each.value) for each in request.resource_spans[0].resource.attributes}
    assert (told["service.name"], told["host.name"]) == ("gpumon", "node-7")
    unnamed = ExportTraceServiceRequest.FromString(export_request(CLOSED, to_unix))
    assert "host.name" not in {each.key for each in unnamed.resource_spans[0].resource.attributes}


def test_it_links_to_the_request_spans_that_are_known() -> None:
    (link,) = the_span(export_request(CLOSED, to_unix)).links
    assert (link.trace_id, link.span_id) == (bytes(15) + b"\x01", bytes(7) + b"\x07")


def test_ids_come_from_the_incident_and_all_its_spans_are_in_one_trace() -> None:
    closed = the_span(export_request(CLOSED, to_unix))
    again = the_span(export_request(CLOSED, to_unix))
    longer = the_span(export_request(replace(CLOSED, seen_s=1015.0), to_unix))
    other = the_span(export_request(replace(CLOSED, id="20270115T081641Z-thermal_throttle-gpu-4"), to_unix))
    assert (closed.trace_id, closed.span_id) == (again.trace_id, again.span_id)
    assert len(closed.trace_id) == 16
    assert len(closed.span_id) == 8
    assert longer.trace_id == closed.trace_id
    assert longer.span_id != closed.span_id
    assert other.trace_id != closed.trace_id


def test_of_one_that_is_open_it_says_so() -> None:
    span = the_span(export_request(replace(CLOSED, closed_s=None, recording="x.gpumon"), to_unix))
    assert attributes(span)["gpumon.incident.open"] is True
    assert attributes(span)["gpumon.incident.recording"] == "x.gpumon"


def test_figures_of_one_name_are_one_attribute() -> None:
    twice = (Evidence("f", 1.0, Unit.NONE), Evidence("f", 2.0, Unit.NONE))
    assert attributes(the_span(export_request(replace(CLOSED, evidence=twice), to_unix)))[
        "gpumon.evidence.f.observed"
    ] == pytest.approx(2.0)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.floats(-1e6, 1e6),
    st.floats(-1e6, 1e6),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_every_span_is_one_that_a_receiver_takes(text: str, since_s: float, seen_s: float, observed: float) -> None:
    incident = replace(
        CLOSED,
        entity=Entity("process", text, "", text),
        summary=text,
        since_s=since_s,
        seen_s=seen_s,
        evidence=(Evidence("f", observed, Unit.NONE, observed),),
    )
    body = export_request(incident, to_unix)
    assert count_items(Signal.TRACES, body) == 1
    (decoded,) = decode_traces([body])
    assert not isinstance(decoded, DecodeError)
    (span,) = decoded.spans
    assert span.start_ns <= span.end_ns


def test_a_span_is_sent_when_an_incident_closes_and_at_the_end_for_those_still_open() -> None:
    sent: list[tuple[bytes, float]] = []
    spans = IncidentSpans(lambda body, at_s: sent.append((body, at_s)), to_unix, "node-7")
    still_open = replace(CLOSED, closed_s=None)
    spans.opened(still_open, 1001.0)
    assert sent == []
    spans.closed(CLOSED, 1020.0)
    assert sent == [(export_request(CLOSED, to_unix, "node-7"), 1020.0)]
    sent.clear()
    spans.end([CLOSED, still_open], 1030.0)
    assert sent == [(export_request(still_open, to_unix, "node-7"), 1030.0)]
