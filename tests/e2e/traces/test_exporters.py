"""The official exporters into the running daemon, and out of it again: sent = acknowledged = counted = forwarded.

The downstream is a receiver of the test's own, or rotel in front of it; it goes away in the middle, and so does
gpumon, in order or by kill -9.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind

from tests.e2e.daemon import FAST, Daemon
from tests.e2e.nodes import make
from tests.e2e.traces.conftest import Demo
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.e2e.traces.recorder import Recorder, Rotel, Seen, seen_in
from tests.e2e.waiting import eventually, settle
from tests.fakenvml.controller import FakeNode

EXPORTERS = ("grpc", "grpc+gzip", "http", "http+gzip")
ADDED = "gpumon."
"""What every attribute's name begins with that gpumon adds."""
MS = 1_000_000


class Acknowledged(SpanExporter):
    """An official exporter, and what its export said was taken."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.taken: list[ReadableSpan] = []
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.taken += spans
        else:
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def exporter_of(gateway: Gateway, kind: str) -> SpanExporter:
    """As its users make it; kind: one of EXPORTERS."""
    transport, _, gzipped = kind.partition("+")
    if transport == "grpc":
        return GrpcExporter(
            gateway.grpc_endpoint,
            insecure=True,
            compression=grpc.Compression.Gzip if gzipped else grpc.Compression.NoCompression,
        )
    compression = HttpCompression.Gzip if gzipped else HttpCompression.NoCompression
    return HttpExporter(gateway.http_endpoint, compression=compression)


def traced(gateway: Gateway, kind: str, requests: int, resource: dict[str, str] | None = None) -> list[ReadableSpan]:
    """So many requests through a provider with a batch processor; all of their spans, which were acknowledged."""
    acknowledged = Acknowledged(exporter_of(gateway, kind))
    provider = TracerProvider(resource=Resource({"service.name": "shim", **(resource or {})}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(acknowledged, max_export_batch_size=32))
    tracer = provider.get_tracer("gpumon.tokens", "1.2.3")
    for number in range(requests):
        start_ns = time.time_ns() - 200 * MS
        attributes: dict[str, Any] = {
            "gen_ai.request.model": "llama",
            "gen_ai.usage.output_tokens": 16,
            "gen_ai.token.times_ns": [10 * MS * step for step in range(1, 17)],
            "custom.number": number,
        }
        span = tracer.start_span("gen_ai.request", kind=SpanKind.SERVER, attributes=attributes, start_time=start_ns)
        span.add_event("something else", {"detail": "ünï"}, start_ns + MS)
        span.end(start_ns + 190 * MS)
    provider.shutdown()
    assert acknowledged.failed == 0
    assert len(acknowledged.taken) == requests
    return acknowledged.taken


class Arrived(NamedTuple):
    """A span as it came out, what was added to it taken off."""

    resource: bytes
    scope: bytes
    span: bytes
    added: dict[str, object]


def arrived_of(seen: Seen) -> Arrived:
    span = Span()
    span.CopyFrom(seen.span)
    added = {pair.key: pair.value for pair in span.attributes if pair.key.startswith(ADDED)}
    kept = [pair for pair in span.attributes if not pair.key.startswith(ADDED)]
    del span.attributes[:]
    span.attributes.extend(kept)
    values = {key: getattr(value, value.WhichOneof("value") or "") for key, value in added.items()}
    return Arrived(seen.resource, seen.scope, span.SerializeToString(deterministic=True), values)


def check_nothing_is_lost(sent: Sequence[ReadableSpan], recorder: Recorder) -> list[Arrived]:
    """Every span sent is there, every copy of it bit for bit; those that are there."""
    expected = {one.span.span_id: one for one in seen_in(encode_spans(sent))}
    found = [(one.span.span_id, arrived_of(one)) for one in recorder.seen()]
    assert {span_id for span_id, _ in found} == set(expected)
    for span_id, arrived in found:
        original = expected[span_id]
        assert arrived.resource == original.resource
        assert arrived.scope == original.scope
        assert arrived.span == original.span.SerializeToString(deterministic=True)
    return [arrived for _, arrived in found]


def await_arrival(sent: Sequence[ReadableSpan], recorder: Recorder, *, within_s: float = 40.0) -> None:
    ids = {span.context.span_id.to_bytes(8, "big") for span in sent if span.context is not None}
    assert len(ids) == len(sent)
    eventually(lambda: ids <= recorder.ids(), "all spans have arrived downstream", within_s=within_s, every_s=0.2)


def forwarding(recorder_url: str, transport: str, spool: Path | None = None) -> dict[str, str]:
    options = OTLP | {"GPUMON_FORWARD__ENDPOINT": recorder_url, "GPUMON_FORWARD__PROTOCOL": transport}
    return options if spool is None else options | {"GPUMON_FORWARD__SPOOL": str(spool)}


@pytest.mark.parametrize("kind", EXPORTERS)
def test_what_an_exporter_sends_is_acknowledged_counted_and_forwarded(demo: Demo, kind: str) -> None:
    with Recorder(kind.partition("+")[0]) as recorder:
        gateway = demo(forwarding(recorder.url, recorder.transport))
        sent = traced(gateway, kind, 100)
        await_arrival(sent, recorder)
        assert len(check_nothing_is_lost(sent, recorder)) == len(sent)
        assert gateway.received() == len(sent)
        sent_total = "gpumon_forward_sent_total"
        eventually(lambda: gateway.daemon.page().value(sent_total, signal="traces") == len(sent), "the page says so")
        page = gateway.daemon.page()
    transport = kind.partition("+")[0]
    assert page.value("gpumon_otlp_items_total", transport=transport, signal="traces") == len(sent)
    assert sum(value for _, value in page.select("gpumon_forward_dropped_total")) == 0
    assert page.value("gpumon_requests_total", server="gpumon", model="llama", outcome="ok") == len(sent)
    assert page.value("gpumon_inter_token_latency_seconds_count", server="gpumon", model="llama") == 15 * len(sent)


@pytest.fixture
def busy_node(tmp_path: Path) -> Iterator[FakeNode]:
    """Eight H200 at work."""
    with make(tmp_path, "h200") as node:
        yield node


@contextmanager
def gpumon_on(node: FakeNode, folder: Path, options: dict[str, str]) -> Iterator[Gateway]:
    """``gpumon run`` on the fake driver, every source's first pass made."""
    folder.mkdir()
    arguments = ("--nvml-lib", str(node.library))
    with Daemon(folder, *arguments, env=node.env(), options=FAST | options) as daemon:
        daemon.await_ready()
        daemon.await_series("gpumon_gpus", 3)
        yield Gateway(daemon)


