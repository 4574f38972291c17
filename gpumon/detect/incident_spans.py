"""An incident as an OTLP span, linked to the request spans that it touched. Protobuf, by the official classes.

Made when an incident closes, and for one that is still open when gpumon ends. All spans of one incident are in one
trace, whose id is a hash of the incident's; an incident that is told of twice (it goes on after a restart, or began
anew shortly after it was over) has two spans, of different ends, in it. The name is ``gpumon.incident``; attributes:

``gpumon.incident.id``, ``.kind``, ``.severity``, ``.entity``, ``.summary``, ``.action``, ``.recording``
``gpumon.incident.open``       true where it had not closed: the end is then when it last held
``gpumon.incident.requests``   how many requests it touched; the links are to the first ones
``gpumon.gpu.uuids``           the GPU concerned, in the words of the request spans (docs/TOKENS.md)
``gpumon.evidence.<name>.observed``, ``.baseline``, ``.unit``  its figures, in base units

A request whose own span never came has no span to link to: OTLP wants a span id in a link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon import __version__
from gpumon.detect.incident import Incident

NAME: Final = "gpumon.incident"

Send = Callable[[bytes, float], None]
"""Takes an export request of traces, and the steady time now; must not wait."""


def export_request(incident: Incident, to_unix: Callable[[float], float], host_name: str = "") -> bytes:
    """One span in a request of its own. to_unix: of steady seconds. host_name: of this node; empty: not said."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key, text in (("service.name", "gpumon"), ("service.version", __version__), ("host.name", host_name)):
        if text:
            resource.resource.attributes.add(key=key).value.string_value = text
    scope = resource.scope_spans.add()
    scope.scope.name = "gpumon.detect"
    scope.scope.version = __version__
    _fill(scope.spans.add(), incident, to_unix)
    return request.SerializeToString()


class IncidentSpans:
    """Sends a span for every incident that closes. An ``IncidentListener``."""

    def __init__(self, send: Send, to_unix: Callable[[float], float], host_name: str = "") -> None:
        self._send = send
        self._to_unix = to_unix
        self._host_name = host_name

    def opened(self, incident: Incident, at_s: float) -> None:
        """Nothing yet: a span is told of when it has ended."""

    def closed(self, incident: Incident, at_s: float) -> None:
        self._send(export_request(incident, self._to_unix, self._host_name), at_s)

    def end(self, incidents: Iterable[Incident], at_s: float) -> None:
        """gpumon ends: tell of those that are still open."""
        for incident in incidents:
            if incident.is_open:
                self._send(export_request(incident, self._to_unix, self._host_name), at_s)


def _fill(span: Span, incident: Incident, to_unix: Callable[[float], float]) -> None:
    start_ns, end_ns = _nanoseconds(to_unix(incident.since_s)), _nanoseconds(to_unix(incident.seen_s))
    span.name = NAME
    span.kind = Span.SPAN_KIND_INTERNAL
    span.trace_id = _hash(incident.id, 16)
    span.span_id = _hash(f"{incident.id} {end_ns}", 8)
    span.start_time_unix_nano = start_ns
    span.end_time_unix_nano = max(start_ns, end_ns)
    for key, text in (
        ("id", incident.id),
        ("kind", incident.kind),
        ("severity", incident.severity.value),
        ("entity", incident.entity.name),
        ("summary", incident.summary),
        ("action", incident.action),
        ("recording", incident.recording),
    ):
        if text:
            span.attributes.add(key=f"gpumon.incident.{key}").value.string_value = text
    span.attributes.add(key="gpumon.incident.open").value.bool_value = incident.is_open
    span.attributes.add(key="gpumon.incident.requests").value.int_value = incident.requests
    if incident.entity.uuid:
        uuids = span.attributes.add(key="gpumon.gpu.uuids").value.array_value
        uuids.values.add().string_value = incident.entity.uuid
    for figure in {each.name: each for each in incident.evidence}.values():
        prefix = f"gpumon.evidence.{figure.name}"
        span.attributes.add(key=f"{prefix}.observed").value.double_value = figure.observed
        if figure.baseline is not None:
            span.attributes.add(key=f"{prefix}.baseline").value.double_value = figure.baseline
        if figure.unit:
            span.attributes.add(key=f"{prefix}.unit").value.string_value = figure.unit.value
    for trace_id, span_id in zip(incident.traces, incident.spans, strict=True):
        if span_id:
            span.links.add(trace_id=bytes.fromhex(trace_id), span_id=bytes.fromhex(span_id))


def _nanoseconds(unix_s: float) -> int:
    return max(0, round(unix_s * 1e9))


def _hash(text: str, size: int) -> bytes:
    """Never all zero in practice: once in 2**64."""
    return hashlib.blake2b(text.encode(), digest_size=size).digest()
