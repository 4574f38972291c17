"""The claim about decoding OTLP traces: token events, step spans, JSON and the compact form, on one core.

Three columns per token (time, tokens, latency), against the plain loop over the official protobuf classes in the same
run, the two alternating. Rates are of the median round, in tokens (or step spans) per second; ``times`` is the ratio
to the loop. One JSON line. Usage: python -m benchmarks.decode [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from gpumon.ingest.decode import decode_traces
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.records import Decoded

START_NS = 1_795_953_600_000_000_000


class Load(NamedTuple):
    """Bodies of one gathered pass, and how many tokens (or steps) are in them."""

    bodies: list[bytes]
    size: int


def scope_of(request: ExportTraceServiceRequest, scope: str) -> ScopeSpans:
    resource_spans = request.resource_spans.add()
    put(resource_spans.resource.attributes.add(), "service.name", "llm")
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = scope
    return scope_spans


def put(pair: KeyValue, key: str, value: str | int) -> None:
    pair.key = key
    if isinstance(value, str):
        pair.value.string_value = value
    else:
        pair.value.int_value = value


def new_span(scope_spans: ScopeSpans, name: str, random: Random) -> Span:
    span = scope_spans.spans.add()
    span.trace_id, span.span_id, span.name = random.randbytes(16), random.randbytes(8), name
    span.kind = Span.SPAN_KIND_SERVER
    span.start_time_unix_nano, span.end_time_unix_nano = START_NS, START_NS + 10**10
    span.status.code = Status.STATUS_CODE_OK
    return span


def token_events(spans: int, tokens: int, seed: int) -> bytes:
    """Request spans with an event per token: 82 bytes each; latencies take two or three bytes."""
    random = Random(seed)
    request = ExportTraceServiceRequest()
    scope_spans = scope_of(request, "gpumon")
    for _ in range(spans):
        span = new_span(scope_spans, "llm_request", random)
        put(span.attributes.add(), "gen_ai.request.id", random.randbytes(8).hex())
        at_ns = START_NS
        for _ in range(tokens):
            latency_us = random.randrange(10_000, 30_000)
            at_ns += latency_us * 1000
            event = span.events.add(name="gen_ai.token.generated", time_unix_nano=at_ns)
            put(event.attributes.add(), "gen_ai.token.count", 1)
            put(event.attributes.add(), "latency_us", latency_us)
    return request.SerializeToString()


def step_spans(steps: int, requests: int, *, event: bool) -> bytes:
    """Decode steps as SGLang sends them, with or without the ``schedule`` event."""
    random = Random(3)
    request = ExportTraceServiceRequest()
    scope_spans = scope_of(request, "sglang server")
    parents = [(random.randbytes(16), random.randbytes(8)) for _ in range(requests)]
    for step in range(steps):
        span = new_span(scope_spans, "decode_loop", random)
        span.trace_id, span.parent_span_id = parents[step % requests]
        put(span.attributes.add(), "decode_ct", step // requests)
        if event:
            schedule = span.events.add(name="schedule", time_unix_nano=START_NS)
            for key, value in (("bid", 71), ("batch_size", 16), ("forward_mode", "DECODE")):
                put(schedule.attributes.add(), key, value)
    return request.SerializeToString()


def compact(spans: int, tokens: int) -> bytes:
    """Request spans with the times of their tokens as one int array."""
    random = Random(4)
    request = ExportTraceServiceRequest()
    scope_spans = scope_of(request, "gpumon")
    for _ in range(spans):
        pair = new_span(scope_spans, "llm_request", random).attributes.add(key="gen_ai.token.times_ns")
        at_ns = 0
        for _ in range(tokens):
            at_ns += random.randrange(10_000_000, 30_000_000)
            pair.value.array_value.values.add(int_value=at_ns)
    return request.SerializeToString()


def plain_loop(bodies: Sequence[bytes]) -> list[tuple[list[int], list[int], list[int]]]:
    """What one writes with the official classes when it has to be quick: three lists per span."""
    out = []
    for body in bodies:
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    times: list[int] = []
                    counts: list[int] = []
                    latencies: list[int] = []
                    for event in span.events:
                        if event.name == "gen_ai.token.generated":
                            times.append(event.time_unix_nano)
                            for pair in event.attributes:
                                key = pair.key
                                if key == "gen_ai.token.count":
                                    counts.append(pair.value.int_value)
                                elif key == "latency_us":
                                    latencies.append(pair.value.int_value)
                    out.append((times, counts, latencies))
    return out


def as_json(body: bytes) -> bytes:
    request = json_format.MessageToDict(ExportTraceServiceRequest.FromString(body), use_integers_for_enums=True)
    for scope_spans in request["resourceSpans"][0]["scopeSpans"]:
        for number, span in enumerate(scope_spans["spans"], 1):
            span["traceId"], span["spanId"] = f"{number:032x}", f"{number:016x}"
    return json.dumps(request, separators=(",", ":")).encode()


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call, from as many as take 20 ms."""
    calls = 0
    started = now = time.process_time()
    while now - started < 0.02:
        work()
        calls += 1
        now = time.process_time()
    return (now - started) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds

    def rate(work: Callable[[], object], size: int, against: Callable[[], object] | None = None) -> dict[str, float]:
        work()
        ours = []
        theirs = []
        for _ in range(rounds):
            ours.append(seconds(work) / size)
            if against is not None:
                theirs.append(seconds(against) / size)
        result: dict[str, float] = {"per_s": round(1 / statistics.median(ours))}
        if theirs:
            result["loop_per_s"] = round(1 / statistics.median(theirs))
            result["times"] = round(statistics.median(theirs) / statistics.median(ours), 1)
        return result

    events = {
        "events_100x64": Load([token_events(100, 64, 1)], 6400),
        "events_100x256": Load([token_events(100, 256, 1)], 25_600),
        "events_16_requests_of_256": Load([token_events(1, 256, seed) for seed in range(16)], 4096),
        "events_1_request_of_256": Load([token_events(1, 256, 1)], 256),
    }
    line: dict[str, object] = {"benchmark": "decode", "columns": 3, "clock": "process_time"}
    for name, (bodies, size) in events.items():
        line[name] = rate(lambda: decode_traces(bodies), size, lambda: plain_loop(bodies))  # noqa: B023 - called here
    for name, body in {
        "steps": step_spans(6400, 64, event=False),
        "steps_with_event": step_spans(6400, 64, event=True),
        "steps_of_3200_parents": step_spans(6400, 3200, event=True),
    }.items():
        line[name] = rate(lambda: decode_traces([body]), 6400)  # noqa: B023
    arrays = compact(100, 256)
    line["compact_100x256"] = rate(lambda: decode_traces([arrays]), 25_600)
    text = as_json(token_events(100, 64, 1))
    line["json_100x64"] = rate(lambda: decode_traces_json(text), 6400)
    [decoded] = decode_traces([token_events(100, 64, 1)])
    assert isinstance(decoded, Decoded)
    assert sum(len(span.tokens.at_ns) for span in decoded.spans if span.tokens is not None) == 6400
    print(json.dumps(line))


if __name__ == "__main__":
    main()
