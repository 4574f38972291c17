"""The half of an exchange that goes to the server: a request's head and body, written as they come.

What is written before there is a connection waits, and the client is no longer read when that becomes much. A copy of
an inference request's body is held until it is complete, as far as it is not too large, and then looked at once. The
body itself is held back only where the server is to be asked for usage (``proxy.ask_for_usage``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpumon.proxy.http_head import (
    Framing,
    Header,
    RequestHead,
    end_to_end,
    trailers_to_pass,
    wants_trailers,
    write_head,
    write_last_chunk,
)
from gpumon.proxy.observed import Observed
from gpumon.proxy.request_body import asking_for_usage, read_body
from gpumon.proxy.upstream import UpstreamConnection

if TYPE_CHECKING:
    from gpumon.proxy.shared import Shared


class RequestSide:
    """One request on its way to the server."""

    def __init__(
        self,
        shared: Shared,
        head: RequestHead,
        observed: Observed | None,
        read_on: Callable[[bool], None],
        *,
        may_ask_for_usage: bool,
    ) -> None:
        """read_on: whether to read more from the client. may_ask_for_usage: the kind of request that can be asked."""
        self._shared = shared
        self._head = head
        self._observed = observed
        self._read_on = read_on
        self._upstream: UpstreamConnection | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self.complete = False
        self.full = False
        """Whether the server is not reading."""
        self._peek: list[bytes] | None = [] if observed is not None else None
        self._peek_bytes = 0
        # A client that waits for leave to send its body cannot be waited for.
        self._holds = (
            may_ask_for_usage
            and shared.settings.ask_for_usage
            and head.header(b"expect") is None
            and (head.header(b"content-encoding") or b"identity").lower() == b"identity"
        )
        if not self._holds:
            self._send_head(None)

    def pieces(self, pieces: list[bytes]) -> None:
        """Some of the body."""
        for piece in pieces:
            self._shared.counters.request_bytes += len(piece)
            self._keep(piece)
            if not self._holds:
                self._send_piece(piece)

    def done(self, trailers: tuple[Header, ...]) -> None:
        """The request is complete."""
        self.complete = True
        if self._holds:
            self._holds = False
            body = b"".join(self._peek or ())
            asking = asking_for_usage(body)
            self._send_head(None if asking is None else len(asking))
            self._send_piece(body if asking is None else asking)
        if self._chunked:
            self._send(write_last_chunk(trailers_to_pass(trailers)))
        # Later: what was written just now leaves at the end of this turn of the loop.
        self._shared.loop.call_soon(self.look)

    def attach(self, connection: UpstreamConnection) -> None:
        """There is a connection: what waited is written to it."""
        self._upstream = connection
        connection.transport.write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        if not self.full:
            self._read_on(True)

    def set_full(self, *, full: bool) -> None:
        """Whether the server is not reading."""
        self.full = full
        self._read_on(not full)

    def detach(self) -> None:
        """Nothing more is sent."""
        self._upstream = None
        self._waiting.clear()
        if self.complete:
            self.look()
        self._drop_peek()

    def look(self) -> None:
        """Read what the request asks for, once."""
        if self._peek is not None and self._observed is not None:
            self._observed.asked = read_body(b"".join(self._peek), self._shared.settings.salt)
        self._drop_peek()

    @property
    def _chunked(self) -> bool:
        return self._head.framing is Framing.CHUNKED

    def _send_head(self, length: int | None) -> None:
        """length: of the body, where it was changed."""
        head, upstream = self._head, self._shared.settings.upstream
        headers = []
        for name, value in end_to_end(head.headers):
            lowered = name.lower()
            if lowered == b"host" and upstream.tls is not None:
                headers.append((name, upstream.authority))  # certificates and virtual hosts go by it
            elif lowered == b"content-length" and length is not None:
                headers.append((name, b"%d" % length))
            else:
                headers.append((name, value))
        if head.header(b"host") is None:
            headers.insert(0, (b"Host", upstream.authority))
        if self._chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        if wants_trailers(head):
            headers.append((b"TE", b"trailers"))
        if self._observed is not None and head.header(b"traceparent") is None:
            headers.append((b"traceparent", self._observed.context.traceparent))
        self._send(write_head(b"%b %b%b HTTP/1.1" % (head.method, upstream.prefix, head.target), headers))

    def _send_piece(self, piece: bytes) -> None:
        if piece:
            self._send(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def _send(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.transport.write(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > self._shared.limits.waiting_bytes and not self.complete:
            self._read_on(False)

    def _keep(self, piece: bytes) -> None:
        if self._peek is None:
            return
        fits = self._peek_bytes + len(piece) <= self._shared.limits.peek_bytes
        if fits and self._shared.peeks.take(len(piece)):
            self._peek.append(piece)
            self._peek_bytes += len(piece)
            return
        self._shared.counters.unread_bodies += 1
        if self._holds:
            self._holds = False
            self._send_head(None)
            for held in self._peek:
                self._send_piece(held)
        self._drop_peek()

    def _drop_peek(self) -> None:
        self._shared.peeks.give(self._peek_bytes)
        self._peek, self._peek_bytes = None, 0
