"""A real collector downstream: rotel (Rust, from PyPI) takes what is forwarded and hands it on to a receiver here."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpumon.export.forward import Forwarder, Limits
from gpumon.export.forward_edit import Attribute
from gpumon.export.forward_send import Endpoint, make_sender
from gpumon.host.clock import SystemClock
from gpumon.ingest.request import Signal, Transport
from tests.export.otlp_requests import as_json, logs, metrics, span_id, traces
from tests.export.receivers import HttpReceiver

DEADLINE_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def rotel(url: str, folder: Path) -> Iterator[dict[Transport, str]]:
    """The collector, exporting to ``url``; its own endpoints by protocol."""
    spec = importlib.util.find_spec("rotel")
    assert spec is not None
    assert spec.origin is not None
    ports = {Transport.GRPC: free_port(), Transport.HTTP: free_port()}
    command = [
        str(Path(spec.origin).parent / "rotel-agent"), "start",
        "--otlp-grpc-endpoint", f"127.0.0.1:{ports[Transport.GRPC]}",
        "--otlp-http-endpoint", f"127.0.0.1:{ports[Transport.HTTP]}",
        "--exporter", "otlp", "--otlp-exporter-endpoint", url, "--otlp-exporter-protocol", "http",
        "--log-file", str(folder / "log"), "--pid-file", str(folder / "pid"),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as collector:
        try:
            yield {protocol: f"http://127.0.0.1:{port}" for protocol, port in ports.items()}
        finally:
            collector.terminate()


def annotate(trace: bytes, span: bytes, start_ns: int, end_ns: int) -> list[Attribute]:
    return [("gpumon.gpu.uuids", ("GPU-1", "GPU-2")), ("gpumon.gpu.sm_active", 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", list(Transport))
def test_a_collector_understands_what_is_forwarded(protocol: Transport, tmp_path: Path) -> None:
    clock = SystemClock()
    with HttpReceiver() as receiver, rotel(receiver.url, tmp_path) as urls:
        sender = make_sender(Endpoint(urls[protocol], protocol), clock.now_s, lambda: clock.to_unix(clock.now_s()))
        forwarder = Forwarder(sender, clock, limits=Limits(settle_s=0.0), annotate=annotate)
        forwarder.start()  # it may be there before the collector listens: then it tries again
        for number in range(1, 401, 4):
            body = traces(number, 4, events=30)
            as_text = number % 8 == 1
            data = as_json(body) if as_text else body.SerializeToString()
            forwarder.offer(Signal.TRACES, data, is_json=as_text, at_s=clock.now_s())
        forwarder.offer(Signal.LOGS, logs(3).SerializeToString(), is_json=False, at_s=clock.now_s())
        forwarder.offer(Signal.METRICS, metrics(2).SerializeToString(), is_json=False, at_s=clock.now_s())
        wait, end_s = threading.Event(), clock.now_s() + DEADLINE_S
        while (
            len(receiver.taken.span_ids) < 400 or {kind for kind, _ in receiver.taken.requests} != {*map(str, Signal)}
        ) and clock.now_s() < end_s:
            wait.wait(0.05)
        forwarder.stop()
        assert receiver.taken.span_ids == {span_id(number): 1 for number in range(1, 401)}
        for span in receiver.taken.spans:
            model, uuids, active = span.attributes
            assert model.key == "gen_ai.request.model"
            assert [value.string_value for value in uuids.value.array_value.values] == ["GPU-1", "GPU-2"]
            assert active.value.double_value == 0.5
            assert len(span.events) == 30
