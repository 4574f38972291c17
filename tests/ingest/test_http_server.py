from __future__ import annotations

import gzip
import logging
import resource
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace.export import SpanExportResult

from gpumon.ingest.limits import MIB, Limits
from gpumon.ingest.request import Signal
from tests.ingest.receiving import DECODERS, JSON, PROTOBUF, Receiving, read_all
from tests.ingest.rpc import Status, raw
from tests.ingest.sdk import export, sdk_spans
from tests.ingest.spans import PROMPT, as_json, body, decode_loops, json_body, span, text

GZIP = {"Content-Encoding": "gzip"}
SMALL = Limits(body_bytes=MIB, queue_bytes=2 * MIB, body_timeout_s=0.5, head_timeout_s=0.5)


@pytest.fixture(scope="module")
def receiving() -> Iterator[Receiving]:
    with Receiving() as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def many_files() -> None:
    """Both ends of two thousand connections are in this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture(autouse=True)
def forget(request: pytest.FixtureRequest) -> None:
    if "receiving" in request.fixturenames:
        request.getfixturevalue("receiving").taken.clear()


# --- the rules of the specification ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics", "/v1/logs"])
@pytest.mark.parametrize(("media", "empty", "answer"), [(PROTOBUF, b"", b""), (JSON, b"{}", b"{}")])
def test_an_empty_request_succeeds(receiving: Receiving, path: str, media: str, empty: bytes, answer: bytes) -> None:
    reply = receiving.post(path, empty, media)
    assert (reply.status, reply.body) == (200, answer)
    assert reply.headers["content-type"] == media


def test_full_success_is_200_with_partial_success_unset(receiving: Receiving) -> None:
    reply = receiving.post("/v1/traces", body())
    assert reply.status == 200
    assert not ExportTraceServiceResponse.FromString(reply.body).HasField("partial_success")
    (taken,) = receiving.taken
    assert (taken.signal, taken.is_json, taken.body) == (Signal.TRACES, False, body())
    assert taken.peer.startswith("127.0.0.1:")
    assert [one.name for one in taken.decoded.spans] == ["llm_request"]


@pytest.mark.parametrize(
    "media", ["application/json; charset=utf-8", "Application/JSON;charset=UTF-8", " application/json ;x"]
)
def test_json_is_taken_with_parameters_and_in_any_case(receiving: Receiving, media: str) -> None:
    reply = receiving.post("/v1/traces", json_body(), media)
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"{}", JSON)
    assert receiving.taken[0].is_json


@pytest.mark.parametrize("media", ["APPLICATION/X-PROTOBUF", "application/x-protobuf; messageType=x"])
def test_protobuf_is_taken_with_parameters_and_in_any_case(receiving: Receiving, media: str) -> None:
    assert receiving.post("/v1/traces", body(), media).status == 200


@pytest.mark.parametrize("media", [None, "", "text/plain", "application/protobuf", "application/grpc", "json", ";"])
def test_other_media_types_are_415(receiving: Receiving, media: str | None) -> None:
    reply = receiving.post("/v1/traces", body(), media)
    assert reply.status == 415
    assert "application/x-protobuf" in as_json(reply.body)["message"]
    assert not receiving.taken


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_405_and_name_the_right_one(receiving: Receiving, method: str) -> None:
    reply = receiving.post("/v1/traces", b"", method=method)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path", ["/", "/v1/trace", "/v1/traces/", "/v1development/profiles", "/metrics", "//v1/traces"]
)
def test_other_paths_are_404(receiving: Receiving, path: str) -> None:
    assert receiving.post(path, body()).status == 404


def test_a_query_does_not_matter(receiving: Receiving) -> None:
    assert receiving.post("/v1/traces?tenant=a", body()).status == 200


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics", "/v1/logs"])
@pytest.mark.parametrize("media", [PROTOBUF, JSON])
def test_malformed_bodies_are_400_with_a_status_in_the_encoding_of_the_request(
    receiving: Receiving, path: str, media: str
) -> None:
    reply = receiving.post(path, b"\xff\xff not a request", media)
    assert (reply.status, reply.headers["content-type"]) == (400, media)
    if media == PROTOBUF:
        assert Status.FromString(reply.body).code == 3
        assert Status.FromString(reply.body).message
    else:
        assert as_json(reply.body)["code"] == 3
        assert as_json(reply.body)["message"]


def test_metrics_and_logs_are_taken(receiving: Receiving) -> None:
    metrics = ExportMetricsServiceRequest()
    points = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points
    points.add(as_int=1)
    points.add(as_int=2)
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "x"
    before = receiving.counts()
    assert receiving.post("/v1/metrics", metrics.SerializeToString()).status == 200
    assert receiving.post("/v1/logs", logs.SerializeToString()).status == 200
    assert [taken.signal for taken in receiving.taken] == [Signal.METRICS, Signal.LOGS]
    after = receiving.counts()
    for signal, items in (("metrics", 2), ("logs", 1)):
        key = ("otlp_items", "http", signal)
        assert after[key] - before.get(key, 0) == items


# --- compression and size -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " gzip "])
def test_gzip_is_read(receiving: Receiving, encoding: str) -> None:
    reply = receiving.post("/v1/traces", gzip.compress(body()), headers={"Content-Encoding": encoding})
    assert reply.status == 200
    assert receiving.taken[0].body == body()


def test_gzip_of_several_members_is_read(receiving: Receiving) -> None:
    packed = gzip.compress(body()[:20]) + gzip.compress(body()[20:])
    assert receiving.post("/v1/traces", packed, headers=GZIP).status == 200
    assert receiving.taken[0].body == body()


def test_identity_is_no_encoding(receiving: Receiving) -> None:
    assert receiving.post("/v1/traces", body(), headers={"Content-Encoding": "identity"}).status == 200


@pytest.mark.parametrize("media", [PROTOBUF, JSON])
def test_a_gzip_header_over_a_plain_body_is_400(receiving: Receiving, media: str) -> None:
    assert receiving.post("/v1/traces", body(), media, GZIP).status == 400


@pytest.mark.parametrize("encoding", ["deflate", "zstd", "br", "snappy", "gzip, gzip"])
def test_other_encodings_are_415_and_the_right_one_is_named(receiving: Receiving, encoding: str) -> None:
    reply = receiving.post("/v1/traces", zlib.compress(body()), headers={"Content-Encoding": encoding})
    assert (reply.status, reply.headers["accept-encoding"]) == (415, "gzip")


def test_a_bomb_of_a_gigabyte_is_413(receiving: Receiving) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(1024)) + packer.flush()
    reply = receiving.post("/v1/traces", bomb, headers=GZIP)
    assert reply.status == 413
    status = Status.FromString(reply.body)
    assert status.code == 8
    assert not status.details  # nothing that invites to send it again
    assert "retry-after" not in reply.headers


def test_a_length_above_the_limit_is_413_before_anything_is_sent() -> None:
    with Receiving(SMALL) as receiving:
        head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nContent-Length: {MIB + 1}\r\n"
        for expect in ("Expect: 100-continue\r\n", ""):
            connection = receiving.raw(f"{head}{expect}\r\n".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
            connection.close()


def test_a_sender_of_too_much_gets_to_read_its_413() -> None:
    with Receiving(SMALL) as receiving:
        reply = receiving.post("/v1/traces", bytes(40 * MIB))
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert receiving.counts()["otlp_requests", "http", "traces", "too_large"] == 1


def test_chunks_are_counted_while_they_are_read() -> None:
    with Receiving(SMALL) as receiving:
        connection = receiving.raw(head(chunked=True))
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        for _ in range(17):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")


def test_chunked_bodies_are_taken(receiving: Receiving) -> None:
    data = body()
    connection = receiving.raw(head(chunked=True))
    for at in range(0, len(data), 7):
        piece = data[at : at + 7]
        connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    connection.sendall(b"0\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    connection.close()
    assert receiving.taken[0].body == data


def test_a_request_of_exactly_the_limit_is_read() -> None:
    with Receiving(SMALL) as receiving:
        assert receiving.post("/v1/traces", filling(MIB)).status == 200
        assert receiving.post("/v1/traces", filling(MIB + 1)).status == 413
        assert receiving.post("/v1/traces", gzip.compress(filling(MIB + 1)), headers=GZIP).status == 413


def test_a_batch_above_four_mebibytes_is_taken_whole(receiving: Receiving) -> None:
    data = decode_loops(30_000)  # vector T16
    assert len(data) > 5_000_000
    for sent, headers in ((data, {}), (gzip.compress(data, 1), GZIP)):
        reply = receiving.post("/v1/traces", sent, headers=headers)
        assert (reply.status, reply.body) == (200, b"")
    for taken in receiving.taken:
        assert sum(len(steps.span_ids) for steps in taken.decoded.steps) + len(taken.decoded.spans) == 30_000


# --- what users reported --------------------------------------------------------------------------------------------


def test_ids_in_base64_are_rejected_with_a_message_that_names_them(receiving: Receiving) -> None:
    reply = receiving.post("/v1/traces", json_body(traceId="W47/95gDgQPSabYzgT/GDA==", spanId="7uGbfsPBsXQ="), JSON)
    assert reply.status == 200  # vector T8
    partial = as_json(reply.body)["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert "hex" in partial["errorMessage"]
    assert not receiving.taken[0].decoded.spans


def test_ids_of_zeros_cost_their_span_and_not_the_batch(receiving: Receiving) -> None:
    sent = body(span(1), span(2, trace_id=bytes(16), span_id=bytes(8)), span(3, trace_id=bytes(24)))  # vector T9
    reply = receiving.post("/v1/traces", sent)
    partial = ExportTraceServiceResponse.FromString(reply.body).partial_success
    assert (reply.status, partial.rejected_spans) == (200, 2)
    assert partial.error_message
    assert len(receiving.taken[0].decoded.spans) == 1


def test_a_span_without_kind_is_a_span(receiving: Receiving) -> None:
    reply = receiving.post("/v1/traces", json_body(kind=None), JSON)  # vector T11
    assert (reply.status, reply.body) == (200, b"{}")
    assert len(receiving.taken[0].decoded.spans) == 1


def test_logs_on_the_path_of_traces_are_no_spans_and_warned_of(receiving: Receiving) -> None:
    sent = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}'  # vector T18
    partial = as_json(receiving.post("/v1/traces", sent, JSON).body)["partialSuccess"]
    assert partial["errorMessage"]
    assert "rejectedSpans" not in partial
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "x"
    reply = receiving.post("/v1/traces", logs.SerializeToString())
    assert reply.status in (200, 400)
    if reply.status == 200:
        assert ExportTraceServiceResponse.FromString(reply.body).partial_success.rejected_spans == 1
    assert not [one for taken in receiving.taken for one in taken.decoded.spans]


def test_a_prompt_is_in_no_answer_and_no_log(receiving: Receiving, caplog: pytest.LogCaptureFixture) -> None:
    prompt = span(2, trace_id=b"short", name=PROMPT, attributes=[text("gen_ai.prompt", PROMPT), text("x", PROMPT)])
    bodies = [
        (body(prompt), PROTOBUF),
        (body(prompt)[:-5], PROTOBUF),
        (json_body(traceId=PROMPT, name=PROMPT), JSON),
        (json_body(startTimeUnixNano=PROMPT), JSON),
        (json_body(attributes=[{"key": "gen_ai.prompt", "value": {"stringValue": PROMPT}}])[:-1], JSON),
    ]
    with caplog.at_level(logging.DEBUG):
        for sent, media in bodies:
            assert PROMPT.encode() not in receiving.post("/v1/traces", sent, media).body
    assert PROMPT not in caplog.text


# --- overload -------------------------------------------------------------------------------------------------------


def test_overload_is_503_with_a_time_to_come_again() -> None:
    may_go_on = threading.Event()
    began = threading.Event()

    def traces(bodies: object) -> list[object]:
        began.set()
        assert may_go_on.wait(20)
        raise AssertionError("nobody looks at this")

    stuck = DECODERS._replace(traces=traces)  # type: ignore[arg-type]  # it never returns
    with Receiving(replace(SMALL, queue_requests=1), stuck) as receiving:
        connection = receiving.raw(head(len(body())) + body())
        assert began.wait(20)
        for media in (PROTOBUF, JSON):
            reply = receiving.post("/v1/traces", body(), media)
            assert reply.status == 503
            assert 1 <= int(reply.headers["retry-after"]) <= 4
        may_go_on.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 500 ")
        connection.close()
        assert receiving.counts()["otlp_requests", "http", "traces", "overload"] == 2


def test_bodies_being_read_share_one_budget() -> None:
    with Receiving(replace(SMALL, queue_bytes=MIB, body_timeout_s=20.0)) as receiving:
        holders = [receiving.raw(head(700_000) + bytes(600_000)) for _ in range(2)]
        readable = [holder for holder in holders if answers(holder)]
        assert len(readable) == 1  # the other's half a body is all there is room for
        assert readable[0].recv(65536).startswith(b"HTTP/1.1 503 ")
        for holder in holders:
            holder.close()


# --- senders that are slow, silent, many or lost --------------------------------------------------------------------


def test_a_body_of_a_byte_now_and_then_is_408_in_the_end() -> None:
    with Receiving(SMALL) as receiving:
        connection = receiving.raw(head(1000))
        connection.settimeout(0.05)
        answer = trickle(connection, b"x", 100)
        assert answer.startswith(b"HTTP/1.1 408 ")
        connection.settimeout(10)
        read_all(connection)
        counts = receiving.counts()
        assert counts["otlp_requests", "http", "traces", "too_slow"] == 1
        assert ("otlp_requests_waiting",) not in counts


def test_headers_of_a_byte_now_and_then_are_cut_off() -> None:
    with Receiving(SMALL) as receiving:
        connection = receiving.raw(b"POST /v1/traces HTTP/1.1\r\nX: ")
        connection.settimeout(0.05)
        assert trickle(connection, b"x", 100) == b""
        connection.close()
        assert receiving.counts()["otlp_http_connections_closed", "slow"] == 1


def test_a_connection_that_says_nothing_is_closed_and_one_that_has_spoken_is_kept() -> None:
    with Receiving(SMALL) as receiving:
        kept = receiving.raw(head(0))
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 ")
        silent = receiving.raw()
        assert read_all(silent) == b""
        kept.sendall(head(0))
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 ")
        kept.close()


def test_endless_headers_are_cut_off() -> None:
    with Receiving() as receiving:
        connection = receiving.raw(b"POST /v1/traces HTTP/1.1\r\nX: ")
        answer = flood(connection, b"x" * 65536)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        assert receiving.counts()["otlp_http_connections_closed", "large"] == 1


def test_endless_trailers_are_cut_off() -> None:
    with Receiving() as receiving:
        connection = receiving.raw(head(chunked=True) + b"1\r\nx\r\n0\r\nX: ")
        flood(connection, b"x" * 65536)
        assert receiving.counts()["otlp_http_connections_closed", "large"] == 1


def test_a_thousand_silent_connections_do_not_keep_others_out() -> None:
    with Receiving(Limits(connections=100)) as receiving:
        silent = [receiving.raw() for _ in range(1000)]
        for _ in range(3):
            assert receiving.post("/v1/traces", body()).status == 200
        counts = receiving.counts()
        assert counts["otlp_http_connections",] <= 101
        assert counts["otlp_http_connections_closed", "limit"] >= 900
        for connection in silent:
            connection.close()


def test_a_thousand_open_connections_are_served() -> None:
    with Receiving(Limits(connections=2000)) as receiving:
        idle = [receiving.raw() for _ in range(1000)]
        assert receiving.post("/v1/traces", body()).status == 200
        for connection in idle[::100]:
            connection.sendall(head(0))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert ("otlp_http_connections_closed", "limit") not in receiving.counts()
        for connection in idle:
            connection.close()


def test_busy_connections_are_not_given_up_for_new_ones() -> None:
    with Receiving(Limits(connections=3, body_timeout_s=20.0)) as receiving:
        busy = [receiving.raw(head(10)) for _ in range(3)]
        wait_for(lambda: receiving.counts().get(("otlp_http_connections",)) == 3)
        assert read_all(receiving.raw()).startswith(b"HTTP/1.1 503 ")
        for connection in busy:
            connection.sendall(bytes(10))
            assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
            connection.close()


@pytest.mark.parametrize(
    "noise", [b"\0" * 100, b"GET\r\n\r\n", b"POST /v1/traces HTTP/9.9\r\n\r\n", b"POST http://[ HTTP/1.1\r\n\r\n"]
)
def test_what_is_not_http_is_counted_and_not_logged(
    receiving: Receiving, caplog: pytest.LogCaptureFixture, noise: bytes
) -> None:
    before = receiving.counts().get(("otlp_http_connections_closed", "malformed"), 0)
    assert read_all(receiving.raw(noise))[:12] in (b"HTTP/1.1 400", b"")
    assert receiving.counts()["otlp_http_connections_closed", "malformed"] == before + 1
    assert not caplog.records


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_whatever_arrives_the_next_sender_is_served(receiving: Receiving, noise: bytes, after_head: bool) -> None:
    connection = receiving.raw((head(len(noise)) if after_head else b"POST /v1/traces HTTP/1.1\r\n") + noise)
    connection.shutdown(socket.SHUT_WR)
    answer = read_all(connection)
    assert answer[:12] in (b"", b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 415")
    assert receiving.post("/v1/traces", b"").status == 200


def test_pipelined_requests_are_answered_in_turn(receiving: Receiving) -> None:
    connection = receiving.raw((head(len(body())) + body()) * 5 + head(0, "Connection: close\r\n"))
    assert read_all(connection).count(b"HTTP/1.1 200 ") == 6


def test_a_sender_that_leaves_in_the_middle_leaves_nothing_behind(receiving: Receiving) -> None:
    receiving.raw(head(1000) + bytes(500)).close()
    wait_for(lambda: ("otlp_requests_waiting",) not in receiving.counts())
    wait_for(lambda: ("otlp_http_connections",) not in receiving.counts())
    assert not receiving.taken


# --- misdirected ----------------------------------------------------------------------------------------------------


def test_grpc_on_the_http_port_gets_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    with Receiving() as receiving:  # vector T19
        for _ in range(2):
            channel = grpc.insecure_channel(f"127.0.0.1:{receiving.http_port}")
            with channel, pytest.raises(grpc.RpcError, match=r"http1\.x server"):
                raw(channel)(b"", timeout=10)
        assert receiving.counts()["otlp_http_connections_closed", "malformed"] < 10  # it does not come in a storm
    (record,) = [record for record in caplog.records if "misdirected" in record.getMessage()]
    assert "gRPC" in record.getMessage()


def test_tls_on_a_port_without_gets_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    with Receiving() as receiving:
        assert read_all(receiving.raw(b"\x16\x03\x01\x00\x05hello")) == b""
    assert "TLS" in caplog.text


# --- the official exporter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_official_exporter_is_acknowledged(receiving: Receiving, compression: Compression) -> None:
    endpoint = f"http://127.0.0.1:{receiving.http_port}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=endpoint, compression=compression)
    assert export(exporter, sdk_spans(3)) is SpanExportResult.SUCCESS
    assert [one.name for taken in receiving.taken for one in taken.decoded.spans] == ["llm_request"] * 3


def test_the_official_exporter_gets_through_a_restart() -> None:
    with Receiving() as first:
        port = first.http_port
    exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{port}/v1/traces")
    results: list[SpanExportResult] = []
    exporting = threading.Thread(target=lambda: results.append(export(exporter, sdk_spans(2))))
    exporting.start()
    exporting.join(0.3)  # it has found nobody, and tries again
    with Receiving(http_port=port) as second:
        exporting.join(20)
        assert results == [SpanExportResult.SUCCESS]
        assert sum(len(taken.decoded.spans) for taken in second.taken) == 2


# --- helpers --------------------------------------------------------------------------------------------------------


def head(length: int = 0, more: str = "", *, chunked: bool = False) -> bytes:
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
    return f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n{framing}\r\n{more}\r\n".encode()


def filling(size: int) -> bytes:
    """A valid, empty request of this many bytes: one unknown field."""
    for digits in range(1, 6):
        content = size - 1 - digits
        length = b""
        while content > 0x7F:
            length += bytes([content & 0x7F | 0x80])
            content >>= 7
        length += bytes([content])
        if len(length) == digits:
            return b"\x7a" + length + bytes(size - 1 - digits)
    raise AssertionError


def answers(connection: socket.socket) -> bool:
    """Whether something comes within a second."""
    connection.settimeout(1)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def trickle(connection: socket.socket, piece: bytes, times: int) -> bytes:
    """Send a piece every 50 ms until there is an answer or the end."""
    for _ in range(times):
        try:
            connection.sendall(piece)
            return connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("still open")


def flood(connection: socket.socket, piece: bytes) -> bytes:
    """Send without end, until there is one."""
    try:
        for _ in range(10_000):
            connection.sendall(piece)
    except ConnectionError:
        return read_all(connection)
    raise AssertionError("still open")


def wait_for(look: object) -> None:
    assert callable(look)
    deadline = time.monotonic() + 10
    while not look():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
