"""One request and its answer over one connection of its own, every piece of the answer with the time it came.

HTTP/1.1 over TCP or TLS, on asyncio. The time of a piece is taken when the socket is read, before anything else is done
with it: whoever looks into pieces runs after all sockets that were ready have been read. The request's time is when its
first byte is handed to the kernel, on a connection that is open by then: names, TCP and TLS are not in it. Redirects
are not followed, nothing is decompressed, proxies of the environment are not used.

What goes wrong raises ExchangeError with one of a few reasons; it never quotes what the server sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from gpumon.probe.endpoint import Endpoint
from gpumon.proxy.http_body import body_reader
from gpumon.proxy.http_head import HEAD_BYTES, Framing, HeadError, ResponseHead, parse_response

ANSWER_BYTES: Final = 256 << 20
"""Largest answer: of a million tokens each chunk is some hundred bytes."""
NowNs = Callable[[], int]


class ExchangeError(Exception):
    """There is no whole answer. ``reason``: connect, tls, closed or malformed."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason


class Piece(NamedTuple):
    """Some of an answer's body."""

    at_ns: int
    data: bytes


class Exchange:
    """One request. ``open``, ``send``, then ``pieces``; ``close`` in any case."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, now_ns: NowNs) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._now_ns = now_ns
        self._wire = _Wire(now_ns)
        self._transport: asyncio.WriteTransport | None = None

    async def open(self) -> None:
        """Connect. Raises ExchangeError."""
        endpoint = self._endpoint
        try:
            self._transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: self._wire,
                endpoint.host,
                endpoint.port,
                ssl=self._tls,
                server_hostname=endpoint.host if self._tls is not None else None,
            )
        except ssl.SSLCertVerificationError as error:
            raise ExchangeError("tls", error.verify_message) from error
        except ssl.SSLError as error:
            raise ExchangeError("tls", error.reason or "no TLS there") from error
        except (OSError, UnicodeError) as error:
            raise ExchangeError("connect", getattr(error, "strerror", None) or type(error).__name__) from error

    def send(self, request: bytes) -> int:
        """Send it; the time at which it went."""
        assert self._transport is not None
        at_ns = self._now_ns()
        self._transport.write(request)
        return at_ns

    async def head(self) -> ResponseHead:
        """What the answer begins with; interim answers are passed over. Raises ExchangeError."""
        held = b""
        while True:
            begin, empty_line, rest = held.partition(b"\r\n\r\n")
            if not empty_line:
                if len(held) > HEAD_BYTES:
                    raise ExchangeError("malformed", "a head without an end")
                piece = await self._wire.next()
                if piece is None:
                    raise ExchangeError("closed", "before an answer")
                held += piece.data
                self._wire.last_ns = piece.at_ns
                continue
            try:
                head = parse_response(begin, b"POST")
            except HeadError as error:
                raise ExchangeError("malformed", str(error)) from error
            held = rest
            if head.status >= 200:
                self._wire.give_back(rest)
                return head

    async def pieces(self, head: ResponseHead) -> AsyncIterator[Piece]:
        """The body. Raises ExchangeError where it is cut short or malformed."""
        reader = body_reader(head.framing, head.length)
        seen = 0
        while not reader.done:
            piece = await self._wire.next()
            if piece is None:
                if head.framing is Framing.EOF and not self._wire.broken:
                    return
                raise ExchangeError("closed", "in the middle of an answer")
            seen += len(piece.data)
            if seen > ANSWER_BYTES:
                raise ExchangeError("malformed", "an answer without an end")
            for data in reader.feed(piece.data):
                yield Piece(piece.at_ns, data)
            if reader.broken:
                raise ExchangeError("malformed", "what is no chunk")

    def close(self) -> None:
        """At once: the server sees that nobody listens any more."""
        if self._transport is not None:
            self._transport.abort()


class _Wire(asyncio.Protocol):
    """Stamps what arrives."""

    def __init__(self, now_ns: NowNs) -> None:
        self._now_ns = now_ns
        self._pieces: deque[Piece] = deque()
        self._over = False
        self._waiter: asyncio.Future[None] | None = None
        self.broken = False
        """Whether the connection ended by an error."""
        self.last_ns = 0

    def data_received(self, data: bytes) -> None:
        self._pieces.append(Piece(self._now_ns(), data))
        self._wake()

    def eof_received(self) -> bool:
        self._over = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self.broken = self.broken or exc is not None
        self._wake()

    def give_back(self, data: bytes) -> None:
        """What was read too much, with the time of the last piece."""
        if data:
            self._pieces.appendleft(Piece(self.last_ns, data))

    async def next(self) -> Piece | None:
        """The next piece; None where there will be none."""
        while not self._pieces:
            if self._over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._pieces.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