def test_forwarded_spans_say_what_their_gpus_did(busy_node: FakeNode, tmp_path: Path) -> None:
    throttled, other = busy_node.gpus[3], busy_node.gpus[4]
    throttled.throttle("hw_thermal", 0.5)
    for gpu, sm in ((throttled, 0.75), (other, 0.25)):
        gpu.set_gpm("sm", sm)
        gpu.set_gpm("dram", 0.5)
    with (
        Recorder("grpc") as recorder,
        gpumon_on(busy_node, tmp_path / "run", forwarding(recorder.url, "grpc")) as gateway,
    ):
        # A resource is bound to its GPUs within five seconds after it was seen first.
        places = {gpu.uuid: {"gpumon.gpu.uuid": gpu.uuid} for gpu in (throttled, other)}
        first = [span for place in places.values() for span in traced(gateway, "grpc", 1, place)]
        await_arrival(first, recorder)
        settle(4.0)
        sent = {
            uuid: traced(gateway, kind, 10, place)
            for kind, (uuid, place) in zip(("grpc", "http"), places.items(), strict=True)
        }
        await_arrival([*first, *(span for spans in sent.values() for span in spans)], recorder)
        arrived = {one.span.span_id: arrived_of(one) for one in recorder.seen()}
    for uuid, spans in sent.items():
        for span in spans:
            assert span.context is not None
            added = arrived[span.context.span_id.to_bytes(8, "big")].added
            assert set(added) == {
                "gpumon.gpu.uuids",
                "gpumon.gpu.sm_active",
                "gpumon.gpu.dram_active",
                "gpumon.gpu.throttled_ms",
            }
            array = added["gpumon.gpu.uuids"]
            assert [value.string_value for value in array.values] == [uuid]  # type: ignore[attr-defined]
            assert added["gpumon.gpu.sm_active"] == pytest.approx(0.75 if uuid == throttled.uuid else 0.25, abs=0.1)
            assert added["gpumon.gpu.dram_active"] == pytest.approx(0.5, abs=0.02)
            if uuid == throttled.uuid:  # half of the span's 190 ms
                assert added["gpumon.gpu.throttled_ms"] == pytest.approx(95, abs=10)
            else:
                assert added["gpumon.gpu.throttled_ms"] == 0.0


