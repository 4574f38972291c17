"""The claim about the JSON API: p99 of 50 ms at 10 requests/s while 100,000 tokens/s arrive, scrapes undisturbed.

The daemon on a fake node of eight GPUs, with a listener of the stream and the API's addresses asked in turns, on a
connection that is kept, 10 a second; after the request log is full (16,384 requests). ``scrape_ms``: /metrics ten times
a second, while tokens arrive without and with those requests, in turns. ``memory_mb``: PSS of the main process before
the API was first asked, and at the end. One JSON line. Load generator, daemon and client share the cores.
Usage: python -m benchmarks.api [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import SIZED, environment, memory_bytes, percentiles, put_to_work, report, wait
from benchmarks.ingest import BESIDE, LOADS, Sender
from tests.e2e.daemon import Daemon
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.fakenvml.controller import FakeNode

TOKENS_PER_S = 100_000.0
PER_S = 10.0
SCRAPE_EVERY_S = 0.1
FULL_S = 50.0
"""Until the request log is full: 256 tokens a request."""
BARS = {"api_p99_ms": 50.0, "scrape_ratio": 1.5}
PATHS = (
    "gpus?history=120",
    "servers?history=120",
    "heatmap",
    "requests?limit=50",
    "scatter?minutes=60",
    "bound?minutes=60",
    "timeline?trace_id={trace_id}",
    "explain?trace_id={trace_id}",
    "incidents",
    "node",
)
"""What the live page asks when it opens and when its user clicks."""


class Client:
    """Asks in turns, on a thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took_ms: dict[str, list[float]] = defaultdict(list)
        self.bytes: dict[str, int] = {}

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        newest = json.loads(_get(connection, "requests?sort=newest&limit=1"))
        trace_id = newest["requests"][0]["trace_id"]
        due_s = time.perf_counter()
        number = 0
        while not self._stop.is_set():
            path = PATHS[number % len(PATHS)]
            began_s = time.perf_counter()
            body = _get(connection, path.format(trace_id=trace_id))
            name = path.partition("?")[0]
            self.took_ms[name].append((time.perf_counter() - began_s) * 1e3)
            self.bytes[name] = len(body)
            if name == "requests":
                trace_id = json.loads(body)["requests"][0]["trace_id"]
            number += 1
            due_s = max(due_s + 1.0 / PER_S, began_s)
            self._stop.wait(max(0.0, due_s - time.perf_counter()))
        connection.close()


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", f"/api/v1/{path}")
    answer = connection.getresponse()
    body = answer.read()
    # Of requests that are on time the details of 1,024 are kept: at this rate, those of three seconds.
    assert answer.status == 200 or (answer.status == 404 and path.startswith("explain")), (path, body[:300])
    return body


@contextmanager
def listening(port: int) -> Iterator[list[int]]:
    """Somebody who listens to the stream; a list with the bytes that came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/v1/stream")
    answer = connection.getresponse()
    came = [0]

    def read() -> None:
        while part := answer.readline():
            came[0] += len(part)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield came
    connection.sock.close()


def scrapes(daemon: Daemon, seconds: float) -> list[float]:
    """What scrapes took, in milliseconds."""
    took = []
    for _ in range(round(seconds / SCRAPE_EVERY_S)):
        began_s = time.perf_counter()
        assert daemon.ask("/metrics").status == 200
        took.append((time.perf_counter() - began_s) * 1e3)
        wait(max(0.0, SCRAPE_EVERY_S - (time.perf_counter() - began_s)))
    return took


def measured(gateway: Gateway, seconds: float, rounds: int) -> dict[str, object]:
    """All of it."""
    daemon = gateway.daemon
    before_mb = memory_bytes(daemon.process.pid)[0] / 1e6
    alone_ms: list[float] = []
    beside_ms: list[float] = []
    took_ms: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, int] = {}
    with Sender("http", gateway.http_port, LOADS[BESIDE], TOKENS_PER_S) as sender:
        wait(FULL_S)
        full_mb = memory_bytes(daemon.process.pid)[0] / 1e6
        tokens, began_s = sender.tokens, time.perf_counter()
        with listening(daemon.port) as came:
            for _ in range(rounds):
                alone_ms += scrapes(daemon, seconds)
                with Client(daemon.port) as client:
                    beside_ms += scrapes(daemon, seconds)
                for name, times in client.took_ms.items():
                    took_ms[name] += times
                sizes |= client.bytes
        passed_s = time.perf_counter() - began_s
        arrived = (sender.tokens - tokens) / passed_s
    every_ms = [each for times in took_ms.values() for each in times]
    alone, beside = percentiles(alone_ms), percentiles(beside_ms)
    return {
        "tokens_per_s": round(arrived),
        "requests": len(every_ms),
        "api_ms": percentiles(every_ms) | {"max": round(max(every_ms), 1)},
        "by_address": {
            name: {"p50_ms": round(statistics.median(times), 1), "max_ms": round(max(times), 1), "bytes": sizes[name]}
            for name, times in took_ms.items()
        },
        "stream_bytes_per_s": round(came[0] / passed_s),
        "scrape_ms": {"alone": alone, "beside": beside, "ratio_p99": round(beside["p99"] / alone["p99"], 2)},
        "memory_mb": {
            "start": round(before_mb, 1),
            "full": round(full_mb, 1),
            "end": round(memory_bytes(daemon.process.pid)[0] / 1e6, 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each half of a round")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
    with FakeNode.create(folder / "node", profile="h200", count=8) as node:
        put_to_work(node, [])
        with Daemon(folder, env=environment(node), options=SIZED | OTLP) as daemon:
            daemon.await_ready()
            figures = measured(Gateway(daemon), arguments.seconds, arguments.rounds)
    report("api", cores=len(os.sched_getaffinity(0)), **figures, bars=BARS)


if __name__ == "__main__":
    main()
