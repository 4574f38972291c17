"""Downstreams: an OTLP receiver of the tests' own that keeps every span, and can go away and come back; and rotel."""

from __future__ import annotations

import gzip
import http.server
import importlib.util
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tests.e2e.waiting import eventually

_METHOD = "opentelemetry.proto.collector.trace.v1.TraceService"


class Seen(NamedTuple):
    """A span with what it stood in."""

    resource: bytes
    scope: bytes
    span: Span


class Recorder:
    """Takes traces over one transport (grpc or http), with the official classes. ``start`` and ``stop`` repeatedly."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.port = 0
        self._lock = threading.Lock()
        self._seen: list[Seen] = []
        self._server: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seen(self) -> list[Seen]:
        """All that has arrived, in order, copies included."""
        with self._lock:
            return list(self._seen)

    def ids(self) -> set[bytes]:
        """Of the spans that have arrived."""
        return {one.span.span_id for one in self.seen()}

    def start(self) -> None:
        """Listen, on the same port every time."""
        if self.transport == "http":
            recorder = self

            class Handler(http.server.BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"

                def do_POST(self) -> None:
                    body = self.rfile.read(int(self.headers["Content-Length"]))
                    if self.headers.get("Content-Encoding") == "gzip":
                        body = gzip.decompress(body)
                    answer = recorder.take(body)
                    self.send_response(200)
                    self.send_header("Content-Type", "application/x-protobuf")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

                def log_message(self, format: str, *args: object) -> None:
                    pass

            self._server = _HttpServer(("127.0.0.1", self.port), Handler)
            self.port = self._server.server_address[1]
            self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
            self._thread.start()
        else:
            self._pool = ThreadPoolExecutor(4)
            options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
            self._server = grpc.server(self._pool, options=options)
            export: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
                lambda body, _: self.take(body)
            )
            handler = grpc.method_handlers_generic_handler(_METHOD, {"Export": export})
            self._server.add_generic_rpc_handlers([handler])
            self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
            self._server.start()

    def stop(self) -> None:
        """Go away: connections end, new ones are refused."""
        server, self._server = self._server, None
        if self.transport == "http":
            server.shutdown()
            server.server_close()
            server.drop_connections()
            self._thread.join()
        else:
            server.stop(0).wait()
            self._pool.shutdown()

    def take(self, body: bytes) -> bytes:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self._seen += seen_in(request)
        return ExportTraceServiceResponse().SerializeToString()


def seen_in(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    """Its spans, each with the bytes of its resource and of its scope."""
    for resource in request.resource_spans:
        around = ResourceSpans(resource=resource.resource, schema_url=resource.schema_url)
        for scope in resource.scope_spans:
            inner = ScopeSpans(scope=scope.scope, schema_url=scope.schema_url)
            for span in scope.spans:
                yield Seen(
                    around.SerializeToString(deterministic=True), inner.SerializeToString(deterministic=True), span
                )


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._open: list[socket.socket] = []
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Peers that went away are part of the tests."""

    def drop_connections(self) -> None:
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # gone already
                continue


class Rotel:
    """The collector rotel (PyPI), passing on by OTLP what it receives by OTLP. Ends with ``with``."""

    def __init__(self, folder: Path, downstream: str) -> None:
        """downstream: URL of an OTLP/gRPC endpoint."""
        self._log_path = folder / "rotel.log"
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            self.grpc_port, self.http_port = one.getsockname()[1], two.getsockname()[1]  # it cannot tell what 0 became
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(rotel_agent()), "start", "--exporter", "otlp", "--otlp-exporter-endpoint", downstream),
                    *("--otlp-exporter-protocol", "grpc", "--batch-timeout", "100ms"),
                    *("--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc_port}"),
                    *("--otlp-http-endpoint", f"127.0.0.1:{self.http_port}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={name: value for name, value in os.environ.items() if not name.startswith(("ROTEL_", "OTEL_"))},
            )

    def __enter__(self) -> Self:
        def listening() -> bool:
            assert self._process.poll() is None, f"rotel ended:\n{self._log_path.read_text(errors='replace')}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.grpc_port)) == 0

        try:
            eventually(listening, "rotel listens")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.grpc_port}"


def rotel_agent() -> Path:
    """rotel's program; its package installs it beside its modules."""
    spec = importlib.util.find_spec("rotel")
    origin = spec.origin if spec is not None else None
    assert origin is not None, "rotel is missing: pip install '.[dev]' brings it"
    return Path(origin).parent / "rotel-agent"
