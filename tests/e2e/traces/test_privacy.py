"""A prompt planted everywhere in what is sent is in nothing that gpumon says, keeps or shows.

What is forwarded is the user's own traces on their way to the user's own back end: unchanged, prompts included
(docs/TOKENS.md, Privacy). On that way they may wait on disk, where only gpumon's own user can read them.
"""

from __future__ import annotations

import base64
import json
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gpumon.ingest.attributes import DROPPED_PREFIXES
from gpumon.ingest.records import DROPPED_ATTRIBUTES
from tests.e2e.traces.conftest import Demo
from tests.e2e.traces.gateway import JSON, PROTOBUF, Gateway
from tests.e2e.traces.recorder import Recorder
from tests.e2e.waiting import eventually
from tests.export.otlp_requests import as_json
from tests.ingest.rpc import LOGS, METRICS, TRACES

SECRET = "Tell nobody: the correct horse"
TOKEN_ID = 918_273_645
STREAM = "/api/v1/stream"
STREAM_BYTES = 20_000
"""Of it: several seconds; it has no end."""
NEEDLES = (
    SECRET.encode(),
    SECRET[5:].encode(),
    b"correct horse",
    b"correct%20horse",
    base64.b64encode(SECRET.encode()),
    str(TOKEN_ID).encode(),
    f"{TOKEN_ID:_}".encode(),
    hex(TOKEN_ID).encode(),
)
SCOPES = {
    "vllm.tracing.otel": "llm_request",
    "sglang server": " Req 01234567",
    "opentelemetry-otlp": "generate_stream",
    "triton-server": "InferRequest",
    "trt.llm": "llm_request",
    "gpumon.tokens": "gen_ai.request",
    "some.genai.library": "chat",
    SECRET: SECRET,
}
"""Instrumentation scopes and the names of their request spans."""
KEYS = (
    *sorted(DROPPED_ATTRIBUTES),
    *(f"{prefix}0.content" for prefix in DROPPED_PREFIXES),
    *("my.own.prompt", "parameters", "text", SECRET, "reason", "abort_info", "error.type", "seed", "decode_ct"),
    *("gen_ai.request.temperature", "gen_ai.usage.input_tokens", "gen_ai.latency.e2e", "gen_ai.token.times_ns"),
    *("gen_ai.response.finish_reasons", "time_per_token", "k8s.pod.uid", "container.id", "process.pid", "bid"),
)
"""Attributes that hold the prompt: known ones, unknown ones, and ones that should hold something else."""


def planted(key: str, kind: int) -> KeyValue:
    """The attribute with the prompt or the token ids in it, in one of the shapes of a value."""
    text = AnyValue(string_value=SECRET)
    ids = [AnyValue(int_value=TOKEN_ID + number) for number in range(40)]
    values = (
        text,
        AnyValue(array_value=ArrayValue(values=ids)),
        AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=SECRET, value=text)])),
        AnyValue(bytes_value=SECRET.encode()),
        AnyValue(array_value=ArrayValue(values=[text] * 3)),
    )
    return KeyValue(key=key, value=values[kind % len(values)])


def traces() -> Iterator[ExportTraceServiceRequest]:
    """For each kind of server a request, a step and a stray span, which say the prompt wherever they can."""
    now_ns = time.time_ns()
    for number, (scope_name, name) in enumerate(SCOPES.items(), 1):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add(schema_url=SECRET)
        resource.resource.attributes.add(key="service.name").value.string_value = "shim"
        resource.resource.attributes.append(planted("process.command_args", 4))
        resource.resource.attributes.append(planted(SECRET, 0))
        scope = resource.scope_spans.add(schema_url=SECRET)
        scope.scope.name, scope.scope.version = scope_name, SECRET
        scope.scope.attributes.append(planted("gen_ai.prompt", 0))
        for place, span_name in enumerate((name, "decode_loop", SECRET), 1):
            span = scope.spans.add(
                trace_id=bytes([number, place] * 8),
                span_id=bytes([number, place] * 4),
                parent_span_id=b"" if place == 1 else bytes([number, 1] * 4),
                trace_state=f"vendor={SECRET}",
                name=span_name,
                kind=Span.SPAN_KIND_SERVER,
                start_time_unix_nano=now_ns - 10**9,
                end_time_unix_nano=now_ns - 10**8,
                status=Status(
                    code=Status.STATUS_CODE_ERROR if place == 3 else Status.STATUS_CODE_UNSET, message=SECRET
                ),
            )
            span.attributes.extend(planted(key, kind) for kind, key in enumerate(KEYS))
            span.attributes.append(planted("gen_ai.evaluation.explanation", 0))
            for event_name in ("token_generated", "gen_ai.content.prompt", "gen_ai.evaluation.result", SECRET):
                event = span.events.add(name=event_name, time_unix_nano=now_ns - 5 * 10**8)
                event.attributes.extend(planted(key, kind) for kind, key in enumerate(KEYS))
            link = span.links.add(trace_id=bytes([9] * 16), span_id=bytes([9] * 8))
            link.attributes.append(planted("gen_ai.prompt", 0))
        yield request


