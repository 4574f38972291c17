from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace.export import SpanExportResult

from gpumon.ingest.intake import SinkFullError
from gpumon.ingest.limits import MIB, Limits
from gpumon.ingest.request import Signal
from tests.ingest.receiving import DECODERS, Receiving
from tests.ingest.rpc import LOGS, METRICS, TRACES, Call, RetryInfo, Status, raw, stub
from tests.ingest.sdk import export, sdk_spans
from tests.ingest.spans import PROMPT, body, decode_loops, message, span, text

UNLIMITED = [("grpc.max_send_message_length", -1)]
SMALL = Limits(body_bytes=MIB, queue_bytes=2 * MIB)


@pytest.fixture(scope="module")
def receiving() -> Iterator[Receiving]:
    with Receiving() as running:
        yield running


@pytest.fixture(autouse=True)
def forget(request: pytest.FixtureRequest) -> None:
    if "receiving" in request.fixturenames:
        request.getfixturevalue("receiving").taken.clear()


@pytest.fixture
def channel(receiving: Receiving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{receiving.grpc_port}", options=UNLIMITED) as opened:
        yield opened


def traces(channel: grpc.Channel) -> Call:
    return stub(channel, TRACES, ExportTraceServiceResponse)


def refusal(call: Any, *given: Any, **more: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as raised:
        call(*given, timeout=20, **more)
    return raised.value


def metadata(error: Any, key: str) -> bytes | None:
    return dict(error.trailing_metadata()).get(key)


def test_empty_requests_of_each_signal_succeed(receiving: Receiving, channel: grpc.Channel) -> None:
    assert traces(channel)(ExportTraceServiceRequest()) == ExportTraceServiceResponse()
    assert (
        stub(channel, METRICS, ExportMetricsServiceResponse)(ExportMetricsServiceRequest())
        == ExportMetricsServiceResponse()
    )
    assert stub(channel, LOGS, ExportLogsServiceResponse)(ExportLogsServiceRequest()) == ExportLogsServiceResponse()
    assert [taken.signal for taken in receiving.taken] == list(Signal)


def test_full_success_leaves_partial_success_unset(receiving: Receiving, channel: grpc.Channel) -> None:
    answer = traces(channel)(message(span()))
    assert not answer.HasField("partial_success")
    (taken,) = receiving.taken
    assert (taken.body, taken.is_json) == (body(), False)
    host, _, port = taken.peer.partition(":")
    assert host == "127.0.0.1"
    assert port.isdigit()


def test_bad_spans_are_rejected_one_by_one(channel: grpc.Channel) -> None:
    answer = traces(channel)(message(span(1), span(2, trace_id=bytes(16))))
    assert answer.partial_success.rejected_spans == 1
    assert answer.partial_success.error_message


def test_gzip_is_read(receiving: Receiving, channel: grpc.Channel) -> None:
    traces(channel)(message(span()), compression=grpc.Compression.Gzip)
    assert receiving.taken[0].body == body()


def test_malformed_bodies_are_invalid_argument_with_a_status(channel: grpc.Channel) -> None:
    error = refusal(raw(channel), b"\xff\xff not a request")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = Status.FromString(metadata(error, "grpc-status-details-bin") or b"")
    assert (status.code, status.message) == (3, error.details())
    assert error.details()


def test_a_batch_above_four_mebibytes_is_taken_whole(receiving: Receiving, channel: grpc.Channel) -> None:
    data = decode_loops(30_000)  # vector T16
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        assert raw(channel)(data, compression=compression) == b""
    for taken in receiving.taken:
        assert sum(len(steps.span_ids) for steps in taken.decoded.steps) + len(taken.decoded.spans) == 30_000


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_too_large_is_resource_exhausted_and_not_to_be_sent_again(compression: grpc.Compression) -> None:
    with Receiving(SMALL) as receiving:
        with grpc.insecure_channel(f"127.0.0.1:{receiving.grpc_port}", options=UNLIMITED) as channel:
            error = refusal(raw(channel), bytes(64 * MIB), compression=compression)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert metadata(error, "grpc-status-details-bin") is None
        assert metadata(error, "google.rpc.retryinfo-bin") is None
        assert not receiving.taken


def test_overload_is_unavailable_with_a_time_to_come_again() -> None:
    may_go_on = threading.Event()
    began = threading.Event()

    def decode(bodies: object) -> list[object]:
        began.set()
        assert may_go_on.wait(20)
        raise AssertionError("nobody looks at this")

    stuck = DECODERS._replace(traces=decode)  # type: ignore[arg-type]  # it never returns
    with (
        Receiving(replace(SMALL, queue_requests=1), stuck) as receiving,
        grpc.insecure_channel(f"127.0.0.1:{receiving.grpc_port}") as channel,
    ):
        call = raw(channel)
        first = call.future(body(), timeout=20)
        assert began.wait(20)
        error = refusal(call, body())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        status = Status.FromString(metadata(error, "grpc-status-details-bin") or b"")
        found = RetryInfo()
        assert status.details[0].Unpack(found)
        assert 1 <= found.retry_delay.seconds <= 4
        assert RetryInfo.FromString(metadata(error, "google.rpc.retryinfo-bin") or b"") == found
        may_go_on.set()
        assert first.code() is grpc.StatusCode.INTERNAL
        assert receiving.counts()["otlp_requests", "grpc", "traces", "overload"] == 1


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    error = refusal(raw(channel, TRACES.replace("Export", "Import")), b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_silent_connections_do_not_keep_others_out_for_long() -> None:
    with Receiving(Limits(connections=20, head_timeout_s=0.5)) as receiving:
        address = ("127.0.0.1", receiving.grpc_port)
        silent = [socket.create_connection(address) for _ in range(200)]
        with grpc.insecure_channel(f"127.0.0.1:{receiving.grpc_port}") as channel:
            assert traces(channel)(message(span()), timeout=20, wait_for_ready=True)
        for connection in silent:
            connection.close()


def test_the_port_is_not_shared_with_another() -> None:
    with Receiving() as first:
        second = Receiving(grpc_port=first.grpc_port)
        with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1"):
            second.__enter__()


def test_a_prompt_is_in_no_answer_and_no_log(channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    bad = span(2, trace_id=b"short", name=PROMPT, attributes=[text("gen_ai.prompt", PROMPT)])
    with caplog.at_level(logging.DEBUG, logger="gpumon"):
        assert PROMPT not in traces(channel)(message(bad)).partial_success.error_message
        assert PROMPT not in refusal(raw(channel), body(bad)[:-5]).details()
    assert PROMPT not in caplog.text


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_the_official_exporter_is_acknowledged(receiving: Receiving, compression: grpc.Compression) -> None:
    exporter = OTLPSpanExporter(f"127.0.0.1:{receiving.grpc_port}", insecure=True, compression=compression)
    before = receiving.counts().get(("otlp_items", "grpc", "traces"), 0)
    assert export(exporter, sdk_spans(3)) is SpanExportResult.SUCCESS
    assert [one.name for taken in receiving.taken for one in taken.decoded.spans] == ["llm_request"] * 3
    assert receiving.counts()["otlp_items", "grpc", "traces"] == before + 3


def test_the_official_exporter_gets_through_a_restart() -> None:
    with Receiving() as first:
        port = first.grpc_port
        exporter = OTLPSpanExporter(f"127.0.0.1:{port}", insecure=True)
        assert exporter.export(sdk_spans(1)) is SpanExportResult.SUCCESS
    results: list[SpanExportResult] = []
    exporting = threading.Thread(target=lambda: results.append(export(exporter, sdk_spans(2))))
    exporting.start()
    exporting.join(0.3)  # it has found nobody, and tries again
    with Receiving(grpc_port=port) as second:
        exporting.join(20)
        assert results == [SpanExportResult.SUCCESS]
        assert sum(len(taken.decoded.spans) for taken in second.taken) == 2


def test_the_official_exporter_gets_through_an_overload() -> None:
    full = threading.Event()
    full.set()
    taken: list[object] = []

    def sink(*given: object) -> None:
        if full.is_set():
            full.clear()
            raise SinkFullError
        taken.append(given)

    with Receiving(sink=sink) as receiving:
        exporter = OTLPSpanExporter(f"127.0.0.1:{receiving.grpc_port}", insecure=True)
        assert export(exporter, sdk_spans(1)) is SpanExportResult.SUCCESS
        counts = receiving.counts()
    assert len(taken) == 1
    assert counts["otlp_requests", "grpc", "traces", "overload"] == 1
    assert counts["otlp_requests", "grpc", "traces", "ok"] == 1
