"""Bad senders against the running daemon: each is told what was wrong, the rest goes on, memory stays bounded.

The inputs T1 to T18 that users of other tools reported, over real gRPC and HTTP, and whatever a hostile or broken
sender may do. All take their time.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.daemon import FAST, Daemon, Reply
from tests.e2e.traces.gateway import JSON, OTLP, PROTOBUF, Gateway, as_of_now, move, spans_of
from tests.e2e.waiting import eventually
from tests.ingest import vectors
from tests.ingest.rpc import Status
from tests.ingest.senders import MS
from tests.ingest.servers import sglang_request, trtllm_request, vllm_request, vllm_sender
from tests.stories import write_silent

pytestmark = pytest.mark.slow
MIB = 1 << 20
LIMIT = 8 * MIB
"""Largest body here, so that the tests need not send 64 MiB each."""
GROWTH = 250 * MIB
"""Most that any of these may add to the daemon's memory for good or in passing: queue, decoding, waiting spans."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One demo for all of it: what one test does to it must not harm the next."""
    options = FAST | OTLP | {"GPUMON_OTLP__BODY_BYTES": str(LIMIT), "GPUMON_OTLP__QUEUE_BYTES": str(4 * LIMIT)}
    folder = tmp_path_factory.mktemp("abuse")
    with Daemon(folder, "--scenario", str(write_silent(folder)), command="demo", options=options) as daemon:
        daemon.await_series("gpumon_gpu_utilization_ratio", 8)
        yield Gateway(daemon)
        assert daemon.end() == 0
        assert "Traceback" not in daemon.log
        assert "otlp=failed" not in daemon.log


@pytest.fixture(autouse=True)
def well(gateway: Gateway) -> Iterator[None]:
    """While and after each test: pages come with 200, memory is bounded, the GPUs are read, a good request is taken."""
    before = resident(gateway, "VmRSS")
    peak_file = Path(f"/proc/{gateway.daemon.process.pid}/clear_refs")
    peak_file.write_text("5")  # begin the peak anew
    statuses: list[int] = []
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(0.2):
            statuses.append(gateway.daemon.ask("/metrics", timeout_s=20.0).status)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        stop.set()
        scraper.join()
    assert set(statuses) <= {200}
    assert resident(gateway, "VmHWM") - before < GROWTH
    assert gateway.daemon.ask("/-/healthy").status == 200
    requests, good = ok_requests(gateway, "trtllm"), trtllm_request()
    gateway.send(as_of_now(good), "grpc")
    gateway.send(as_of_now(good), "http")  # a copy: counted once
    eventually(lambda: ok_requests(gateway, "trtllm") == requests + 1, "a good request is counted")
    samples = gateway.daemon.page().value("gpumon_gpu_samples_total", gpu="0")
    eventually(lambda: gateway.daemon.page().value("gpumon_gpu_samples_total", gpu="0") > samples, "the GPUs are read")


def resident(gateway: Gateway, line: str) -> int:
    """Bytes: VmRSS now, VmHWM at most."""
    status = Path(f"/proc/{gateway.daemon.process.pid}/status").read_text()
    return int(status.partition(f"{line}:")[2].split()[0]) * 1024


def ok_requests(gateway: Gateway, server: str) -> float:
    return sum(value for _, value in gateway.daemon.page().select("gpumon_requests_total", server=server, outcome="ok"))


def answer_of(gateway: Gateway, request: Any, how: str) -> ExportTraceServiceResponse | Reply | grpc.RpcError:
    """What a sender is told; request: as in OTLP/JSON."""
    if how == "json":
        reply = gateway.post(vectors.as_json(request), media=JSON)
        if reply.status != 200:
            return reply
        told = json.loads(reply.body).get("partialSuccess", {})
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = int(told.get("rejectedSpans", 0))
        answer.partial_success.error_message = told.get("errorMessage", "")
        return answer
    body = vectors.as_protobuf(request)
    if how == "grpc":
        with gateway.call() as call:
            return ExportTraceServiceResponse.FromString(call(body, timeout=20))
    reply = gateway.post(body)
    return ExportTraceServiceResponse.FromString(reply.body) if reply.status == 200 else reply


