"""The real ``host.http.Http``: http.client over kept connections, one deadline for all of a page.

Redirects are not followed, proxies of the environment are not used, certificates of ``https`` are verified by the
system's authorities. A gpumon proxy is told from a server, and gives away no page of the one behind it. Looking up a
name has no deadline in any C library: where that may hang, configure addresses.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import urlsplit

from gpumon.host.http import PROXY_HEADER, SCRAPE_HEADER, HttpError
from gpumon.host.timed_socket import TimedSocket, TooLongError, left_s
from gpumon.model import Reason

if TYPE_CHECKING:
    import http.client
    import ssl

KEPT = 32
"""Connections kept; of more targets the one opened first gives way."""
_HEADERS = {"Accept": "text/plain;version=0.0.4, */*;q=0.1", "User-Agent": "gpumon", SCRAPE_HEADER: "1"}
_OVERHEAD_BYTES = 1 << 18


class _Address(NamedTuple):
    scheme: str
    host: str
    port: int


class HttpClient:
    """See the module. Opens nothing before the first page."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """now_s: steady seconds, for the deadline."""
        self._now_s = now_s
        self._kept: dict[_Address, http.client.HTTPConnection] = {}
        self._tls: ssl.SSLContext | None = None

    def get(self, url: str, *, timeout_s: float, limit: int) -> bytes:
        # 4 MB with what it imports, which an installation without servers has no use for.
        import http.client

        address, path = _parse(url)
        deadline_s = self._now_s() + timeout_s
        try:
            if address in self._kept:
                # A server may have closed the connection meanwhile, which shows when it is used.
                with contextlib.suppress(ConnectionError, http.client.BadStatusLine):
                    return self._exchange(address, path, deadline_s, limit)
                self._drop(address)
            return self._exchange(address, path, deadline_s, limit)
        except (OSError, TooLongError, http.client.HTTPException, ValueError) as error:  # ValueError: an odd length
            self._drop(address)
            raise _failure(error, timeout_s, limit) from error

    def close(self) -> None:
        """Close what is kept; another page opens connections again."""
        for address in [*self._kept]:
            self._drop(address)

    def _exchange(self, address: _Address, path: str, deadline_s: float, limit: int) -> bytes:
        import http.client

        connection = self._kept.get(address)
        if connection is None:
            connection = self._open(address, deadline_s)
        timed = cast(TimedSocket, connection.sock)
        timed.deadline_s = deadline_s
        timed.bytes_left = 2 * limit + _OVERHEAD_BYTES  # chunks of few bytes have as much around them
        connection.request("GET", path, headers=_HEADERS)
        with contextlib.closing(connection.getresponse()) as response:
            refusal = _refusal(response)
            if refusal is not None:
                self._drop(address)
                raise refusal
            if response.length is not None and response.length > limit:
                raise TooLongError
            body = response.read(limit + 1)
            if len(body) > limit:
                raise TooLongError
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            if response.will_close:
                self._drop(address)
        return body

    def _open(self, address: _Address, deadline_s: float) -> http.client.HTTPConnection:
        import http.client

        real = self._connected(address, deadline_s)
        if len(self._kept) >= KEPT:
            self._drop(next(iter(self._kept)))
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = self._kept[address] = kind(address.host, address.port)
        connection.auto_open = 0  # what is closed stays so: opening is done here
        connection.sock = cast(socket.socket, TimedSocket(real, self._now_s))
        return connection

    def _connected(self, address: _Address, deadline_s: float) -> socket.socket:
        failure = OSError("no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            real = socket.socket(family, kind, protocol)
            try:
                real.settimeout(left_s(deadline_s, self._now_s))
                real.connect(place)
                real.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._encrypted(real, address.host, deadline_s) if address.scheme == "https" else real
            except OSError as error:
                real.close()
                failure = error
        raise failure

    def _encrypted(self, real: socket.socket, host: str, deadline_s: float) -> socket.socket:
        import ssl

        if self._tls is None:
            self._tls = ssl.create_default_context()
        real.settimeout(left_s(deadline_s, self._now_s))
        return self._tls.wrap_socket(real, server_hostname=host)

    def _drop(self, address: _Address) -> None:
        connection = self._kept.pop(address, None)
        if connection is not None:
            connection.close()


def _parse(url: str) -> tuple[_Address, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise HttpError(Reason.MALFORMED, "not an address") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise HttpError(Reason.MALFORMED, "not an http or https address without credentials")
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    return _Address(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)), path + query


def _refusal(response: http.client.HTTPResponse) -> HttpError | None:
    """Why the answer is no page; None where it is one."""
    status = response.status
    if status in (401, 403):
        return HttpError(Reason.DENIED, f"HTTP {status}")
    if status != 200:
        is_proxy = response.getheader(PROXY_HEADER) is not None
        return HttpError(Reason.UNAVAILABLE, "a gpumon proxy, not a server" if is_proxy else f"HTTP {status}")
    if (response.getheader("Content-Encoding") or "identity").strip().lower() != "identity":
        return HttpError(Reason.MALFORMED, "compressed, which was not asked for")
    kind = (response.getheader("Content-Type") or "text/plain").partition(";")[0].strip().lower()
    if not kind.startswith("text/") and kind != "application/openmetrics-text":
        return HttpError(Reason.MALFORMED, "not text")
    return None


def _failure(error: Exception, timeout_s: float, limit: int) -> HttpError:
    if isinstance(error, TimeoutError):
        return HttpError(Reason.TIMEOUT, f"no page within {timeout_s:g} s")
    if isinstance(error, TooLongError):
        return HttpError(Reason.MALFORMED, f"larger than {limit} bytes")
    if isinstance(error, OSError):  # among them a certificate that does not fit
        return HttpError(Reason.UNAVAILABLE, error.strerror or type(error).__name__)
    return HttpError(Reason.MALFORMED, type(error).__name__)
