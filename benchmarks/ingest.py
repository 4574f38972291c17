"""The claims about token traces: what a token costs, alone, over the wire and beside everything else gpumon does.

``in_process``: decoding, assembly and statistics on one core (``ingest_rates``). ``wire``: the whole daemon on a fake
node of eight GPUs, over HTTP and gRPC, 8 connections that each send as soon as they are answered; CPU is of its main
process, by /proc. In the same run the same load goes to rotel, a collector in Rust, which receives and drops it.
``scrape_ms``: /metrics while 500,000 tokens/s arrive. ``sweeps_hz``: of the sampler's 10, while the receiver is
saturated. ``memory_mb``: PSS of main process and sampler at 300,000 tokens/s. One JSON line.

Every request is new to its receiver. All but ``in_process`` share two cores with the load generator on most machines.
Usage: python -m benchmarks.ingest [--rounds N] [--seconds S] [--tokens N] [--only PART]
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from benchmarks import ingest_load
from benchmarks.common import SIZED, children, cpu_s, environment, memory_bytes, percentiles, put_to_work, report, wait
from benchmarks.ingest_rates import Pipeline, shapes
from tests.e2e.daemon import FAST, Daemon
from tests.e2e.traces.gateway import OTLP, Gateway
from tests.e2e.traces.recorder import rotel_agent
from tests.e2e.waiting import eventually
from tests.fakenvml.controller import FakeNode

CONNECTIONS = 8
WARM_UP_S = 1.0
LOADED_S = 30.0
"""Until memory has grown as far as it will: copies of spans are remembered for so long."""
SCRAPE_EVERY_S = 0.05
LOADS = {
    "events_100x64": ingest_load.events(100, 64),
    "events_25x256": ingest_load.events(25, 256),
    "events_1x256": ingest_load.events(1, 256),
    "compact_25x256": ingest_load.compact(25, 256),
}
"""OTLP requests: inference requests in each, and tokens of each of those."""
BESIDE = "events_25x256"
"""The load while something else is measured."""
BARS = {
    "events_256": 0.6e6,
    "compact_256": 5e6,
    "steps_in_batches_of_512": 150e3,
    "rotel_ratio": 1.0,
    "scrape_p99_ms": 30.0,
    "sweeps_hz": 9.5,
    "memory_mb": 115.0,
}
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_HEAD = "POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n"
Send = Callable[[bytes], None]


class Sender:
    """Threads that send fresh requests of one shape, as fast as they are answered or at a pace."""

    def __init__(self, transport: str, port: int, template: ingest_load.Template, tokens_per_s: float = 0.0) -> None:
        """tokens_per_s: 0 for as fast as can be."""
        self._template = template
        self._make = http_sender if transport == "http" else grpc_sender
        self._port = port
        self._every_s = template.tokens * CONNECTIONS / tokens_per_s if tokens_per_s else 0.0
        self._stop = threading.Event()
        self._sent = [0] * CONNECTIONS
        self.late = 0
        """Requests that were not sent in time."""
        self._threads = [threading.Thread(target=self._run, args=(place,)) for place in range(CONNECTIONS)]

    def __enter__(self) -> Sender:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def tokens(self) -> int:
        """Sent and acknowledged so far."""
        return sum(self._sent) * self._template.tokens

    def _run(self, place: int) -> None:
        random = np.random.default_rng(place)
        send = self._make(self._port)
        due_s = time.perf_counter() + self._every_s * place / CONNECTIONS
        while not self._stop.is_set():
            body = self._template.fresh(random)
            if self._every_s:
                due_s += self._every_s
                ahead_s = due_s - time.perf_counter()
                self.late += ahead_s < -self._every_s
                self._stop.wait(max(0.0, ahead_s))
            send(body)
            self._sent[place] += 1


def http_sender(port: int) -> Send:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(body: bytes) -> None:
        connection.sendall(_HEAD.format(len(body)).encode() + body)
        answer = connection.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(answer[:200])

    return send


def grpc_sender(port: int) -> Send:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
    call = channel.unary_unary(_METHOD)  # type: ignore[var-annotated]  # bytes to bytes
    return lambda body: call(body, timeout=30) and None


def measure(pid: int, sender: Sender, seconds: float) -> dict[str, float]:
    """CPU of the receiver for each token, and how many a second there were."""
    with sender:
        wait(WARM_UP_S)
        cpu, tokens, began_s = cpu_s(pid), sender.tokens, time.perf_counter()
        wait(seconds)
        spent_s, taken, passed_s = cpu_s(pid) - cpu, sender.tokens - tokens, time.perf_counter() - began_s
    return {"tokens_per_s": round(taken / passed_s), "cpu_ns_per_token": round(spent_s / taken * 1e9, 1)}


@contextmanager
def gpumon_on(node: FakeNode, folder: Path) -> Iterator[Gateway]:
    """The daemon as it is installed, on the node."""
    with Daemon(folder, env=environment(node), options=SIZED | FAST | OTLP) as daemon:
        daemon.await_ready()
        yield Gateway(daemon)


@contextmanager
def rotel() -> Iterator[tuple[int, dict[str, int]]]:
    """rotel that drops what it receives: its pid, and its ports by transport."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = {"grpc": int(one.getsockname()[1]), "http": int(two.getsockname()[1])}
    process = subprocess.Popen(
        [
            *(str(rotel_agent()), "start", "--exporter", "blackhole", "--otlp-grpc-max-recv-msg-size-mib", "64"),
            *(f"--otlp-{name}-endpoint=127.0.0.1:{port}" for name, port in ports.items()),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith(("ROTEL_", "OTEL_"))},
    )
    try:
        for port in ports.values():
            eventually(lambda port=port: _answers(port), "rotel listens")  # type: ignore[misc]  # bound now
        yield process.pid, ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def over_the_wire(gateway: Gateway, seconds: float, rounds: int) -> dict[str, object]:
    """gpumon and rotel in turns on the same load."""
    found: dict[str, object] = {}
    ports = {"grpc": gateway.grpc_port, "http": gateway.http_port}
    with rotel() as (peer, peer_ports):
        for name, template in LOADS.items():
            for transport in ports:
                ours, theirs = [], []
                for _ in range(rounds):
                    ours.append(
                        measure(gateway.daemon.process.pid, Sender(transport, ports[transport], template), seconds)
                    )
                    theirs.append(measure(peer, Sender(transport, peer_ports[transport], template), seconds))
                line = {key: statistics.median(one[key] for one in ours) for key in ours[0]}
                cost_ns = statistics.median(one["cpu_ns_per_token"] for one in theirs)
                found[f"{transport}_{name}"] = line | {
                    "tokens_per_cpu_s": round(1e9 / line["cpu_ns_per_token"]),
                    "rotel_cpu_ns_per_token": cost_ns,
                    "rotel_ratio": round(line["cpu_ns_per_token"] / cost_ns, 2),
                }
        found["rotel_resident_mb"] = round(memory_bytes(peer)[1] / 1e6)
    return found


