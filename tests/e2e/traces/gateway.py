"""The OTLP side of a running gpumon: its ports, requests to them, and the spans that servers would send now."""

from __future__ import annotations

import gzip
import http.client
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan

from tests.e2e.daemon import Daemon, Reply
from tests.e2e.waiting import eventually
from tests.ingest.rpc import TRACES, Call, raw

_LISTENING = re.compile(r"otlp=listening protocol=(http|grpc) address=127\.0\.0\.1:(\d+)")
OTLP = {
    "GPUMON_OTLP__ENABLED": "true",
    "GPUMON_OTLP__GRPC": "127.0.0.1:0",
    "GPUMON_OTLP__HTTP": "127.0.0.1:0",
}
"""Environment of a gpumon that receives, on ports the system picks."""
PROTOBUF = "application/x-protobuf"
JSON = "application/json"


class Gateway:
    """Where to send to a gpumon that runs with ``OTLP``."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

        def ports() -> dict[str, str] | None:
            found = dict(_LISTENING.findall(daemon.log))
            return found if len(found) == 2 else None

        found = eventually(ports, "two lines with the OTLP ports")
        self.grpc_port, self.http_port = int(found["grpc"]), int(found["http"])
        self.grpc_endpoint = f"http://127.0.0.1:{self.grpc_port}"
        self.http_endpoint = f"http://127.0.0.1:{self.http_port}/v1/traces"

    def post(
        self,
        body: bytes,
        path: str = "/v1/traces",
        media: str = PROTOBUF,
        headers: Mapping[str, str] | None = None,
        *,
        gzipped: bool = False,
        timeout_s: float = 30.0,
    ) -> Reply:
        """One request on a connection of its own."""
        sent = {"Content-Type": media, **(headers or {})} | ({"Content-Encoding": "gzip"} if gzipped else {})
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout_s)
        try:
            connection.request("POST", path, gzip.compress(body, 1) if gzipped else body, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    @contextmanager
    def call(self, method: str = TRACES, *, gzipped: bool = False) -> Iterator[Call]:
        """A gRPC method on bytes."""
        compression = grpc.Compression.Gzip if gzipped else grpc.Compression.NoCompression
        # A subchannel pool of its own: a connection for each, as from as many processes.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options, compression) as channel:
            yield raw(channel, method)

    def send(self, request: ExportTraceServiceRequest, transport: str) -> None:
        """A request that must be taken whole; transport: grpc, http, and either with +gzip."""
        kind, _, gzipped = transport.partition("+")
        body = request.SerializeToString()
        if kind == "http":
            reply = self.post(body, gzipped=bool(gzipped))
            assert reply.status == 200, reply
            answer = reply.body
        else:
            with self.call(gzipped=bool(gzipped)) as call:
                answer = call(body, timeout=30)
        told = ExportTraceServiceResponse.FromString(answer)
        assert not told.HasField("partial_success"), told

    def received(self) -> float:
        """Spans it has counted, of every kind of server."""
        return sum(self.daemon.page().by("server", "gpumon_spans_received_total").values())

    def dropped(self) -> dict[str, float]:
        """Spans that were received and came to nothing, by reason, without zeros."""
        found = self.daemon.page().by("reason", "gpumon_spans_dropped_total")
        return {reason: value for reason, value in found.items() if value}

    def await_requests(self, count: float, **labels: str) -> None:
        """Until so many requests with these labels are on the page."""

        def look() -> bool:
            return sum(value for _, value in self.daemon.page().select("gpumon_requests_total", **labels)) >= count

        eventually(look, f"{count} requests {labels}", every_s=0.2)


def as_of_now(spans: Sequence[ReadableSpan], ended_ago_s: float = 1.0) -> ExportTraceServiceRequest:
    """The spans in one request, moved in time so that the last of them has ended just now."""
    request = encode_spans(spans)
    last_ns = max(span.end_time_unix_nano for span in spans_of(request))
    move(request, time.time_ns() - round(ended_ago_s * 1e9) - last_ns)
    return request


def move(request: ExportTraceServiceRequest, by_ns: int) -> None:
    """All its times, later by so much."""
    for span in spans_of(request):
        span.start_time_unix_nano += by_ns
        span.end_time_unix_nano += by_ns
        for event in span.events:
            event.time_unix_nano += by_ns


def spans_of(request: Any) -> Iterator[Span]:
    """All spans of a request."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def parts_of(request: ExportTraceServiceRequest, size: int) -> list[ExportTraceServiceRequest]:
    """The request, of one resource and scope, in requests of at most so many spans, in order."""
    spans = list(spans_of(request))
    if len(spans) <= size:
        return [request]
    [resource] = request.resource_spans
    [scope] = resource.scope_spans
    parts = []
    for first in range(0, len(spans), size):
        part = ExportTraceServiceRequest()
        whole = part.resource_spans.add(resource=resource.resource, schema_url=resource.schema_url)
        whole.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url, spans=spans[first : first + size])
        parts.append(part)
    return parts
