"""OTLP/HTTP out: POST of protobuf over one kept connection, everything within one deadline.

http.client alone limits the time of each read, so an answer of one byte a second would never end: here every read of
a try gets what is left of the try's time.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import zlib
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import cast
from urllib.parse import urlsplit

from gpumon.export.forward_send import MAX_ANSWER_BYTES, USER_AGENT, Answer, Endpoint, Outcome, Tls, accepted
from gpumon.host.timed_socket import TimedSocket, TooLongError
from gpumon.ingest.request import Signal

HEAD_BYTES = 128 << 10
"""Of an answer, besides its body: what http.client takes of headers."""

_RETRYABLE = frozenset({429, 502, 503, 504})


class HttpSender:
    """Not for two threads at once."""

    def __init__(self, endpoint: Endpoint, now_s: Callable[[], float], unix_s: Callable[[], float]) -> None:
        """now_s: steady seconds, for the deadline; unix_s: for a Retry-After that is a date."""
        parts = urlsplit(endpoint.url)
        self._host = cast(str, parts.hostname)  # Endpoint has seen to it
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls = endpoint.tls if parts.scheme == "https" else None
        self._context: ssl.SSLContext | None = None
        self._gzip = endpoint.gzip
        self._timeout_s = endpoint.timeout_s
        self._now_s = now_s
        self._unix_s = unix_s
        self._headers = {
            "User-Agent": USER_AGENT,
            **endpoint.headers,
            "Content-Type": "application/x-protobuf",
        }
        if self._gzip:
            self._headers["Content-Encoding"] = "gzip"
        self._connection: http.client.HTTPConnection | None = None

    def send(self, signal: Signal, body: bytes) -> Outcome:
        """One try. A connection kept from before that turns out to be closed is replaced within it."""
        content = _gzipped(body) if self._gzip else body
        deadline_s = self._now_s() + self._timeout_s
        kept = self._connection is not None
        try:
            try:
                return self._post(signal, content, deadline_s)
            except (ConnectionError, http.client.BadStatusLine):
                if not kept:
                    raise
                self.close()
                return self._post(signal, content, deadline_s)
        except TimeoutError:
            self.close()
            return Outcome(Answer.RETRY, "timeout")
        except (OSError, http.client.HTTPException, ValueError, TooLongError) as error:
            # ValueError: a header or a length in the answer that is none.
            self.close()
            return Outcome(Answer.RETRY, _name(error))

    def close(self) -> None:
        """Close the connection; another try opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, signal: Signal, content: bytes, deadline_s: float) -> Outcome:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
        timed = cast(TimedSocket, connection.sock)
        timed.deadline_s = deadline_s
        timed.bytes_left = MAX_ANSWER_BYTES + HEAD_BYTES
        connection.request("POST", f"{self._prefix}/v1/{signal}", content, self._headers)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
        if response.length and len(body) < MAX_ANSWER_BYTES:
            raise http.client.IncompleteRead(b"")
        if not response.isclosed() or response.will_close:
            self.close()
        return self._outcome(response, body)

    def _outcome(self, response: http.client.HTTPResponse, body: bytes) -> Outcome:
        status = response.status
        if 200 <= status < 300:
            return accepted(body)
        detail = f"HTTP {status}"
        if status in _RETRYABLE:
            after_s = _retry_after_s(response.getheader("Retry-After"), self._unix_s())
            return Outcome(Answer.RETRY, detail, retry_after_s=after_s)
        return Outcome(Answer.REFUSED, detail)

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        else:
            if self._context is None:
                self._context = _context(self._tls)
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        connection.connect()
        # http.client uses no more of a socket than this stand-in has.
        connection.sock = cast(socket.socket, TimedSocket(connection.sock, self._now_s))
        return connection


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


def _gzipped(body: bytes) -> bytes:
    # Level 1: half the time of the default for a few per cent more bytes; most of them are random ids anyway.
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    return compressor.compress(body) + compressor.flush()


def _retry_after_s(text: str | None, unix_s: float) -> float | None:
    """Seconds, or a date; None for neither."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text[:12])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_s)
    except (ValueError, TypeError, OverflowError):
        return None


def _name(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