@pytest.mark.parametrize(
    ("transport", "number"),
    [("grpc", signal.SIGTERM), ("http", signal.SIGTERM), ("grpc", signal.SIGKILL), ("http", signal.SIGKILL)],
)
def test_nothing_is_lost_over_an_outage_with_a_restart_in_it(
    busy_node: FakeNode, tmp_path: Path, transport: str, number: signal.Signals
) -> None:
    recorder = Recorder(transport)
    options = {}
    sent: list[ReadableSpan] = []
    with recorder:
        options = forwarding(recorder.url, transport, tmp_path / "spool")
        with gpumon_on(busy_node, tmp_path / "first", options) as gateway:
            for kind in EXPORTERS:
                sent += traced(gateway, kind, 20)
            await_arrival(sent, recorder)
            recorder.stop()
            for kind in EXPORTERS:
                sent += traced(gateway, kind, 50)
            failing = "gpumon_forward_up"
            eventually(lambda: gateway.daemon.page().value(failing) == 0, "the outage is noticed")
            for kind in EXPORTERS:
                sent += traced(gateway, kind, 50)
            # The last acknowledgement was a moment ago.
            gateway.daemon.process.send_signal(number)
            gateway.daemon.process.wait(20)
        with gpumon_on(busy_node, tmp_path / "second", options) as gateway:
            for kind in EXPORTERS:
                sent += traced(gateway, kind, 20)
            queue = "gpumon_forward_queue_items"
            eventually(lambda: gateway.daemon.page().value(queue, place="spool") > 0, "what is spooled is on the page")
            recorder.start()
            await_arrival(sent, recorder, within_s=60)
            check_nothing_is_lost(sent, recorder)
            eventually(lambda: sum(gateway.daemon.page().by("place", queue).values()) == 0, "the spool is empty")
            page = gateway.daemon.page()
            assert sum(value for _, value in page.select("gpumon_forward_dropped_total")) == 0
    assert len(recorder.seen()) <= 2 * len(sent)


def test_through_a_real_collector(demo: Demo, tmp_path: Path) -> None:
    with Recorder("grpc") as recorder, Rotel(tmp_path, recorder.url) as rotel:
        gateway = demo(forwarding(rotel.url, "grpc"))
        sent = [span for kind in EXPORTERS for span in traced(gateway, kind, 50)]
        await_arrival(sent, recorder)
        assert gateway.received() == len(sent)
        found = {one.span.span_id: one.span for one in recorder.seen()}
    for original in seen_in(encode_spans(sent)):
        passed = found[original.span.span_id]
        assert (passed.trace_id, passed.name, passed.kind) == (
            original.span.trace_id,
            original.span.name,
            original.span.kind,
        )
        times = (passed.start_time_unix_nano, passed.end_time_unix_nano)
        assert times == (original.span.start_time_unix_nano, original.span.end_time_unix_nano)
        attributes = {pair.key: pair.value for pair in passed.attributes if not pair.key.startswith(ADDED)}
        assert attributes == {pair.key: pair.value for pair in original.span.attributes}
