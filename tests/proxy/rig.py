"""A proxy on real sockets between a scripted server and raw clients, all on one event loop of the kind it runs on."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpumon.export.forward_send import Answer, Outcome
from gpumon.ingest.request import Signal
from gpumon.proxy.exporter import TraceExporter
from gpumon.proxy.inject_rules import parse_rule
from gpumon.proxy.service import Proxy
from gpumon.proxy.settings import Limits, Settings, Upstream

T = TypeVar("T")
WITHIN_S = 120.0
"""Of what hangs; nothing takes a tenth of it on a machine that has nothing else to do."""
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(body: Coroutine[Any, Any, T]) -> T:
    """A test's coroutine, on uvloop as in production; fails where it does not end."""

    async def limited() -> T:
        async with asyncio.timeout(WITHIN_S):
            return await body

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


async def until(look: Callable[[], object]) -> None:
    """Until it is so, which other tasks and the kernel have to bring about."""
    while not look():  # noqa: ASYNC110 - what is waited for are effects at the other end of a socket
        await asyncio.sleep(0.001)


class Receiver:
    """Takes traces in place of gpumon."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answers: list[Outcome] = []
        """To come, the next one first; accepted when there are no more."""

    def send(self, signal: Signal, body: bytes) -> Outcome:
        assert signal is Signal.TRACES
        self.bodies.append(body)
        return self.answers.pop(0) if self.answers else Outcome(Answer.ACCEPTED)

    def close(self) -> None:
        pass


class Rig:
    """A running proxy, and what it has told."""

    def __init__(
        self, proxy: Proxy, exporter: TraceExporter, receiver: Receiver, port: int, upstream_port: int
    ) -> None:
        self.proxy = proxy
        self.exporter = exporter
        self.receiver = receiver
        self.port = port
        self.upstream_port = upstream_port
        self._opened: list[asyncio.StreamWriter] = []

    async def open(self, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the proxy, which ends with the rig at the latest."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **more)
        self._opened.append(writer)
        return reader, writer

    def hang_up(self, served: Sequence[asyncio.StreamWriter]) -> None:
        """End what a failed test has left open: a loop is not closed while somebody has something to read."""
        for writer in [*self._opened, *served]:
            writer.transport.abort()

    async def ask(self, request: bytes, *, direct: bool = False) -> bytes:
        """All that comes back on a connection of its own, until it ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream_port if direct else self.port)
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()

    def spans(self) -> list[Span]:
        """Of the requests that have ended so far."""
        while len(self.exporter):
            self.exporter.send_batch()
        return [
            span
            for body in self.receiver.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def told(self) -> dict[str, Any]:
        """Attributes of the only span."""
        (span,) = self.spans()
        return attributes_of(span)

    def counted(self, name: str, *labels: str) -> float:
        """A sample's value."""
        return next(
            value
            for metric, values, value in self.proxy.samples()
            if metric.name == name and values == labels and isinstance(value, float)
        )


def attributes_of(span: Span) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    found = getattr(value, kind)
    return [_value(item) for item in found.values] if kind == "array_value" else found


@asynccontextmanager
async def rig(
    handler: Handler,
    *,
    inject: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    prefix: bytes = b"",
    **settings: Any,
) -> AsyncIterator[Rig]:
    """tls: how the proxy talks to the server, whose own is server_tls; client_tls: how clients talk to the proxy."""
    served: list[asyncio.StreamWriter] = []

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(tracked, "127.0.0.1", 0, ssl=server_tls, limit=1 << 26, backlog=2048)
    upstream_port = server.sockets[0].getsockname()[1]
    receiver = Receiver()
    exporter = TraceExporter(receiver, lambda: {"service.name": "proxy"})
    told = Settings(
        Upstream(host, upstream_port, prefix, tls),
        Limits(**{"drain_s": 0.0, **(limits or {})}),
        salt=b"s" * 32,
        **settings,
    )
    proxy = Proxy(
        told,
        [parse_rule(rule) for rule in inject],
        7,
        exporter,
        now_ns=time.monotonic_ns,
        unix_ns=lambda at_ns: time.time_ns() - time.monotonic_ns() + at_ns,
        random_bytes=os.urandom,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    await proxy.start(listener, None, client_tls)
    one = Rig(proxy, exporter, receiver, listener.getsockname()[1], upstream_port)
    try:
        yield one
    finally:
        server.close()
        await proxy.stop()
        one.hang_up(served)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request with a length, as the server gets it."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    return head, await reader.readexactly(length)


def answers(*parts: bytes, close: bool = True) -> Handler:
    """A server that answers each request with these bytes, a write for each part."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await read_request(reader)
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return handle


def post(body: bytes, path: str = "/v1/chat/completions", *headers: bytes, close: bool = True) -> bytes:
    """A request with a body."""
    lines = [
        f"POST {path} HTTP/1.1".encode(),
        b"Host: server",
        b"Content-Type: application/json",
        *headers,
        b"Content-Length: %d" % len(body),
        *([b"Connection: close"] if close else []),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: str = "/v1/models", *headers: bytes) -> bytes:
    """A request without a body, of a client that closes."""
    return b"\r\n".join([f"GET {path} HTTP/1.1".encode(), b"Host: server", *headers, b"Connection: close", b"", b""])


def event(text: str, **more: str) -> bytes:
    """A chunk of a chat stream."""
    rest = "".join(f',"{name}":{value}' for name, value in more.items())
    return (
        f'data: {{"id":"chatcmpl-1","model":"llama","choices":[{{"index":0,"delta":{{"content":"{text}"}},'
        f'"finish_reason":null}}]{rest}}}\n\n'
    ).encode()


DONE = b"data: [DONE]\n\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    """Pieces as chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def dechunked(body: bytes) -> bytes:
    """The payload of a chunked body that has its end; read by another implementation than the proxy's."""
    found: list[bytes] = []
    while True:
        size_text, _, body = body.partition(b"\r\n")
        size = int(size_text, 16)
        if not size:
            return b"".join(found)
        found.append(body[:size])
        assert body[size : size + 2] == b"\r\n"
        body = body[size + 2 :]


def without_framing(answer: bytes) -> tuple[bytes, bytes]:
    """Head and payload of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, dechunked(body) if b"transfer-encoding: chunked" in head.lower() else body
