"""Connections of clients: reading requests, one at a time, and writing answers.

Strict about heads (``http_head``), refused with an answer that says why: what is no HTTP/1, WebSockets, tunnels,
requests to a forward proxy, and gpumon's own for the server's metrics page. A second request that is sent before the
first one's answer is complete is not taken: the connection closes behind that answer, as RFC 9112, 9.3.2 provides for.
The end of what a client sends counts as its leaving. The body of a refusal has the form of OpenAI's errors, so that
clients show its text.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from http import HTTPStatus
from typing import Final, cast

from gpumon.proxy.exchange import Exchange
from gpumon.proxy.http_body import BodyReader, body_reader
from gpumon.proxy.http_head import (
    ERROR_HEADER,
    HEAD_BYTES,
    Header,
    HeadError,
    RequestHead,
    check_request_beginning,
    is_scrape,
    parse_request,
    wants_websocket,
    write_head,
)
from gpumon.proxy.loops import end_of
from gpumon.proxy.routes import Kind, leaves_prefix
from gpumon.proxy.shared import Shared

_BLANK_BYTES: Final = 32
"""Most of the empty lines before a head."""
_CODES: Final = {403: "outside_prefix", 421: "scrape", 501: "unsupported", 505: "unsupported", 508: "loop"}
_LARGE_CHUNK: Final = 16 << 10
_CRLF: Final = b"\r\n"
_RESET: Final = struct.pack("ii", 1, 0)


class ClientConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._held = b""
        """Of a head that is not complete."""
        self._begun = False
        """Whether anything has come of the next request, were it an empty line."""
        self._blank_bytes = 0
        """Of empty lines before it."""
        self._reader: BodyReader | None = None
        self._exchange: Exchange | None = None
        self._keeps = True
        self._lingers = False
        self._paused = False
        self._served = False
        self.full = False
        """Whether it is not reading what it is sent."""
        self._transport = cast(asyncio.Transport, None)
        self._since_ns = 0
        """When the connection, the head that is under way, or the wait for one began."""

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # as it is for a stream
        self._transport.set_write_buffer_limits(high=self._shared.limits.waiting_bytes)
        self._since_ns = self._shared.now_ns()
        if not self._shared.enter(self):
            self.refuse(503, "there are as many connections as there may be", "connection_limit")
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._shared.leave(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone(self._shared.now_ns())

    def eof_received(self) -> None:
        """It has left: an HTTP/1 client that waits for an answer keeps its side open."""

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._transport.is_closing():
            return
        at_ns = self._shared.now_ns()
        if self._exchange is None:
            self._take_head(data, at_ns)
        elif self._reader is not None and not self._reader.done:
            self._exchange.touched_ns = at_ns
            self._take_body(data)
        elif data.strip(_CRLF):
            self._keeps = False

    def pause_writing(self) -> None:
        self.full = True
        if self._exchange is not None:
            self._exchange.client_full(full=True)

    def resume_writing(self) -> None:
        self.full = False
        if self._exchange is not None:
            self._exchange.client_full(full=False)

    # --- for the exchange -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes of an answer."""
        self._transport.write(data)

    def write_chunk(self, piece: bytes) -> None:
        """A piece of a chunked body."""
        if len(piece) < _LARGE_CHUNK:
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._transport.writelines([b"%x\r\n" % len(piece), piece, _CRLF])

    def write_answer_head(self, line: bytes, headers: list[Header]) -> None:
        """The head of the answer, which says whether the connection goes on."""
        if self._shared.stopping:
            self._keeps = False
        if not self._keeps:
            headers.append((b"Connection", b"close"))
        self._transport.write(write_head(line, headers))

    def read_on(self, on: bool) -> None:
        """Whether to read what it sends."""
        if on == self._paused and not self._transport.is_closing():
            self._paused = not on
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def answered(self, *, complete: bool) -> None:
        """The answer is complete. complete: the request is, too."""
        self._exchange = None
        self._reader = None
        self._since_ns = self._shared.now_ns()
        if not complete:
            self._linger()
        elif not self._keeps or self._shared.stopping:
            self._transport.close()

    def refuse(self, status: int, text: str, code: str) -> None:
        """Answer for the proxy itself, and close."""
        complete = self._exchange is not None and self._exchange.request_complete
        self._exchange = None
        body = json.dumps(
            {"error": {"message": f"gpumon proxy: {text}", "type": "gpumon_proxy", "code": code}}
        ).encode()
        head = write_head(
            b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()),
            [
                (b"Content-Type", b"application/json"),
                (b"Content-Length", b"%d" % len(body)),
                (ERROR_HEADER, code.encode()),
                (b"Connection", b"close"),
            ],
        )
        self._transport.write(head + body)
        if complete:
            self._transport.close()
        else:
            self._linger()

    def break_off(self, *, reset: bool) -> None:
        """Close in the middle of an answer. reset: its end is the connection's, which must not look like one."""
        self._exchange = None
        if reset:
            endpoint = cast("socket.socket | None", self._transport.get_extra_info("socket"))
            if endpoint is not None:
                endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    # --- for the service ------------------------------------------------------------------------------------------

    def sweep(self, at_ns: int) -> None:
        """Close what takes too long."""
        limits = self._shared.limits
        since_s = (at_ns - self._since_ns) / 1e9
        if self._exchange is not None:
            self._exchange.sweep(at_ns)
        elif self._transport.is_closing() or self._lingers:
            if since_s > (limits.linger_s if self._lingers else limits.head_timeout_s):
                self._transport.abort()
        elif self._begun or not self._served:
            if since_s > limits.head_timeout_s:
                self.refuse(408, "the request did not come in time", "head_timeout")
        elif since_s > limits.keep_alive_s:
            self._transport.close()

    def close_idle(self) -> None:
        """Close unless a request is under way."""
        if self._exchange is None:
            self._transport.close()

    def close(self) -> None:
        """Close, whatever is under way."""
        if self._exchange is None:
            self._transport.close()
        else:
            self._transport.abort()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _take_head(self, data: bytes, at_ns: int) -> None:
        if not self._begun:
            self._begun, self._since_ns, self._blank_bytes = True, at_ns, 0
        held = self._held + data
        self._held = held.lstrip(_CRLF)
        self._blank_bytes += len(held) - len(self._held)
        section, end, rest = self._held.partition(b"\r\n\r\n")
        try:
            if self._blank_bytes > _BLANK_BYTES:
                raise HeadError("there are too many empty lines before the head")
            if len(section) > HEAD_BYTES:
                raise HeadError("the head is too large", 431)
            if not end:
                check_request_beginning(section)
                return
            self._held, self._begun, self._served = b"", False, True
            head = parse_request(section)
            self._keeps = head.keeps
            self._check(head)
        except HeadError as error:
            self._refuse_request(error, _CODES.get(error.status, "malformed"))
            return
        self._reader = body_reader(head.framing, head.length)
        exchange = self._exchange = Exchange(self._shared, self, head, at_ns)
        exchange.start()
        if rest or self._reader.done:
            self._take_body(rest)

    def _take_body(self, data: bytes) -> None:
        reader, exchange = self._reader, self._exchange
        assert reader is not None
        assert exchange is not None
        pieces = reader.feed(data) if data else []
        if reader.broken:
            begun = exchange.answering
            self._exchange = None
            exchange.client_gone(self._shared.now_ns())
            if begun:
                self.abort()
            else:
                self.refuse(400, "the body's framing is malformed", "malformed")
            return
        if pieces:
            exchange.request_pieces(pieces)
        if reader.done:
            exchange.request_done(reader.trailers)
            if reader.rest.strip(_CRLF):
                self._keeps = False

    def _linger(self) -> None:
        """Say nothing more, and let it finish: closed by itself, or by the sweep."""
        self._lingers = True
        self._since_ns = self._shared.now_ns()
        self.read_on(True)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _check(self, head: RequestHead) -> None:
        """Raises HeadError for what a pass-through cannot do."""
        if wants_websocket(head):
            raise HeadError("WebSockets are not passed on: connect to the server itself", 501)
        if is_scrape(head):
            raise HeadError("a server's metrics page is asked for at the server itself", 421)
        if head.method == b"CONNECT" or not (head.target.startswith(b"/") or head.target == b"*"):
            raise HeadError("this is no forward proxy: expected a path such as /v1/chat/completions", 501)
        if head.target == b"*" and head.method != b"OPTIONS":
            raise HeadError("only OPTIONS is about the whole server")
        if self._shared.settings.upstream.prefix and leaves_prefix(head.target):
            raise HeadError("this is outside the path that the proxy leads to", 403)
        if end_of(self._transport.get_extra_info("peername")) in self._shared.upstream_ends:
            raise HeadError("the proxy's upstream is the proxy itself", 508)

    def _refuse_request(self, error: HeadError, code: str) -> None:
        self._shared.counters.requests[Kind.OTHER, "refused"] += 1
        self.refuse(error.status, str(error), code)
