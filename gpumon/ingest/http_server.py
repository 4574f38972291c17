"""OTLP over HTTP: the ASGI application behind ``/v1/traces``, ``/v1/metrics`` and ``/v1/logs``.

Decides what the OTLP specification leaves to the HTTP layer: method, media type (protobuf or JSON, with parameters, in
any case), ``Content-Encoding`` (gzip or none; what else there is gets 415 and is told so), size and time of the body.
Answers in the encoding of the request; errors are ``google.rpc.Status``. Decompression is the intake's, off the loop.

What is being read counts against the intake's bytes, so that many slow senders cannot hold more than one fast one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from gpumon.ingest.answers import HTTP_STATUS, response, status
from gpumon.ingest.auth import Gate, authorization
from gpumon.ingest.intake import Intake
from gpumon.ingest.limits import MIB, Limits
from gpumon.ingest.request import Ack, Outcome, Request, Signal, Transport

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

PATHS = {"/v1/traces": Signal.TRACES, "/v1/metrics": Signal.METRICS, "/v1/logs": Signal.LOGS}

_PROTOBUF = b"application/x-protobuf"
_JSON = b"application/json"
_DRAIN_S = 2.0
_DRAIN_BYTES = 80 * MIB
"""What is read and thrown away after a refusal, so that a sender still writing gets to read the answer: an exporter
that sends a little more than is allowed must learn so. More or longer is cut off."""


class OtlpHttp:
    """The ASGI application. Other paths are 404."""

    def __init__(self, intake: Intake, limits: Limits, gate: Gate | None = None) -> None:
        """``gate``: who may send; None: everybody."""
        self._intake = intake
        self._limits = limits
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        signal = PATHS.get(scope["path"])
        if signal is None:
            answer = _text("not an OTLP path: there are /v1/traces, /v1/metrics and /v1/logs")
            await _refuse(scope, _Incoming(receive), send, 404, answer)
            return
        headers = _headers(scope)
        as_json = headers.media != _PROTOBUF
        refusal = await self._check(scope, headers)
        incoming = _Incoming(receive)
        body: bytes | None = None
        if refusal is None:
            body, refusal = await self._read(incoming)
        if refusal is not None:
            self._intake.refused(Transport.HTTP, signal, refusal.ack.outcome)
            answer = _status(refusal, as_json=as_json)
            await _refuse(scope, incoming, send, refusal.code or HTTP_STATUS[refusal.ack.outcome], answer)
            return
        if body is None:
            return  # the sender has gone
        request = Request(Transport.HTTP, signal, body, as_json, headers.encoding == b"gzip", _peer(scope))
        ack = await self._intake.submit(request)
        code = HTTP_STATUS[ack.outcome]
        if code == 200:
            content = response(signal, ack, as_json=as_json)
            await _send(send, 200, _Answer(content, [(b"content-type", _JSON if as_json else _PROTOBUF)]))
        else:
            await _send(send, code, _status(_Refusal(ack), as_json=as_json))

    async def _check(self, scope: Scope, headers: _Headers) -> _Refusal | None:
        """What can be said before the body."""
        if scope["method"] != "POST":
            return _Refusal(Ack(Outcome.BAD, message="only POST"), 405, [(b"allow", b"POST")])
        if self._gate is not None and not await self._gate.admits(authorization(scope["headers"])):
            ack = Ack(Outcome.UNAUTHORIZED, message="missing or wrong credentials")
            return _Refusal(ack, 0, [(b"www-authenticate", self._gate.challenge)])
        if headers.media not in (_PROTOBUF, _JSON):
            return _Refusal(
                Ack(Outcome.BAD, message="media type must be application/x-protobuf or application/json"), 415
            )
        if headers.encoding not in (b"", b"identity", b"gzip"):
            ack = Ack(Outcome.BAD, message="content encoding must be gzip or none")
            return _Refusal(ack, 415, [(b"accept-encoding", b"gzip")])
        if headers.length is not None and headers.length > self._limits.body_bytes:
            return _Refusal(self._too_large())
        busy = self._intake.busy()
        return None if busy is None else _Refusal(busy)

    async def _read(self, incoming: _Incoming) -> tuple[bytes | None, _Refusal | None]:
        """The body, or why there is none; neither if the sender has gone."""
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while not incoming.ended:
                    chunk = await incoming.chunk()
                    if size + len(chunk) > self._limits.body_bytes:
                        return None, _Refusal(self._too_large())
                    if not self._intake.hold(len(chunk)):
                        return None, _Refusal(self._intake.overload())
                    size += len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            incoming.ended = True  # it has had its time
            return None, _Refusal(Ack(Outcome.TOO_SLOW, message=f"no whole body in {self._limits.body_timeout_s:g} s"))
        finally:
            self._intake.release(size)
        if incoming.gone:
            return None, None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks), None

    def _too_large(self) -> Ack:
        return Ack(Outcome.TOO_LARGE, message=f"larger than {self._limits.body_bytes} bytes")


class _Incoming:
    """The body of a request as it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False
        self.gone = False
        """Whether it ended because the sender closed the connection."""

    async def chunk(self) -> bytes:
        """The next piece, perhaps empty. Not to be called once it has ended."""
        message = await self._receive()
        self.gone = message["type"] == "http.disconnect"
        self.ended = self.gone or not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece


class _Headers(NamedTuple):
    media: bytes
    """Media type in lower case, without parameters."""
    encoding: bytes
    length: int | None
    """None: chunked."""


class _Refusal(NamedTuple):
    ack: Ack
    code: int = 0
    """HTTP status, where it is not the outcome's."""
    headers: list[tuple[bytes, bytes]] = []  # noqa: RUF012 - never written to


class _Answer(NamedTuple):
    body: bytes
    headers: list[tuple[bytes, bytes]]


def _headers(scope: Scope) -> _Headers:
    media = encoding = b""
    length: int | None = None
    for name, value in scope["headers"]:
        if name == b"content-type":
            media = value.split(b";", 1)[0].strip().lower()
        elif name == b"content-encoding":
            encoding = encoding + b"," + value.strip().lower() if encoding else value.strip().lower()
        elif name == b"content-length" and value.isdigit():
            length = int(value[:20])
    return _Headers(media, encoding, length)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    if not client:
        return ""
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _text(text: str) -> _Answer:
    return _Answer(f"{text}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


def _status(refusal: _Refusal, *, as_json: bool) -> _Answer:
    headers = [(b"content-type", _JSON if as_json else _PROTOBUF), *refusal.headers]
    if refusal.ack.retry_after_s:
        headers.append((b"retry-after", b"%d" % refusal.ack.retry_after_s))
    return _Answer(status(refusal.ack, as_json=as_json), headers)


async def _send(send: Send, code: int, answer: _Answer) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _refuse(scope: Scope, incoming: _Incoming, send: Send, code: int, answer: _Answer) -> None:
    """Answer without having read the whole body: then throw the rest of it away for a while, and close."""
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    if not any(name == b"expect" for name, _ in scope["headers"]):  # else nothing is sent before the answer is read
        await _drain(incoming)
    await send({"type": "http.response.body", "body": b""})


async def _drain(incoming: _Incoming) -> None:
    left = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_S):
            while left > 0 and not incoming.ended:
                left -= len(await incoming.chunk())
    except TimeoutError:
        return
