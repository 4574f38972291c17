"""Spans that users' servers really sent, as in the OTLP/JSON of the bug reports; and both encodings of any request."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpumon.ingest.decode import decode_traces
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.records import Decoded, DecodeError
from gpumon.ingest.walk import decode_traces_walk

Json = Any
"""Foreign JSON, written out in the tests."""

TRACE = "5b8efff798038103d269b633813fc60c"
SPAN = "eee19b7ec3c1b171"
START = 1_795_953_600_000_000_000


def attribute(key: str, **value: Json) -> Json:
    return {"key": key, "value": value}


def span(**fields: Json) -> Json:
    """A request span; fields replace or add to it, None takes one away."""
    whole = {
        "traceId": TRACE,
        "spanId": SPAN,
        "name": "llm_request",
        "kind": 2,
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 10**9),
        **fields,
    }
    return {key: value for key, value in whole.items() if value is not None}


def envelope(*spans: Json, scope: str = "vllm.tracing.otel") -> Json:
    resource = {"attributes": [attribute("service.name", stringValue="vllm")]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": [*spans]}]}]}


HOST_UPTIME_AS_QUEUE_TIME = span(
    endTimeUnixNano="1795953600250000000",
    attributes=[
        attribute("gen_ai.latency.time_in_queue", doubleValue=-182345.25),
        attribute("gen_ai.latency.time_in_model_prefill", doubleValue=182345.5),
        attribute("gen_ai.latency.e2e", doubleValue=0.25),
    ],
)
NEGATIVE_TTFT = span(
    traceId="0000000000000000a1b2c3d4e5f60718",
    name=" Req 01234567",
    kind=1,
    attributes=[attribute("gen_ai.latency.time_to_first_token", doubleValue=-1795900000.5)],
)
NO_END = span(name="decode_loop", kind=1, endTimeUnixNano=None, attributes=[attribute("decode_ct", intValue="4")])
NO_START = span(startTimeUnixNano="0")
STEP = span(
    traceId="0000000000000000a1b2c3d4e5f60718",
    spanId="eee19b7ec3c1b176",
    parentSpanId="00f067aa0ba902b7",
    name="decode_loop",
    kind=1,
    flags=256,
    endTimeUnixNano="1795953600018000000",
    attributes=[attribute("decode_ct", intValue="0")],
    events=[
        {
            "timeUnixNano": str(START),
            "name": "schedule",
            "attributes": [
                attribute("bid", intValue="71"),
                attribute("batch_size", intValue="16"),
                attribute("forward_mode", stringValue="DECODE"),
            ],
        }
    ],
)
ZERO_IDS = span(traceId="0" * 32, spanId="0" * 16)
NO_KIND = span(kind=None)
MIXED_NUMBERS = span(
    attributes=[
        attribute("gen_ai.latency.e2e", intValue="2"),
        attribute("gen_ai.latency.time_to_first_token", intValue=1),
        attribute("gen_ai.usage.completion_tokens", doubleValue=64.0),
        attribute("time_per_token", stringValue="18.25ms"),
    ]
)
SKEWED = span(
    parentSpanId=SPAN,
    spanId="eee19b7ec3c1b17f",
    name="prefill_forward",
    kind=1,
    startTimeUnixNano="1795953597000000000",
    endTimeUnixNano="1795953597300000000",
)


def as_json(request: Json) -> bytes:
    return json.dumps(request).encode()


def as_protobuf(request: Json) -> bytes:
    """The same request in protobuf. ``json_format`` takes ids for base64, so they are given to it as such."""
    return json_format.ParseDict(with_base64_ids(request), ExportTraceServiceRequest()).SerializeToString()


def from_protobuf(body: bytes) -> bytes:
    """The same request in OTLP/JSON."""
    message = ExportTraceServiceRequest.FromString(body)
    request = json_format.MessageToDict(message, use_integers_for_enums=True)
    return as_json(_with_hex_ids(request))


def decode_fast(request: Json) -> Decoded:
    return only(decode_traces([as_protobuf(request)]))


def decode_walk(request: Json) -> Decoded:
    return decode_traces_walk(as_protobuf(request))


def decode_json(request: Json) -> Decoded:
    return decode_traces_json(as_json(request))


def only(results: list[Decoded | DecodeError]) -> Decoded:
    """The one result, which is to be a success."""
    [result] = results
    if isinstance(result, DecodeError):
        raise result
    return result


def with_base64_ids(value: Json) -> Json:
    return _ids_changed(value, lambda text: base64.b64encode(bytes.fromhex(text)).decode())


def _with_hex_ids(value: Json) -> Json:
    return _ids_changed(value, lambda text: base64.b64decode(text).hex())


def _ids_changed(value: Json, change: Any) -> Json:
    if isinstance(value, Mapping):
        return {
            key: change(item) if key in ("traceId", "spanId", "parentSpanId") else _ids_changed(item, change)
            for key, item in value.items()
        }
    return [_ids_changed(item, change) for item in value] if isinstance(value, list) else value