def moved(*spans: Any, ahead_ns: int = -5_000 * MS) -> Any:
    """The vectors' spans as they would be now, with new ids."""
    by_ns = time.time_ns() + ahead_ns - vectors.START
    trace = os.urandom(16).hex()
    out = []
    for span in spans:
        times = {
            key: str(int(span[key]) + by_ns)
            for key in ("startTimeUnixNano", "endTimeUnixNano")
            if int(span.get(key) or 0)
        }
        events = [event | {"timeUnixNano": str(int(event["timeUnixNano"]) + by_ns)} for event in span.get("events", ())]
        ids = {} if set(span["traceId"]) == {"0"} else {"traceId": trace}
        out.append(span | times | ids | ({"events": events} if events else {}))
    return vectors.envelope(*out)


HOW = ("grpc", "http", "json")
ACCEPTED = {
    "T1 uptime as queue time": (vectors.HOST_UPTIME_AS_QUEUE_TIME,),
    "T2 negative first token": (vectors.NEGATIVE_TTFT,),
    "T3 no end": (vectors.NO_END,),
    "T4 no start": (vectors.NO_START,),
    "T6 orphan": (vectors.STEP,),
    "T11 no kind": (vectors.NO_KIND,),
    "T12 mixed numbers": (vectors.MIXED_NUMBERS,),
    "T15 skewed": (vectors.HOST_UPTIME_AS_QUEUE_TIME, vectors.SKEWED),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_reported_inputs_are_taken_whole(gateway: Gateway, name: str) -> None:
    for how in HOW:
        answer = answer_of(gateway, moved(*ACCEPTED[name]), how)
        assert isinstance(answer, ExportTraceServiceResponse)
        assert answer.partial_success.rejected_spans == 0
    for family in ("gpumon_request_queue_seconds", "gpumon_request_duration_seconds"):
        assert all(value < 1e5 for _, value in gateway.daemon.page().select(f"{family}_sum"))


def test_t9_invalid_ids_are_refused_span_by_span(gateway: Gateway) -> None:
    for how in HOW:
        answer = answer_of(gateway, moved(vectors.ZERO_IDS, vectors.NO_KIND), how)
        assert isinstance(answer, ExportTraceServiceResponse)
        assert answer.partial_success.rejected_spans == 1
        assert "trace ids must be 16 bytes" in answer.partial_success.error_message


def test_t8_base64_ids_are_told_apart_from_hexadecimal_ones(gateway: Gateway) -> None:
    request = vectors.with_base64_ids(moved(vectors.NO_KIND))
    reply = gateway.post(json.dumps(request).encode(), media=JSON)
    said = reply.text.lower()
    assert reply.status in (200, 400)
    assert "hex" in said or "16 bytes" in said


def test_t13_t14_spans_of_another_time_or_without_a_resource(gateway: Gateway) -> None:
    requests = ok_requests(gateway, "vllm")
    for reason, ahead_s in (("late", -26 * 3600), ("future", 600), ("late", -3600), ("future", 3600)):
        for how in HOW:
            before = gateway.dropped().get(reason, 0)
            request = moved(vectors.NO_KIND, ahead_ns=ahead_s * 10**9)
            if how == "json":
                del request["resourceSpans"][0]["resource"]
            answer = answer_of(gateway, request, how)
            assert isinstance(answer, ExportTraceServiceResponse)
            assert answer.partial_success.rejected_spans == 0
            eventually(lambda: gateway.dropped().get(reason, 0) == before + 1, f"counted as {reason}")  # noqa: B023
    assert ok_requests(gateway, "vllm") == requests


def test_t16_thirty_thousand_spans_in_one_request(gateway: Gateway) -> None:
    body = many_steps(30_000)
    assert 4 * MIB < len(body) < LIMIT
    received = gateway.received()
    with gateway.call() as call:
        assert not ExportTraceServiceResponse.FromString(call(body, timeout=30)).HasField("partial_success")
    with gateway.call(gzipped=True) as call:
        call(many_steps(30_000), timeout=30)
    assert gateway.post(many_steps(30_000), gzipped=True).status == 200
    eventually(lambda: gateway.received() == received + 90_000, "all are counted")


def test_t18_logs_sent_to_the_path_of_traces(gateway: Gateway) -> None:
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "x"
    reply = gateway.post(logs.SerializeToString())
    told = ExportTraceServiceResponse.FromString(reply.body).partial_success
    assert (reply.status, told.rejected_spans) == (200, 1)
    assert "/v1/logs" in told.error_message
    with gateway.call() as call:
        assert ExportTraceServiceResponse.FromString(call(logs.SerializeToString(), timeout=20)).partial_success == told


def test_t17_bombs_and_lies_about_compression(gateway: Gateway) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([packer.compress(bytes(MIB)) for _ in range(1024)]) + packer.flush()
    assert len(bomb) < 2 * MIB
    lies = {"Content-Encoding": "gzip"}
    reply = gateway.post(bomb, headers=lies)
    assert reply.status == 413
    assert str(LIMIT) in status_of(reply)
    assert gateway.post(b"plain", headers=lies).status == 400
    assert gateway.post(gzip.compress(b"x" * 1000)[:-9], headers=lies).status == 400
    with gateway.call(gzipped=True) as call, pytest.raises(grpc.RpcError) as caught:
        call(bytes(64 * MIB), timeout=30)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bodies_over_the_limit(gateway: Gateway) -> None:
    body = bytes(LIMIT + 1)
    reply = gateway.post(body)
    assert reply.status == 413
    assert str(LIMIT) in status_of(reply)
    with gateway.call() as call, pytest.raises(grpc.RpcError) as caught:
        call(body, timeout=30)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    # Announced, and never sent: refused before it is read.
    with socket.create_connection(("127.0.0.1", gateway.http_port), 20) as connection:
        connection.sendall(head(10 * 1024 * MIB))
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_large_requests_from_many_at_once_are_turned_away_with_a_time_to_come_again(gateway: Gateway) -> None:
    body = many_steps(40_000)  # 7 MiB

    def post(_: int) -> Reply:
        return gateway.post(body, timeout_s=60)

    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(post, range(32)))
    assert {reply.status for reply in replies} <= {200, 429, 503}
    assert any(reply.status == 200 for reply in replies)
    assert all("retry-after" in reply.headers for reply in replies if reply.status != 200)


