"""Connections to the server behind: reading its answers, and keeping the ones that can serve another request.

An answer ends where its framing says. Where the connection ends first, whoever waits for it is told, so that no end is
made up. A kept connection that closes, or on which something arrives unasked, is thrown away; a request that has been
written to one is never written to another.

Some servers close a connection behind an answer in chunks and say before that they keep it; llama.cpp does it behind
every stream. A request that is on its way by then is lost. So such a connection rests for a while before it is used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from gpumon.proxy.http_body import BodyReader, body_reader
from gpumon.proxy.http_head import (
    HEAD_BYTES,
    Framing,
    Header,
    HeadError,
    ResponseHead,
    check_response_beginning,
    parse_response,
)
from gpumon.proxy.loops import end_of
from gpumon.proxy.settings import shown_address

REST_NS: Final = 1_000_000_000
"""By then a server that closes behind its answer has done so."""
_SWITCHING: Final = 101


class Waiting(Protocol):
    """Who sent a request and waits for its answer."""

    def response_head(self, head: ResponseHead, at_ns: int) -> None: ...

    def response_pieces(self, pieces: list[bytes], at_ns: int) -> None: ...

    def response_done(self, trailers: tuple[Header, ...], at_ns: int) -> None: ...

    def upstream_failed(self, reason: str, at_ns: int) -> None:
        """reason: closed or malformed. Nothing more comes of this connection."""

    def upstream_full(self, *, full: bool) -> None:
        """Whether the server is not reading what it is sent."""


class UpstreamConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, now_ns: Callable[[], int], write_bytes: int, ends: set[tuple[str, int]]) -> None:
        """ends: the near ends of all connections to the server, to which this one adds its own."""
        self._now_ns = now_ns
        self._write_bytes = write_bytes
        self._ends = ends
        self._end: tuple[str, int] | None = None
        self._waiting: Waiting | None = None
        self._method = b""
        self._head = b""
        self._reader: BodyReader | None = None
        self._keeps = True
        self._until_eof = False
        self.rests = False
        """Whether its last answer came in chunks, behind which a server may close without a word."""
        self.transport = cast(asyncio.Transport, None)
        """Set when the connection is made."""
        self._made = False
        self.address = ""
        """``address:port`` of the server."""
        self.idle_since_ns = 0

    @property
    def usable(self) -> bool:
        """Whether another request can be written to it."""
        return self._keeps and self._waiting is None and not self.transport.is_closing()

    def begin(self, waiting: Waiting, method: bytes) -> None:
        """A request is about to be written."""
        self._waiting = waiting
        self._method = method
        self._head = b""
        self._reader = None

    def abort(self) -> None:
        """Close now; nobody waits any longer."""
        self._waiting = None
        self._keeps = False
        if self._made:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # as it is for a stream
        self._made = True
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = shown_address(peer[0], peer[1])
        self._end = end_of(transport.get_extra_info("sockname"))
        if self._end is not None:
            self._ends.add(self._end)
        self.transport.set_write_buffer_limits(high=self._write_bytes)

    def data_received(self, data: bytes) -> None:
        at_ns = self._now_ns()
        if self._waiting is None:
            self.abort()  # nobody asked
            return
        try:
            if self._reader is None:
                self._take_head(data, at_ns)
            else:
                self._take_body(self._reader, data, at_ns)
        except HeadError:
            self._fail("malformed", at_ns)

    def eof_received(self) -> None:
        if self._reader is not None and self._until_eof:
            self._finish(self._reader, self._now_ns())

    def connection_lost(self, _: Exception | None) -> None:
        self._keeps = False
        if self._end is not None:
            self._ends.discard(self._end)
        self._fail("closed", self._now_ns())

    def pause_writing(self) -> None:
        if self._waiting is not None:
            self._waiting.upstream_full(full=True)

    def resume_writing(self) -> None:
        if self._waiting is not None:
            self._waiting.upstream_full(full=False)

    def _take_head(self, data: bytes, at_ns: int) -> None:
        self._head += data
        while self._reader is None and self._waiting is not None:
            section, end, rest = self._head.partition(b"\r\n\r\n")
            if len(section) > HEAD_BYTES:
                raise HeadError("the head is too large")
            if not end:
                check_response_beginning(self._head)
                return
            head = parse_response(section, self._method)
            if head.status == _SWITCHING:
                raise HeadError("nobody asked for another protocol")
            self._head = rest
            if head.status >= 200:
                self._head = b""
                self._keeps = head.keeps
                self._until_eof = head.framing is Framing.EOF
                self.rests = head.framing is Framing.CHUNKED
                self._reader = body_reader(head.framing, head.length)
            self._waiting.response_head(head, at_ns)
            if self._reader is not None and self._waiting is not None:
                self._take_body(self._reader, rest, at_ns)

    def _take_body(self, reader: BodyReader, data: bytes, at_ns: int) -> None:
        pieces = reader.feed(data) if data else []
        if pieces and self._waiting is not None:
            self._waiting.response_pieces(pieces, at_ns)
        if reader.broken:
            self._fail("malformed", at_ns)
        elif reader.done and self._waiting is not None:
            self._finish(reader, at_ns)

    def _finish(self, reader: BodyReader, at_ns: int) -> None:
        waiting, self._waiting = self._waiting, None
        if reader.rest or self._until_eof:
            self._keeps = False
        if waiting is not None:
            waiting.response_done(reader.trailers, at_ns)

    def _fail(self, reason: str, at_ns: int) -> None:
        waiting, self._waiting = self._waiting, None
        self._keeps = False
        self.transport.abort()
        if waiting is not None:
            waiting.upstream_failed(reason, at_ns)


class Pool:
    """Idle connections, the one that was used last first."""

    def __init__(self, size: int, keep_ns: int) -> None:
        self._size = size
        self._keep_ns = keep_ns
        self._idle: deque[UpstreamConnection] = deque()
        self._resting: deque[UpstreamConnection] = deque()

    def __len__(self) -> int:
        return len(self._idle) + len(self._resting)

    def take(self, at_ns: int) -> UpstreamConnection | None:
        """One that can be written to."""
        while self._resting and at_ns - self._resting[0].idle_since_ns >= REST_NS:
            self._idle.append(self._resting.popleft())
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def give(self, connection: UpstreamConnection, at_ns: int) -> None:
        """One whose answer is complete; kept or closed."""
        if not connection.usable:
            connection.abort()
            return
        connection.idle_since_ns = at_ns
        (self._resting if connection.rests else self._idle).append(connection)
        if len(self) > self._size:
            those = [each for each in (self._idle, self._resting) if each]
            min(those, key=lambda each: each[0].idle_since_ns).popleft().abort()

    def sweep(self, at_ns: int) -> None:
        """Close what has been idle for too long, or was closed by the server."""
        for those in (self._idle, self._resting):
            kept = [one for one in those if one.usable and at_ns - one.idle_since_ns < self._keep_ns]
            for one in set(those).difference(kept):
                one.abort()
            those.clear()
            those.extend(kept)

    def close(self) -> None:
        """Close all."""
        for those in (self._idle, self._resting):
            while those:
                those.pop().abort()
