"""The claim about receiving: OTLP requests over HTTP and gRPC, decoded and handed on, by one process.

Requests of 6,400 and of 256 token events, over 8 connections that each send as soon as they are answered; the receiver
is a process of its own, whose CPU time is taken from /proc. ``tokens_per_cpu_s`` is the rate of one core kept busy;
``tokens_per_s`` is what the machine did with a sender beside it. One JSON line.
Usage: python -m benchmarks.receive [--seconds N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import uvloop

from benchmarks.common import cpu_s, report
from benchmarks.decode import token_events
from gpumon.host.clock import SystemClock
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.grpc_server import GrpcReceiver
from gpumon.ingest.http_listener import HttpListener
from gpumon.ingest.http_server import OtlpHttp
from gpumon.ingest.intake import Decoders, Intake
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.limits import Limits
from gpumon.ingest.signals import count_metrics, decode_logs

CONNECTIONS = 8
SIZES = {6400: (100, 64), 256: (1, 256)}
"""Tokens of a request: spans, and tokens of each."""
WARM_UP_S = 0.5
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_HEAD = "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n"


def pin(place: int) -> None:
    """Stay, with all threads to come, on one core: the receiver on one, its senders on another."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[place]})


async def serve() -> None:
    """The receiver: prints its ports, ends with its standard input."""
    pin(0)
    limits = Limits()
    decoders = Decoders(decode_traces, decode_traces_json, decode_logs, count_metrics)
    intake = Intake(decoders, lambda *_: None, SystemClock(), limits)
    receiver = GrpcReceiver(intake, limits)
    http = HttpListener(OtlpHttp(intake, limits), limits)
    listener = socket.create_server(("127.0.0.1", 0))
    intake.start()
    http.start(listener)
    print(await receiver.start("127.0.0.1:0"), listener.getsockname()[1], flush=True)
    gc.collect()
    gc.freeze()
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(receiver.stop(1.0), http.stop())
    await intake.stop(1.0)


@contextlib.contextmanager
def receiving() -> Iterator[tuple[int, int, int]]:
    """A receiver's process: pid, gRPC port, HTTP port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.receive", "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        grpc_port, http_port = map(int, process.stdout.readline().split())
        yield process.pid, grpc_port, http_port
    finally:
        process.communicate("", timeout=20)


def http_sender(port: int, body: bytes) -> Callable[[], None]:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message = _HEAD.format(len(body)).encode() + body

    def send() -> None:
        connection.sendall(message)
        answer = connection.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(answer[:200])

    return send


def grpc_sender(port: int, body: bytes) -> Callable[[], None]:
    # A channel of its own: those of equal options share one connection.
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
    call = channel.unary_unary(_METHOD)  # type: ignore[var-annotated]  # bytes to bytes

    def send() -> None:
        call(body, timeout=20)

    return send


def measure(pid: int, senders: list[Callable[[], None]], tokens: int, seconds: float) -> dict[str, float]:
    """Let every sender send for so long; rates after the warm-up."""
    begins = time.perf_counter() + WARM_UP_S
    ends = begins + seconds
    took: list[list[float]] = [[] for _ in senders]

    def keep_sending(send: Callable[[], None], mine: list[float]) -> None:
        while (started := time.perf_counter()) < ends:
            send()
            if started >= begins:
                mine.append(time.perf_counter() - started)

    threads = [threading.Thread(target=keep_sending, args=pair) for pair in zip(senders, took, strict=True)]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, begins - time.perf_counter()))
    cpu_before, before = cpu_s(pid), time.perf_counter()
    for thread in threads:
        thread.join()
    spent_s, passed_s = cpu_s(pid) - cpu_before, time.perf_counter() - before
    times = sorted(one for mine in took for one in mine)
    return {
        "requests_per_s": round(len(times) / passed_s),
        "cpu_us_per_request": round(spent_s / len(times) * 1e6),
        "tokens_per_s": round(len(times) * tokens / passed_s),
        "tokens_per_cpu_s": round(len(times) * tokens / spent_s),
        "p50_ms": round(statistics.median(times) * 1e3, 2),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 2),
    }


def peak_kb(pid: int) -> int:
    """Most resident memory that the process had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--serve", action="store_true", help="be the receiver")
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve())
        return
    figures: dict[str, dict[str, float]] = {}
    with receiving() as (pid, grpc_port, http_port):
        pin(1)
        for tokens, (spans, each) in SIZES.items():
            for name, make, port in (("http", http_sender, http_port), ("grpc", grpc_sender, grpc_port)):
                bodies = [token_events(spans, each, seed) for seed in range(CONNECTIONS)]
                senders = [make(port, body) for body in bodies]
                figures[f"{name}_{tokens}"] = measure(pid, senders, tokens, arguments.seconds)
        peak_mb = peak_kb(pid) / 1024
    report("receive", connections=CONNECTIONS, peak_resident_mb=round(peak_mb), **figures)


if __name__ == "__main__":
    main()