def test_a_slow_sender_and_many_idle_connections_hold_up_nobody(gateway: Gateway) -> None:
    with ExitStack() as stack:
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.http_port), 60))
        slow.sendall(head(1000))
        for port in (gateway.http_port, gateway.grpc_port):
            for _ in range(1000):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        began_s = time.monotonic()

        def gone() -> bool:
            try:
                slow.send(b"x")  # a byte a second
            except OSError:
                return True
            return False

        # Time for the whole body is 15 s.
        eventually(gone, "the slow sender is cut off", within_s=40, every_s=1.0)
        assert 5 < time.monotonic() - began_s < 30
        page = gateway.daemon.page()
        assert page.value("gpumon_otlp_http_connections") <= 512
        assert sum(page.by("reason", "gpumon_otlp_http_connections_closed_total").values()) >= 400
    requests = ok_requests(gateway, "vllm")
    sender = vllm_sender()
    vllm_request(sender)
    eventually(lambda: gateway.post(as_of_now(sender.spans).SerializeToString()).status == 200, "there is room again")
    eventually(lambda: ok_requests(gateway, "vllm") == requests + 1, "it is counted")


def test_random_bytes_on_both_ports(gateway: Gateway) -> None:
    random = Random(5)
    for port in (gateway.http_port, gateway.grpc_port):
        for size in (1, 24, 100, 5000, 200_000):
            for start in (
                b"",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"POST /v1/traces HTTP/1.1\r\n",
                b"\x16\x03\x01\x02",
            ):
                with socket.create_connection(("127.0.0.1", port), 20) as connection:
                    try:
                        connection.sendall(start + random.randbytes(size))
                        connection.settimeout(0.05)
                        connection.recv(4096)
                    except OSError:  # it hung up, or waits for more
                        continue
    for _ in range(300):
        body = random.randbytes(random.randrange(1, 3000))
        media = random.choice((PROTOBUF, JSON))
        reply = gateway.post(body, random.choice(("/v1/traces", "/v1/logs", "/v1/metrics")), media)
        assert reply.status in (200, 400)
        assert reply.headers["content-type"] == media


def test_mutated_requests_are_taken_or_refused_and_break_nothing(gateway: Gateway) -> None:
    random = Random(6)
    good = as_of_now(sglang_request(ranks=2, steps=10)).SerializeToString()
    with gateway.call() as call:
        for _ in range(300):
            body = bytearray(good)
            for _ in range(random.randrange(1, 8)):
                body[random.randrange(len(body))] = random.randrange(256)
            try:
                call(bytes(body), timeout=20)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017


