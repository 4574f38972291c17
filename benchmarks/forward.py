"""The claims about forwarding: editing in passing, the disk spool, and the whole way to an OTLP/HTTP endpoint.

Two payloads: ``tokens``, 100 request spans of 64 token events each, and ``steps``, 6,400 spans of one decode step each.
Editing adds five attributes to every request span, here and by parsing and rebuilding with the official classes, in
turns in one run. ``forward`` is CPU time of this process from offer to answer, over a real connection to a process
that discards. One JSON line.
Usage: python -m benchmarks.forward [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from gpumon.export.forward import Disk, Forwarder, Limits
from gpumon.export.forward_edit import Attribute, edit
from gpumon.export.forward_http import HttpSender
from gpumon.export.forward_send import Endpoint
from gpumon.export.spool import Spool
from gpumon.host.clock import SystemClock
from gpumon.ingest.request import Signal, Transport

RANDOM = random.Random(3)
START_NS = 1_800_000_000_000_000_000
SPANS, EVENTS = 100, 64
TOKENS = SPANS * EVENTS
ADDED: list[Attribute] = [
    ("gpumon.gpu.uuids", ("GPU-0b2f7c1e-5d4a-4c3b-9a8f-1e2d3c4b5a69",)),
    ("gpumon.gpu.sm_active", 0.71),
    ("gpumon.gpu.dram_active", 0.43),
    ("gpumon.gpu.throttled_ms", 12.5),
    ("gpumon.process.major_faults", 3),
]


def annotate(*_: object) -> list[Attribute]:
    return ADDED


def _request() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key, value in (("service.name", "vllm"), ("host.name", "node-17"), ("k8s.pod.name", "vllm-7d4b9c-x2x1p")):
        resource.resource.attributes.add(key=key).value.string_value = value
    resource.scope_spans.add().scope.name = "vllm.tracing.otel"
    return request


def tokens() -> bytes:
    request = _request()
    for _ in range(SPANS):
        span = request.resource_spans[0].scope_spans[0].spans.add(name="llm_request", kind=2)
        span.trace_id, span.span_id = RANDOM.randbytes(16), RANDOM.randbytes(8)
        span.start_time_unix_nano, at_ns = START_NS, START_NS
        span.attributes.add(key="gen_ai.request.model").value.string_value = "llama-3-70b"
        span.attributes.add(key="gen_ai.usage.output_tokens").value.int_value = EVENTS
        for _ in range(EVENTS):
            latency_us = RANDOM.randrange(15_000, 25_000)
            at_ns += 1000 * latency_us
            event = span.events.add(name="gen_ai.token.generated", time_unix_nano=at_ns)
            event.attributes.add(key="token_id").value.int_value = RANDOM.randrange(128_000)
            event.attributes.add(key="latency_us").value.int_value = latency_us
        span.end_time_unix_nano = at_ns
    return request.SerializeToString()


def steps() -> bytes:
    request = _request()
    for number in range(TOKENS):
        span = request.resource_spans[0].scope_spans[0].spans.add(name="decode_loop", kind=1)
        span.trace_id, span.span_id = bytes(8) + RANDOM.randbytes(8), RANDOM.randbytes(8)
        span.parent_span_id = RANDOM.randbytes(8)
        span.start_time_unix_nano, span.end_time_unix_nano = START_NS, START_NS + 20_000_000
        span.attributes.add(key="decode_ct").value.int_value = number
    return request.SerializeToString()


def official(data: bytes) -> bytes:
    """The same edit by the official classes."""
    request = ExportTraceServiceRequest.FromString(data)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                if len(span.trace_id) != 16 or len(span.span_id) != 8 or span.name == "decode_loop":
                    continue
                for key, value in ADDED:
                    if isinstance(value, tuple):
                        array = ArrayValue(values=[AnyValue(string_value=text) for text in value])
                        span.attributes.append(KeyValue(key=key, value=AnyValue(array_value=array)))
                    elif isinstance(value, float):
                        span.attributes.add(key=key).value.double_value = value
                    elif isinstance(value, int):
                        span.attributes.add(key=key).value.int_value = value
    return request.SerializeToString()


def _seconds(work: Callable[[], object], times: int) -> float:
    start_s = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start_s) / times


def edits(data: bytes, rounds: int) -> dict[str, float]:
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_seconds(lambda: edit(data, annotate=annotate), 20))
        theirs.append(_seconds(lambda: official(data), 5))
    ns, official_ns = (statistics.median(found) / TOKENS * 1e9 for found in (ours, theirs))
    return {"ns": round(ns, 1), "official_ns": round(official_ns, 1), "ratio": round(official_ns / ns, 1)}


def spool(data: bytes, rounds: int) -> dict[str, float]:
    megabytes = 200 * len(data) / 1e6
    write, read = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            queue = Spool(Path(folder), max_bytes=1 << 30, fsync_s=None, dropped=lambda *_: None)
            queue.open()
            start_s = time.perf_counter()
            for _ in range(200):
                queue.append("traces", data, TOKENS, 0.0)
            written_s = time.perf_counter()
            while (position := queue.take(2 << 20, 1 << 30, 1.0)[1]) is not None:
                queue.commit(position)
            write.append(megabytes / (written_s - start_s))
            read.append(megabytes / (time.perf_counter() - written_s))
            queue.close()
    return {"write_mb_s": round(statistics.median(write)), "read_mb_s": round(statistics.median(read))}


def _discard(listener: socket.socket) -> None:
    """Answers every POST of one connection with 200, whatever is in it."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                length = 0
                while line.strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                    line = stream.readline()
                stream.read(length)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def forward(data: bytes, items: int, port: int, *, gzip: bool, on_disk: bool) -> float:
    """Items a second of one core."""
    clock = SystemClock()
    endpoint = Endpoint(f"http://127.0.0.1:{port}", Transport.HTTP, gzip=gzip)
    with tempfile.TemporaryDirectory() as folder:
        forwarder = Forwarder(
            HttpSender(endpoint, clock.now_s, time.time),
            clock,
            limits=Limits(settle_s=0.0),
            annotate=annotate,
            disk=Disk(Path(folder)) if on_disk else None,
        )
        start_s = time.process_time()
        for _ in range(20):
            forwarder.offer(Signal.TRACES, data, is_json=False, at_s=clock.now_s())
            forwarder.prepare()
            while forwarder.deliver() is not None:
                pass
        used_s = time.process_time() - start_s
        forwarder.close()
    return 20 * items / used_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    payloads = {"tokens": tokens(), "steps": steps()}
    result: dict[str, object] = {"benchmark": "forward"}
    result["edit_per_token"] = {name: edits(data, rounds) for name, data in payloads.items()}
    result["spool"] = spool(payloads["tokens"], min(rounds, 3))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        discarder = multiprocessing.get_context("fork").Process(target=_discard, args=(listener,), daemon=True)
        discarder.start()
        for name, gzip, on_disk in (("plain", False, False), ("gzip", True, False), ("spool", False, True)):
            rates = {
                payload: statistics.median(
                    forward(data, TOKENS, port, gzip=gzip, on_disk=on_disk) for _ in range(rounds)
                )
                for payload, data in payloads.items()
            }
            result[f"forward_{name}_per_s_core"] = {payload: round(rate) for payload, rate in rates.items()}
        discarder.terminate()
        discarder.join()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