def logs() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for name in ("gen_ai.evaluation.result", "gen_ai.user.message", SECRET):
        record = records.add(event_name=name, severity_text=SECRET, time_unix_nano=time.time_ns())
        record.body.string_value = SECRET
        record.attributes.extend(planted(key, kind) for kind, key in enumerate(KEYS))
    return request


def metrics() -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metric = (
        request.resource_metrics.add().scope_metrics.add().metrics.add(name=SECRET, description=SECRET, unit=SECRET)
    )
    metric.gauge.data_points.add(as_double=1.5).attributes.append(planted(SECRET, 0))
    return request


def well_formed() -> Iterator[tuple[str, str, Message]]:
    """(path, gRPC method, request)"""
    for request in traces():
        yield "/v1/traces", TRACES, request
    yield "/v1/logs", LOGS, logs()
    yield "/v1/metrics", METRICS, metrics()


def broken() -> Iterator[tuple[str, bytes, str]]:
    """(path, body, media type) of requests that are refused, or taken in part."""
    spans = next(traces())
    whole = spans.SerializeToString()
    tree = json.loads(as_json(spans))
    for path in ("/v1/traces", "/v1/logs", "/v1/metrics"):
        yield path, whole[:-3], PROTOBUF
        yield path, SECRET.encode(), PROTOBUF
        yield path, SECRET.encode() * 500, JSON
        yield path, json.dumps(SECRET).encode(), JSON
        yield (
            path,
            json.dumps({"resourceSpans": SECRET, "resourceLogs": SECRET, "resourceMetrics": SECRET}).encode(),
            JSON,
        )
        yield path, logs().SerializeToString(), PROTOBUF
        yield path, b'{"' + SECRET.encode() + b'": [\xff]}', JSON
    for change in (
        {"traceId": SECRET},
        {"spanId": TOKEN_ID},
        {"name": [SECRET]},
        {"startTimeUnixNano": SECRET},
        {"kind": SECRET},
        {"attributes": [{"key": "gen_ai.prompt", "value": {"intValue": SECRET}}]},
        {"attributes": [{"key": "gen_ai.prompt", "value": {"stringValue": [SECRET]}}]},
        {"attributes": SECRET},
        {"events": [{"name": {"x": SECRET}}]},
        {"status": {"code": SECRET, "message": SECRET}},
    ):
        tree["resourceSpans"][0]["scopeSpans"][0]["spans"][0].update(change)
        yield "/v1/traces", json.dumps(tree).encode(), JSON
        tree = json.loads(as_json(spans))
    spans.resource_spans[0].scope_spans[0].spans[0].trace_id = SECRET.encode()[:15]
    yield "/v1/traces", spans.SerializeToString(), PROTOBUF
    yield "/v1/traces", as_json(spans), JSON


def answers_over_http(gateway: Gateway) -> Iterator[bytes]:
    for path, _, request in well_formed():
        for body, media in ((request.SerializeToString(), PROTOBUF), (as_json(request), JSON)):
            reply = gateway.post(body, path, media)
            assert reply.status == 200, (path, media, reply)
            yield repr(reply).encode() + reply.body
    refused = 0
    for path, body, media in broken():
        for gzipped in (False, True):
            reply = gateway.post(body, path, media, gzipped=gzipped)
            assert reply.status in (200, 400), (path, media, body[:80], reply)
            refused += reply.status == 400
            yield repr(reply).encode() + reply.body
    assert refused > 20
    odd: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("/" + SECRET.replace(" ", "%20"), PROTOBUF, {}),
        ("/v1/traces", SECRET, {}),
        ("/v1/traces", PROTOBUF, {"Content-Encoding": SECRET}),
        ("/v1/traces", PROTOBUF, {"Authorization": f"Bearer {SECRET}", "X-Prompt": SECRET, "traceparent": SECRET}),
    )
    for path, media, headers in odd:
        reply = gateway.post(SECRET.encode(), path, media, headers)
        assert reply.status >= 400
        yield repr(reply).encode() + reply.body


