"""One request and its answer: bytes both ways, as they come, no faster than either side reads.

What is passed on first, is looked at afterwards (``observed``). Whoever leaves takes the other side's connection along:
a client that is gone ends the request at the server at once; a server that breaks off leaves the client with an answer
that has no proper end, as without a proxy between them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from gpumon.proxy.delayed import HELD_BYTES, Delayed
from gpumon.proxy.http_head import (
    Framing,
    Header,
    RequestHead,
    ResponseHead,
    answer_headers,
    trailers_to_pass,
    write_head,
    write_last_chunk,
)
from gpumon.proxy.inject_rules import Where
from gpumon.proxy.observed import Observed
from gpumon.proxy.request_side import RequestSide
from gpumon.proxy.routes import OPERATIONS, Kind, kind_of
from gpumon.proxy.trace_context import trace_context
from gpumon.proxy.upstream import UpstreamConnection

if TYPE_CHECKING:
    from gpumon.proxy.answers import Told
    from gpumon.proxy.client import ClientConnection
    from gpumon.proxy.shared import Shared

_NAME_BYTES: Final = 128
_STATUS: Final = {"connect": 502, "connect_timeout": 504, "closed": 502, "malformed": 502, "timeout": 504}
_WHY: Final = {
    "connect": "the server behind cannot be reached",
    "connect_timeout": "the server behind did not take the connection in time",
    "closed": "the server behind closed the connection before its answer was complete",
    "malformed": "the server behind did not answer in HTTP",
    "timeout": "the server behind sent nothing for too long",
}


class Exchange:
    """From a request's head to the end of its answer."""

    def __init__(self, shared: Shared, client: ClientConnection, head: RequestHead, at_ns: int) -> None:
        self._shared = shared
        self._client = client
        self._head = head
        self.kind: Kind = kind_of(head.method, head.target)
        self.touched_ns = at_ns
        """When anything last moved."""
        self.ended = False
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: Framing | None = None
        """How the answer's body is framed for the client; None: its head has not come."""
        self._streams = False
        self._began = False
        """Whether output has come, where it is delayed."""
        self._status = 0
        self._delays = shared.injection.of(head)
        self._delayed: Delayed | None = None
        self.observed: Observed | None = self._observe(at_ns) if self.kind in OPERATIONS else None
        self._request = RequestSide(
            shared, head, self.observed, client.read_on, may_ask_for_usage=self.kind in (Kind.CHAT, Kind.COMPLETION)
        )
        shared.counters.open_requests += 1

    def start(self) -> None:
        """Begin to look for the server, now or when an injected delay is over."""
        delay_ns = self._delays.draw_ns(Where.REQUEST, self.touched_ns) if self._delays is not None else 0
        if delay_ns:
            self._timer = self._shared.loop.call_later(delay_ns / 1e9, self._acquire)
        else:
            self._acquire()

    # --- from the client ------------------------------------------------------------------------------------------

    def request_pieces(self, pieces: list[bytes]) -> None:
        """Some of the request's body."""
        self._request.pieces(pieces)

    def request_done(self, trailers: tuple[Header, ...]) -> None:
        """The request is complete."""
        self._request.done(trailers)

    @property
    def request_complete(self) -> bool:
        return self._request.complete

    def client_gone(self, at_ns: int) -> None:
        """The client has left."""
        self._end(at_ns, "aborted", aborted=True)

    def client_full(self, *, full: bool) -> None:
        """Whether the client is not reading its answer."""
        self.touched_ns = self._shared.now_ns()
        self._pace(full=full)

    # --- from the server ------------------------------------------------------------------------------------------

    def response_head(self, head: ResponseHead, at_ns: int) -> None:
        self.touched_ns = at_ns
        line = b"HTTP/1.1 %d %b" % (head.status, head.reason)
        if head.status < 200:
            if self._head.minor == 1:
                self._client.write(write_head(line, answer_headers(head)))
            return
        framing = head.framing
        if framing in (Framing.CHUNKED, Framing.EOF):
            framing = Framing.CHUNKED if self._head.minor == 1 else Framing.EOF
        self._answer = framing
        self._status = head.status
        self._shared.upstream_works()
        headers = self._answer_headers(head, framing)
        if self._delays is not None:
            headers.append(self._delays.header)
        self._client.write_answer_head(line, headers)
        if self.observed is not None:
            self.observed.begin_answer(head)
        self._streams = (head.header(b"content-type") or b"").lower().startswith(b"text/event-stream")
        self._shared.counters.open_streams += self._streams
        if self._delays is not None and self._delays.on_answer:
            self._delayed = Delayed(self._shared.loop, self._shared.now_ns)

    def response_pieces(self, pieces: list[bytes], at_ns: int) -> None:
        self.touched_ns = at_ns
        counters = self._shared.counters
        if self._delayed is not None:
            for piece in pieces:
                self._delay(self._delayed, piece, at_ns)
            return
        client, observed = self._client, self.observed
        for piece in pieces:
            counters.response_bytes += len(piece)
            if self._answer is Framing.CHUNKED:
                client.write_chunk(piece)
            else:
                client.write(piece)
        if observed is not None:
            for piece in pieces:
                observed.look(piece, at_ns)
        counters.added(self._shared.now_ns() - at_ns)

    def response_done(self, trailers: tuple[Header, ...], at_ns: int) -> None:
        if self._delayed is not None:
            self._flush(self._delayed, at_ns)
            self._delayed.add(0, at_ns, 0, partial(self._complete, trailers))
            self._give_back(at_ns)
        else:
            self._give_back(at_ns)
            self._complete(trailers, at_ns)

    def upstream_failed(self, reason: str, at_ns: int) -> None:
        self._upstream = None
        if self._delayed is not None:
            self._flush(self._delayed, at_ns)
            self._delayed.add(0, at_ns, 0, partial(self._fail, reason))
        else:
            self._fail(reason, at_ns)

    def upstream_full(self, *, full: bool) -> None:
        self.touched_ns = self._shared.now_ns()
        self._request.set_full(full=full)

    # --- time -----------------------------------------------------------------------------------------------------

    def sweep(self, at_ns: int) -> None:
        """Give up where nothing has moved for too long."""
        if at_ns - self.touched_ns < self._shared.limits.idle_timeout_s * 1e9:
            return
        if self._client.full or not (self.request_complete or self._request.full):
            self._client.abort()  # which ends this
        else:
            self._fail("timeout", at_ns)

    # --- inside ---------------------------------------------------------------------------------------------------

    @property
    def answering(self) -> bool:
        """Whether the answer's head has been passed on."""
        return self._answer is not None

    def _observe(self, at_ns: int) -> Observed:
        head, settings = self._head, self._shared.settings
        return Observed(
            self.kind,
            trace_context(self._one_parent(), self._shared.random_bytes),
            at_ns,
            self._shared.unix_ns(at_ns),
            self._shared.budget,
            tenant=_shown(head.header(settings.tenant_header)),
            request_id=_shown(head.header(b"x-request-id")),
            inference_id=_shown(head.header(settings.inference_header)),
        )

    def _one_parent(self) -> bytes | None:
        """The traceparent, if there is exactly one."""
        values = [value for name, value in self._head.headers if name.lower() == b"traceparent"]
        return values[0] if len(values) == 1 else None

    def _answer_headers(self, head: ResponseHead, framing: Framing) -> list[Header]:
        headers = answer_headers(head)
        told = head.header(b"transfer-encoding") is not None
        if framing is Framing.CHUNKED or (framing is Framing.NONE and told and self._head.method == b"HEAD"):
            headers.append((b"Transfer-Encoding", b"chunked"))
        return headers

    def _acquire(self) -> None:
        self._timer = None
        known = self._shared.pool.take(self._shared.now_ns())
        if known is not None:
            self._attach(known)
        else:
            self._connecting = self._shared.loop.create_task(self._connect())

    async def _connect(self) -> None:
        upstream, limits = self._shared.settings.upstream, self._shared.limits
        connection = self._shared.new_upstream()
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                await self._shared.loop.create_connection(
                    lambda: connection,
                    upstream.host,
                    upstream.port,
                    ssl=upstream.tls,
                    server_hostname=upstream.host if upstream.tls is not None else None,
                )
        except asyncio.CancelledError:
            connection.abort()  # it may have been made just now
            raise
        except TimeoutError:
            self._fail("connect_timeout", self._shared.now_ns())
        except OSError:
            self._fail("connect", self._shared.now_ns())
        else:
            self._connecting = None
            self._shared.upstream_address = connection.address
            self._attach(connection)

    def _attach(self, connection: UpstreamConnection) -> None:
        self._upstream = connection
        connection.begin(self, self._head.method)
        if self._client.full:
            connection.transport.pause_reading()
        self._request.attach(connection)

    def _pace(self, *, full: bool) -> None:
        """Read from the server, or not."""
        if self._upstream is None:
            return
        held = self._delayed.held_bytes if self._delayed is not None else 0
        if full or self._client.full or held > HELD_BYTES:
            self._upstream.transport.pause_reading()
        else:
            self._upstream.transport.resume_reading()

    def _delay(self, delayed: Delayed, piece: bytes, at_ns: int) -> None:
        assert self._delays is not None
        units = self.observed.units(piece) if self.observed is not None else [(piece, None)]
        for part, told in units:
            delay_ns = 0
            if self._is_output(told):
                if not self._began:
                    self._began = True
                    delay_ns = self._delays.draw_ns(Where.FIRST, at_ns)
                delay_ns += self._delays.draw_ns(Where.TOKEN, at_ns)
            delayed.add(len(part), at_ns, delay_ns, partial(self._pass_on, part, told))
        self._pace(full=False)

    def _is_output(self, told: Told | None) -> bool:
        """Whether a part is delayed as a token is: of what is no stream, the first part of the body."""
        return told.tokens if told is not None else not self._streams and not self._began

    def _flush(self, delayed: Delayed, at_ns: int) -> None:
        rest = self.observed.rest if self.observed is not None else b""
        if rest:
            delayed.add(len(rest), at_ns, 0, partial(self._pass_on, rest, None))

    def _pass_on(self, part: bytes, told: Told | None, at_ns: int) -> None:
        self.touched_ns = at_ns
        self._shared.counters.response_bytes += len(part)
        if self._answer is Framing.CHUNKED:
            self._client.write_chunk(part)
        else:
            self._client.write(part)
        if told is not None and self.observed is not None:
            self.observed.note(told, at_ns)
        self._pace(full=False)

    def _give_back(self, at_ns: int) -> None:
        """The server's answer is complete."""
        connection, self._upstream = self._upstream, None
        if connection is None:
            return
        if self.request_complete and not self._client.full:
            connection.transport.resume_reading()
            self._shared.pool.give(connection, at_ns)
        else:
            connection.abort()

    def _complete(self, trailers: tuple[Header, ...], at_ns: int) -> None:
        if self._answer is Framing.CHUNKED:
            self._client.write(write_last_chunk(trailers_to_pass(trailers)))
        self._end(at_ns, "error" if self._status >= 400 else "ok")
        self._client.answered(complete=self.request_complete)

    def _fail(self, reason: str, at_ns: int) -> None:
        if self.ended:
            return
        self._shared.counters.upstream_errors[reason] += 1
        self._shared.complain(reason)
        answer = self._answer
        self._end(at_ns, "error", error=f"upstream_{reason}")
        if answer is None:
            self._client.refuse(_STATUS[reason], _WHY[reason], f"upstream_{reason}")
        else:
            self._client.break_off(reset=answer is Framing.EOF)

    def _end(self, at_ns: int, outcome: str, *, error: str = "", aborted: bool = False) -> None:
        if self.ended:
            return
        self.ended = True
        if self._connecting is not None and self._connecting is not asyncio.current_task(self._shared.loop):
            self._connecting.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._delayed is not None:
            self._delayed.cancel()
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        self._request.detach()
        counters = self._shared.counters
        counters.open_requests -= 1
        counters.open_streams -= self._streams
        observed = self.observed
        if observed is not None:
            observed.injected_ns = self._delays.total_ns if self._delays is not None else 0
            observed.end(at_ns, error=error, aborted=aborted)
            counters.chunks += observed.chunks
            counters.malformed_events += observed.malformed
            if aborted and not observed.aborted:
                outcome = "ok"  # it had read the last event
            if outcome == "ok" and observed.error:
                outcome = "error"
            self._shared.offer(observed)
        counters.requests[self.kind, outcome] += 1
        self._shared.request_ended()


def _shown(value: bytes | None) -> str:
    return value[:_NAME_BYTES].decode("latin-1") if value else ""
