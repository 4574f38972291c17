"""OTLP receivers of the tests' own, gRPC and HTTP, whose answers are scripted. Official classes, real sockets."""

from __future__ import annotations

import gzip
import http.server
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import trustme
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon.export.forward_send import Tls
from gpumon.ingest.request import Transport

REQUESTS: dict[str, type[Message]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
RESPONSES: dict[str, type[Message]] = {
    "traces": ExportTraceServiceResponse,
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
}
REJECTED = {"traces": "rejected_spans", "metrics": "rejected_data_points", "logs": "rejected_log_records"}


@dataclass
class Reply:
    """What to answer once. ``code``: HTTP status or number of the gRPC code; 200 and 0 take the request."""

    code: int = 200
    retry_after: str | None = None
    """HTTP: the header. gRPC: seconds in a RetryInfo."""
    rejected: int = 0
    hang: bool = False
    """Take the request and never answer, until the receiver stops."""
    drip: bool = False
    """HTTP: an answer of one byte at a time that does not end before the receiver stops."""
    cut: bool = False
    """HTTP: end the connection in the middle of the answer's body."""
    close: bool = False
    """HTTP: end the connection after the answer, and say so."""


@dataclass(frozen=True)
class Certificates:
    """A CA, and a certificate with its key for a server and for a client, as files."""

    folder: Path

    def __post_init__(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        for name, identity in (("server", "127.0.0.1"), ("client", "client.test")):
            issued = authority.issue_cert(identity)
            issued.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.pem"))
            issued.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))

    @property
    def tls(self) -> Tls:
        """What a client needs."""
        return Tls(self.folder / "ca.pem", self.folder / "client.pem", self.folder / "client.key")


@dataclass
class Taken:
    """What arrived, from all tries, in order."""

    requests: list[tuple[str, Message]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: int = 0

    @property
    def traces(self) -> list[ExportTraceServiceRequest]:
        return [request for _, request in self.requests if isinstance(request, ExportTraceServiceRequest)]

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def span_ids(self) -> Counter[bytes]:
        return Counter(span.span_id for span in self.spans)


class Receiver:
    """Common to both: the script and what was taken. Without a script, everything is taken."""

    protocol: Transport
    url = ""

    def __init__(self, script: Iterable[Reply] = (), certificates: Certificates | None = None) -> None:
        """certificates: for TLS, which then wants one of the client too."""
        self.certificates = certificates
        self.script = deque(script)
        self.default = Reply()
        self.taken = Taken()
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    def next_reply(self, signal: str, body: bytes, headers: dict[str, str]) -> Reply:
        request = REQUESTS[signal].FromString(body)
        with self._lock:
            reply = self.script.popleft() if self.script else self.default
            if reply.code in (200, 0):
                self.taken.requests.append((signal, request))
                self.taken.headers.append(headers)
            else:
                self.taken.refused += 1
        return reply


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Peers that went away are part of the tests."""


class HttpReceiver(Receiver):
    """``with HttpReceiver() as receiver: ... receiver.url``."""

    protocol = Transport.HTTP

    def __enter__(self) -> HttpReceiver:
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/x-protobuf"
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                signal = self.path.rsplit("/", 1)[-1]
                reply = receiver.next_reply(signal, body, {key.lower(): value for key, value in self.headers.items()})
                self.answer(signal, reply)

            def answer(self, signal: str, reply: Reply) -> None:
                if reply.hang:
                    receiver.stopping.wait()
                    self.close_connection = True
                    return
                content = b""
                if reply.code == 200:
                    response = RESPONSES[signal]()
                    if reply.rejected:
                        setattr(response.partial_success, REJECTED[signal], reply.rejected)  # type: ignore[attr-defined]
                    content = response.SerializeToString()
                if reply.drip:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                    while not receiver.stopping.wait(0.02):
                        self.wfile.write(b"X")
                    return
                self.send_response(reply.code)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(content) + 100 * reply.cut))
                if reply.retry_after is not None:
                    self.send_header("Retry-After", reply.retry_after)
                if reply.close:
                    self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(content)
                if reply.cut:
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if self.certificates is not None:
            folder, scheme = self.certificates.folder, "https"
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def drop_connections(self) -> None:
        for connection in self._server.connections:
            connection.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class GrpcReceiver(Receiver):
    """``with GrpcReceiver() as receiver: ... receiver.url``."""

    protocol = Transport.GRPC

    def __enter__(self) -> GrpcReceiver:
        self._pool = ThreadPoolExecutor(4)
        self._server_port = self._start(0)
        scheme = "http" if self.certificates is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server_port}"
        return self

    def _start(self, port: int) -> int:
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        for signal in REQUESTS:
            name = {"traces": "Trace", "metrics": "Metrics", "logs": "Logs"}[signal]
            service = f"opentelemetry.proto.collector.{'trace' if signal == 'traces' else signal}.v1.{name}Service"
            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._export(signal))
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
        if self.certificates is None:
            port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            read = {path.name: path.read_bytes() for path in self.certificates.folder.iterdir()}
            pair = (read["server.key"], read["server.pem"])
            credentials = grpc.ssl_server_credentials([pair], read["ca.pem"], require_client_auth=True)
            port = self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
        self._server.start()
        return port

    def drop_connections(self) -> None:
        self._server.stop(0).wait()
        self._start(self._server_port)

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self._server.stop(0).wait()
        self._pool.shutdown()

    def _export(self, signal: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        codes = {code.value[0]: code for code in grpc.StatusCode}

        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            headers = {str(key): str(value) for key, value in context.invocation_metadata()}
            reply = self.next_reply(signal, body, headers)
            if reply.hang:
                self.stopping.wait()
            if reply.code not in (0, 200):
                if reply.retry_after is not None:
                    info = RetryInfo()
                    info.retry_delay.FromMilliseconds(round(1000 * float(reply.retry_after)))
                    detail = any_pb2.Any()
                    detail.Pack(info)
                    status = Status(code=reply.code, details=[detail])
                    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
                context.abort(codes[reply.code], "as scripted")
            response = RESPONSES[signal]()
            if reply.rejected:
                setattr(response.partial_success, REJECTED[signal], reply.rejected)  # type: ignore[attr-defined]
            return response.SerializeToString()

        return export