def answers_over_grpc(gateway: Gateway) -> Iterator[bytes]:
    for _, method, request in well_formed():
        with gateway.call(method) as call:
            yield call(request.SerializeToString(), timeout=20, metadata=(("x-prompt", SECRET),))
    for path, body, media in broken():
        method = {"/v1/traces": TRACES, "/v1/logs": LOGS, "/v1/metrics": METRICS}[path]
        if media == PROTOBUF:
            with gateway.call(method) as call:
                try:
                    yield call(body, timeout=20)
                except grpc.RpcError as error:
                    yield repr(error).encode()


def shown(gateway: Gateway) -> dict[str, bytes]:
    """Everything that gpumon says of itself and of what it was sent."""
    daemon = gateway.daemon
    said = {
        name: daemon.ask(path, headers=headers).body
        for name, path, headers in (
            ("text", "/metrics", {}),
            ("openmetrics", "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"}),
            ("dcgm", "/metrics?names=dcgm", {}),
            ("dcgm-next", "/metrics?names=dcgm-next", {}),
            ("ready", "/-/ready", {}),
            ("ui", "/", {}),
            ("openapi", "/openapi.json", {}),
        )
    }
    paths: dict[str, Any] = json.loads(said["openapi"])["paths"]
    assert STREAM in paths
    said[STREAM] = daemon.ask(STREAM, most_bytes=STREAM_BYTES).body
    said |= {path: daemon.ask(path).body for path in paths if path != STREAM}
    requests = json.loads(said["/api/v1/requests"])["requests"]
    for request in requests:
        for path in ("/api/v1/explain", "/api/v1/timeline"):
            said[f"{path} {request['trace_id']}"] = daemon.ask(f"{path}?trace_id={request['trace_id']}").body
    assert len(said) > 8 + 2 * len(requests)
    said["log"] = daemon.log.encode()
    return said


def check(where: str, content: bytes) -> None:
    for needle in NEEDLES:
        at = content.find(needle)
        assert at < 0, f"{needle!r} in {where}: …{content[max(0, at - 200) : at + 100]!r}…"


@pytest.mark.parametrize("answers", [answers_over_grpc, answers_over_http])
def test_a_planted_prompt_is_nowhere(demo: Demo, answers: Callable[[Gateway], Iterator[bytes]], tmp_path: Path) -> None:
    gateway = demo({"GPUMON_LOG__LEVEL": "debug", "GPUMON_REQUESTS__MAX_TENANTS": "8"})
    for answer in answers(gateway):
        check("an answer", answer)
    gateway.await_requests(len(SCOPES) - 1)
    said = shown(gateway)
    assert b'gpumon_requests_total{server="vllm"' in said["text"]
    assert gateway.daemon.end() == 0
    said["log"] = gateway.daemon.log.encode()
    for where, content in said.items():
        check(where, content)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            check(str(path), path.read_bytes())


def test_what_is_forwarded_is_what_was_sent_and_waits_where_nobody_else_can_read_it(demo: Demo, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with Recorder("http") as recorder:
        recorder.stop()
        gateway = demo(
            {
                "GPUMON_LOG__LEVEL": "debug",
                "GPUMON_FORWARD__ENDPOINT": recorder.url,
                "GPUMON_FORWARD__PROTOCOL": "http",
                "GPUMON_FORWARD__SPOOL": str(spool),
            }
        )
        sent = list(traces())
        for request in sent:
            gateway.send(request, "grpc")
        files = [path for path in spool.rglob("*") if path.is_file()]
        assert any(SECRET.encode() in path.read_bytes() for path in files)
        for path in spool.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        recorder.start()
        expected = {span.span_id for request in sent for span in request.resource_spans[0].scope_spans[0].spans}
        eventually(lambda: expected <= recorder.ids(), "all has arrived", within_s=40)
        assert all(one.span.status.message == SECRET for one in recorder.seen())
        for where, content in shown(gateway).items():
            check(where, content)
