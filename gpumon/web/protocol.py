"""uvicorn's HTTP protocol with limits on a request's head, which it has none for.

A head that grows past HEAD_BYTES is answered 431, one that is not whole after HEAD_S is hung up on: memory and
connections that others need are not for whoever sends half a request. Bodies are the application's affair. A method
that HTTP does not know is answered 405, as any other that is not taken: the parser would call it no HTTP at all.
"""

from __future__ import annotations

import asyncio
import re
import sys

from httptools import HttpParserInvalidMethodError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
"""Looked at after each read from the socket, so a head that comes in one read may be as long as that, 256 KiB."""
HEAD_S = 10.0

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
_REQUEST_LINE = re.compile(rb"(?:\r?\n)*[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64} (/[^ ?\r\n]*)\S* HTTP/1\.[01]\r?\n")
_LINE_BYTES = 8 * 1024
"""Of a head's beginning that is kept for that."""
_ACTIONS = (b"/-/reload", b"/-/release-nvml", b"/-/acquire-nvml")
_PROBLEM = (
    b'{"title":"Method Not Allowed","status":405,"detail":"no method that HTTP knows; the API only answers: GET",'
    b'"errors":[]}'
)


def _not_allowed(path: bytes) -> bytes:
    """The answer to a method that nobody knows; what is allowed is as the application has it."""
    allow, content_type, body = b"GET", b"application/problem+json", _PROBLEM
    if path in _ACTIONS:
        allow, content_type, body = b"POST, PUT", b"text/plain; charset=utf-8", b"POST or PUT\n"
    elif path == b"/metrics" or path.startswith(b"/-/"):
        allow, content_type, body = b"GET, HEAD", b"text/plain; charset=utf-8", b"GET or HEAD\n"
    return (
        b"HTTP/1.1 405 Method Not Allowed\r\nallow: %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
        b"cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n%b"
        % (allow, content_type, len(body), body)
    )


class Protocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _begin = b""
    """Of the head that is coming."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """The first head begins with the connection."""
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand on, and count what has not made a whole head yet."""
        self._begin = ((self._begin if self._in_head else b"") + data[:_LINE_BYTES])[:_LINE_BYTES]
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read; of that, what is HTTP but for its method."""
        line = _REQUEST_LINE.match(self._begin)
        if line is None or not isinstance(sys.exception(), HttpParserInvalidMethodError):
            super().send_400_response(msg)
            return
        self.transport.write(_not_allowed(line[1]))
        self.transport.close()

    def on_message_begin(self) -> None:
        """A further request on the connection, or the first."""
        super().on_message_begin()
        if not self._in_head:
            self._begin_head()

    def on_headers_complete(self) -> None:
        """From here on the application answers."""
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_S, self._hang_up)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self.transport.abort()