def test_orphans_by_the_hundred_thousand(gateway: Gateway) -> None:
    dropped = gateway.dropped().get("overflow", 0)
    received = gateway.received()
    for _ in range(10):
        request = ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        scope.scope.name = "sglang server"
        now_ns = time.time_ns()
        for _ in range(10_000):
            scope.spans.add(
                trace_id=os.urandom(16),
                span_id=os.urandom(8),
                parent_span_id=os.urandom(8),
                name="prefill_forward",
                start_time_unix_nano=now_ns - 10**8,
                end_time_unix_nano=now_ns,
            )
        gateway.send(request, "grpc")
    eventually(lambda: gateway.received() == received + 100_000, "all are counted")
    page = gateway.daemon.page()
    assert page.value("gpumon_spans_waiting", kind="traces") <= 16_384
    assert gateway.dropped()["overflow"] - dropped > 80_000


def test_a_flood_of_names_makes_no_flood_of_series(gateway: Gateway) -> None:
    before = len(gateway.daemon.ask("/metrics").body.splitlines())
    for first in range(0, 10_000, 1000):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.add(key="service.name").value.string_value = f"service-{first}"
        scope = resource.scope_spans.add()
        scope.scope.name = "some.library"
        now_ns = time.time_ns()
        for number in range(first, first + 1000):
            span = scope.spans.add(
                trace_id=os.urandom(16),
                span_id=os.urandom(8),
                name=f"chat model-{number}",
                kind=Span.SPAN_KIND_CLIENT,
                start_time_unix_nano=now_ns - 10**9,
                end_time_unix_nano=now_ns - 10**8,
            )
            for key, value in (
                ("gen_ai.operation.name", "chat"),
                ("gen_ai.request.model", f'model-{number} \\"\n\u2028'),
                ("tenant.id", f"tenant-{number}"),
            ):
                span.attributes.add(key=key).value.string_value = value
        gateway.send(request, "http")

    def counted() -> bool:
        found = gateway.daemon.page().select("gpumon_requests_total", server="genai", outcome="ok")
        return sum(value for _, value in found) >= 10_000

    eventually(counted, "all requests are counted")
    page = gateway.daemon.page()
    models = {labels["model"] for labels, _ in page.select("gpumon_requests_total")}
    assert "other" in models
    assert len(models) <= 9
    assert len(page.text.splitlines()) < before + 12_000
    assert page.value("gpumon_request_labels_folded_total", label="model") >= 9_990


def test_a_clock_that_steps_by_an_hour_in_a_request(gateway: Gateway) -> None:
    for step_ns in (3600 * 10**9, -3600 * 10**9):
        request = as_of_now(sglang_request(ranks=1, steps=20, seed=int(time.time_ns())))
        late = [span for span in spans_of(request) if span.name == "decode_loop"][10:]
        stepped = ExportTraceServiceRequest()
        stepped.resource_spans.add().scope_spans.add(spans=late)
        move(stepped, step_ns)
        for span, changed in zip(late, spans_of(stepped), strict=True):
            span.CopyFrom(changed)
        gateway.send(request, "grpc")
    gateway.await_requests(2, server="sglang")
    page = gateway.daemon.page()
    for name in ("gpumon_inter_token_latency_seconds", "gpumon_decode_step_seconds"):
        assert page.value(f"{name}_sum", server="sglang", model="meta-llama/Llama-3.1-70B") < 60


def many_steps(count: int) -> bytes:
    """Vector T16, now: so many of SGLang's steps, of one request."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.scope.name = "sglang server"
    trace, parent, now_ns = os.urandom(16), os.urandom(8), time.time_ns()
    for number in range(count):
        at_ns = now_ns - (count - number) * 1_000_000
        span = scope.spans.add(
            trace_id=trace,
            span_id=os.urandom(8),
            parent_span_id=parent,
            name="decode_loop",
            flags=256,
            start_time_unix_nano=at_ns,
            end_time_unix_nano=at_ns + 900_000,
        )
        span.attributes.add(key="decode_ct").value.int_value = number
        event = span.events.add(time_unix_nano=at_ns, name="schedule")
        event.attributes.add(key="bid").value.int_value = 71
        event.attributes.add(key="batch_size").value.int_value = 16
        event.attributes.add(key="forward_mode").value.string_value = "DECODE"
    return request.SerializeToString()


def head(length: int) -> bytes:
    """Beginning of an HTTP request that announces so many bytes."""
    return (
        b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
        b"Content-Length: %d\r\n\r\n" % length
    )


def status_of(reply: Reply) -> str:
    """The message of a google.rpc.Status."""
    status: Message = Status.FromString(reply.body)
    return str(status.message)  # type: ignore[attr-defined]