def beside_ingest(gateway: Gateway, seconds: float) -> dict[str, object]:
    """Scrapes and sweeps while tokens arrive."""
    daemon = gateway.daemon
    template = LOADS[BESIDE]
    idle = scrapes_ms(daemon, seconds)
    with Sender("http", gateway.http_port, template, 500_000) as sender:
        wait(WARM_UP_S)
        tokens, began_s = sender.tokens, time.perf_counter()
        loaded = scrapes_ms(daemon, seconds)
        arrived = (sender.tokens - tokens) / (time.perf_counter() - began_s)
    with Sender("http", gateway.http_port, template) as sender:
        wait(WARM_UP_S)
        before, began_s, tokens = sweeps(daemon), time.perf_counter(), sender.tokens
        wait(seconds)
        passed_s = time.perf_counter() - began_s
        hertz, saturated = (sweeps(daemon) - before) / passed_s, (sender.tokens - tokens) / passed_s
    return {
        "scrape_ms": {"idle": idle, "at_tokens_per_s": round(arrived), "loaded": loaded},
        "sweeps_hz": {"at_tokens_per_s": round(saturated), "rate": round(hertz, 2)},
    }


def memory_mb(gateway: Gateway) -> dict[str, dict[str, float]]:
    """PSS of a daemon that has just begun, without traces and while they arrive."""
    wait(5.0)
    quiet = _sizes_mb(gateway.daemon)
    with Sender("http", gateway.http_port, LOADS[BESIDE], 300_000):
        wait(LOADED_S)
        return {"quiet": quiet, "loaded": _sizes_mb(gateway.daemon)}


def _sizes_mb(daemon: Daemon) -> dict[str, float]:
    main, sampler = (memory_bytes(pid)[0] / 1e6 for pid in (daemon.process.pid, children(daemon.process.pid)[0]))
    return {"main": round(main, 1), "sampler": round(sampler, 1), "both": round(main + sampler, 1)}


def scrapes_ms(daemon: Daemon, seconds: float) -> dict[str, float]:
    """Scrapes twenty times a second, on a connection of their own each."""
    took = []
    for _ in range(int(seconds / SCRAPE_EVERY_S)):
        began_s = time.perf_counter()
        assert daemon.ask("/metrics").status == 200
        took.append((time.perf_counter() - began_s) * 1e3)
        wait(max(0.0, SCRAPE_EVERY_S - (time.perf_counter() - began_s)))
    return percentiles(took)


def sweeps(daemon: Daemon) -> float:
    return daemon.page().value("gpumon_gpu_samples_total", gpu="0")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement over the wire")
    parser.add_argument("--tokens", type=int, default=400_000, help="of each round in process")
    parser.add_argument("--only", choices=["in_process", "wire", "beside"], help="leave out the rest")
    arguments = parser.parse_args()
    figures: dict[str, object] = {}
    if arguments.only in (None, "in_process"):
        pipeline = Pipeline()
        figures["in_process"] = {
            name: pipeline.rate(shape, arguments.rounds) for name, shape in shapes(arguments.tokens).items()
        }
    if arguments.only != "in_process":
        folder = Path(tempfile.mkdtemp(prefix="gpumon-benchmark-"))
        with FakeNode.create(folder / "node", profile="h200", count=8) as node:
            put_to_work(node, [])
            if arguments.only in (None, "beside"):
                with gpumon_on(node, folder) as gateway:
                    figures["memory_mb"] = memory_mb(gateway)
            with gpumon_on(node, folder) as gateway:
                if arguments.only in (None, "beside"):
                    figures |= beside_ingest(gateway, arguments.seconds * 4)
                if arguments.only in (None, "wire"):
                    figures["wire"] = over_the_wire(gateway, arguments.seconds, min(arguments.rounds, 3))
    report("ingest", cores=len(os.sched_getaffinity(0)), **figures, bars=BARS)


if __name__ == "__main__":
    main()
