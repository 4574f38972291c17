"""Serves an ASGI application over HTTP/1.1 to senders that may be slow, silent, many, or lost.

uvicorn with httptools does the protocol; what it leaves open is decided here: how many connections there may be (past
that, the one that has been idle longest gives way), how long headers may take and how large everything but a body may
be. When gRPC or TLS arrives at the port, the log says what the sender should change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gpumon import catalogue
from gpumon.ingest.limits import Limits
from gpumon.model import Sample

log = logging.getLogger(__name__)

HEAD_BYTES = 64 << 10
"""Most of a request that is not body: line, headers, trailers."""

_SWEEP_S = 1.0
_CHUNK_OVERHEAD = 8
"""Bytes of framing per byte of body: six where every chunk holds one."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0"
_TLS_HANDSHAKE = b"\x16\x03"
_NOT_HTTP2 = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

# uvicorn warns of every malformed request, which whoever reaches the port could fill a disk with: they are counted.
_protocol_log = logging.getLogger(f"{__name__}.protocol")
_protocol_log.setLevel(logging.ERROR)


class HttpListener:
    """One listening socket and its connections."""

    def __init__(self, app: Callable[..., Any], limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        """``app``: an ASGI application."""
        self._door = _Door(limits)
        config = uvicorn.Config(
            cast(Any, app),  # uvicorn's types of ASGI are its own
            http=cast(Any, partial(_Connection, self._door)),  # called like the class it asks for
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # the peer is whoever is connected, not whom they name
            server_header=False,
            date_header=False,
            timeout_keep_alive=round(limits.keep_alive_s),
            timeout_graceful_shutdown=3,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket, on the running event loop."""
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[listener]), name="gpumon-http"),
            asyncio.create_task(self._door.keep(), name="gpumon-http-door"),
        ]

    async def stop(self) -> None:
        """Close the socket, let requests that have begun finish (3 s at most), close their connections."""
        if not self._tasks:
            return
        self._server.should_exit = True
        serving, keeping = self._tasks
        await asyncio.wait({serving})
        keeping.cancel()
        await asyncio.wait({keeping})

    def samples(self) -> Iterator[Sample]:
        """Connections. From any thread."""
        return self._door.samples()


class _Door:
    """Which connections may stay."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open = 0
        self._idle: dict[_Connection, float] = {}  # without a request, and since when: in that order
        self._closed = dict.fromkeys(catalogue.OTLP_CONNECTIONS_CLOSED.values, 0)
        self._hinted: set[str] = set()

    def enter(self, connection: _Connection) -> bool:
        """Whether it may stay. If the house is full, the one that has been idle longest leaves for it."""
        self._open += 1
        if self._open > self._limits.connections:
            self._closed["limit"] += 1
            if not self._idle:
                return False
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.transport.abort()
        self.idle(connection)
        return True

    def leave(self, connection: _Connection) -> None:
        self._open -= 1
        self._idle.pop(connection, None)

    def idle(self, connection: _Connection) -> None:
        self._idle.pop(connection, None)
        self._idle[connection] = asyncio.get_running_loop().time()

    def busy(self, connection: _Connection) -> None:
        self._idle.pop(connection, None)

    def closes(self, reason: str) -> None:
        self._closed[reason] += 1

    def hint(self, what: str) -> None:
        """Log what a sender seems to have got wrong, once."""
        if what not in self._hinted:
            self._hinted.add(what)
            log.warning("otlp_http=misdirected detail=%r", what)

    async def keep(self) -> None:
        """Close, every second, those whose request does not get on."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._limits.head_timeout_s / 2))
            due = loop.time() - self._limits.head_timeout_s
            for connection in [c for c, since in self._idle.items() if since < due and not c.between_requests]:
                self.closes("slow")
                self._idle.pop(connection)
                connection.transport.abort()

    def samples(self) -> Iterator[Sample]:
        yield Sample(catalogue.OTLP_CONNECTIONS, (), float(self._open))
        for reason, count in self._closed.items():
            yield Sample(catalogue.OTLP_CONNECTIONS_CLOSED, (reason,), float(count))


class _Connection(HttpToolsProtocol):
    """A connection that keeps count of what arrives."""

    def __init__(self, door: _Door, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's to know
        super().__init__(*args, **kwargs)
        self.logger = _protocol_log
        self.between_requests = False
        """Whether a request has been answered and nothing has come since: uvicorn's keep-alive timer watches then."""
        self._door = door
        self._first = True
        self._received = 0
        self._received_body = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # as it is for a stream
        if not self._door.enter(self):
            self.transport.write(_FULL)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._first:
            self._first = False
            if self._misdirected(data):
                return
        if self.between_requests:
            self.between_requests = False
            self._door.idle(self)
        self._received += len(data)
        super().data_received(data)
        if self._received > HEAD_BYTES + _CHUNK_OVERHEAD * self._received_body and not self.transport.is_closing():
            self._door.closes("large")
            cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
            if cycle is None or cycle.response_complete or not cycle.response_started:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._received = self._received_body = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._door.busy(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._received_body += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self.between_requests = True
            self._door.idle(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._door.closes("malformed")
        super().send_400_response(msg)

    def _misdirected(self, data: bytes) -> bool:
        if data.startswith(_HTTP2_PREFACE):
            self._door.hint("a gRPC client called the OTLP/HTTP port: send it to the gRPC port, or set http/protobuf")
            # To gRPC's core this says "trying to connect an http1.x server", and it tries again ever more rarely. A
            # proper HTTP/2 GOAWAY could carry the hint, but makes it come back at once, hundreds of times a second.
            self.transport.write(_NOT_HTTP2)
        elif data.startswith(_TLS_HANDSHAKE):
            self._door.hint("a TLS client called, and this port has no TLS: use http://, or set up TLS for gpumon")
        else:
            return False
        self._door.closes("malformed")
        self.transport.close()
        return True


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process is not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
