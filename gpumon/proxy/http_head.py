"""Heads of HTTP/1 messages: what is taken, what is refused, and how they are written again for the other side.

RFC 9112, read strictly: lines end with CR LF, names are tokens, values have no control character, a length is said once
and in one way. So whatever leaves here means the same to everybody behind, and nobody's header can become two. Order
and case of headers are kept; those that belong to one connection alone (RFC 9110, 7.6.1) are left out. Pure: bytes in,
values out. What cannot be taken raises HeadError, which never quotes what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpumon.host.http import PROXY_HEADER, SCRAPE_HEADER

HEAD_BYTES: Final = 64 << 10
"""Largest head, and largest trailer section."""
HEADERS_MAX: Final = 256

Header = tuple[bytes, bytes]

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_HEADER: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_HOST: Final = re.compile(rb"[\x21-\x7e]*")
_LINE_BEGINNING: Final = re.compile(rb"[\x20-\x7e\x80-\xff]*\r?")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_STATUS_BEGINNING: Final = b"HTTP/1."
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade"),
        *(b"http2-settings", b"proxy-authenticate", b"proxy-authorization"),
    }
)
_NEVER_NAMED: Final = frozenset({b"content-length", b"host", b"content-type", b"content-encoding"})
"""Headers that a Connection header cannot take away: what the body is depends on them."""
ERROR_HEADER: Final = PROXY_HEADER.encode()
"""Of answers that are the proxy's own."""
INJECTED_HEADER: Final = b"x-gpumon-injected"
"""Of every answer to a request that rules for delays apply to: the rules."""
_SCRAPE: Final = SCRAPE_HEADER.encode()
_OWN: Final = frozenset({ERROR_HEADER, INJECTED_HEADER})
_NO_TRAILERS: Final = frozenset(
    {*_HOP_BY_HOP, *_NEVER_NAMED, *_OWN, b"trailer", b"authorization", b"cookie", b"set-cookie"}
)


class HeadError(Exception):
    """A head that is not taken. ``status``: what to answer where it was a request's."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Framing(Enum):
    """How the end of a body is told."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    EOF = "eof"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a client asks for."""

    method: bytes
    target: bytes
    minor: int
    """Of HTTP/1."""
    headers: tuple[Header, ...]
    framing: Framing
    length: int = 0

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this name (lower case)."""
        return _first(self.headers, name)

    @property
    def keeps(self) -> bool:
        """Whether the client wants the connection kept."""
        return self.minor == 1 and b"close" not in _words(self.headers, b"connection")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What the server answers."""

    status: int
    reason: bytes
    minor: int
    headers: tuple[Header, ...]
    framing: Framing
    length: int = 0

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this name (lower case)."""
        return _first(self.headers, name)

    @property
    def keeps(self) -> bool:
        """Whether the connection can serve another request."""
        # Where there must be no body, one that is announced all the same could be taken for the next answer.
        announced = self.status == 204 and (
            (self.header(b"content-length") or b"0").strip(b"0") != b"" or self.header(b"transfer-encoding") is not None
        )
        closes = self.framing is Framing.EOF or self.minor == 0 or announced
        return not closes and b"close" not in _words(self.headers, b"connection")


def parse_request(data: bytes) -> RequestHead:
    """The head of a request, without the empty line behind it. Raises HeadError."""
    first, *lines = data.split(b"\r\n")
    line = _request_line(first)
    headers = parse_headers(lines)
    framing, length = _framing(headers)
    minor = int(line[3])
    if framing is Framing.CHUNKED and minor == 0:
        raise HeadError("HTTP/1.0 has no chunked bodies")
    hosts = [value for name, value in headers if name.lower() == b"host"]
    if len(hosts) > 1:
        raise HeadError("there is more than one Host header")
    if not hosts and minor == 1:
        raise HeadError("there is no Host header")
    if not all(map(_HOST.fullmatch, hosts)):
        raise HeadError("the Host header is malformed")
    return RequestHead(line[1], line[2], minor, headers, framing, length)


def check_request_beginning(data: bytes) -> None:
    """Part of a head, from its beginning on. Raises HeadError where no more of it could make it one."""
    first, told, _ = data.partition(b"\r\n")
    if told:
        _request_line(first)
    if _BARE_LF.search(data) or not (told or _LINE_BEGINNING.fullmatch(first)):
        raise HeadError("the request's lines are malformed")


def check_response_beginning(data: bytes) -> None:
    """Likewise of an answer."""
    first, told, _ = data.partition(b"\r\n")
    begins = (
        bool(_STATUS_LINE.fullmatch(first)) if told else _STATUS_BEGINNING.startswith(first[: len(_STATUS_BEGINNING)])
    )
    if not begins or _BARE_LF.search(data):
        raise HeadError("the status line is malformed", 502)


def parse_response(data: bytes, method: bytes) -> ResponseHead:
    """The head of a response to such a request, without the empty line behind it. Raises HeadError."""
    first, *lines = data.split(b"\r\n")
    line = _STATUS_LINE.fullmatch(first)
    if line is None:
        raise HeadError("the status line is malformed", 502)
    headers = parse_headers(lines)
    status, minor = int(line[2]), int(line[1])
    framing, length = _framing(headers)
    if method == b"HEAD" or status < 200 or status in (204, 304):
        framing, length = Framing.NONE, 0
    elif framing is Framing.NONE and not any(name.lower() == b"content-length" for name, _ in headers):
        framing = Framing.EOF
    return ResponseHead(status, line[3] or b"", minor, headers, framing, length)


def parse_headers(lines: Iterable[bytes]) -> tuple[Header, ...]:
    """Header or trailer lines. Raises HeadError."""
    headers = []
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise HeadError("a header is malformed")
        headers.append((match[1], match[2].rstrip(b" \t")))
    if len(headers) > HEADERS_MAX:
        raise HeadError(f"there are more than {HEADERS_MAX} headers", 431)
    return tuple(headers)


def end_to_end(headers: tuple[Header, ...]) -> list[Header]:
    """Those that are meant for the other end, in their order."""
    named = _words(headers, b"connection") - _NEVER_NAMED
    left_out = _HOP_BY_HOP | named if named else _HOP_BY_HOP
    return [header for header in headers if header[0].lower() not in left_out]


def answer_headers(head: ResponseHead) -> list[Header]:
    """Those of an answer that are meant for the client: none that only the proxy may say, no length of no body."""
    bodyless = head.status < 200 or head.status == 204  # RFC 9110, 8.6
    left_out = _OWN | {b"content-length"} if bodyless else _OWN
    return [header for header in end_to_end(head.headers) if header[0].lower() not in left_out]


def trailers_to_pass(trailers: tuple[Header, ...]) -> list[Header]:
    """Trailers, without those that mean nothing behind a body or would change what it was."""
    return [header for header in trailers if header[0].lower() not in _NO_TRAILERS]


def wants_websocket(head: RequestHead) -> bool:
    """Whether this asks for a WebSocket. Other upgrades are offers, which a server may pass over."""
    return b"websocket" in _words(head.headers, b"upgrade")


def is_scrape(head: RequestHead) -> bool:
    """Whether gpumon asks for a server's own metrics page."""
    return head.header(_SCRAPE) is not None


def wants_trailers(head: RequestHead) -> bool:
    """Whether the client said that it reads trailers."""
    return b"trailers" in _words(head.headers, b"te")


def write_head(first: bytes, headers: Iterable[Header]) -> bytes:
    """A head with its empty line. first: request or status line."""
    return b"\r\n".join([first, *[b"%b: %b" % header for header in headers], b"", b""])


def write_last_chunk(trailers: Iterable[Header]) -> bytes:
    """The end of a chunked body."""
    return write_head(b"0", trailers)


def _request_line(first: bytes) -> re.Match[bytes]:
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        if re.search(rb" HTTP/[02-9]", first):
            raise HeadError("this is not HTTP/1", 505)
        raise HeadError("the request line is malformed")
    return line


def _framing(headers: tuple[Header, ...]) -> tuple[Framing, int]:
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    if codings:
        if lengths:
            raise HeadError("there are both a length and a transfer coding")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise HeadError("the only transfer coding taken is chunked", 501)
        return Framing.CHUNKED, 0
    if not lengths:
        return Framing.NONE, 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HeadError("the length is malformed")
    length = int(lengths[0])
    return (Framing.LENGTH, length) if length else (Framing.NONE, 0)


def _first(headers: tuple[Header, ...], name: bytes) -> bytes | None:
    return next((value for known, value in headers if known.lower() == name), None)


def _words(headers: tuple[Header, ...], name: bytes) -> frozenset[bytes]:
    """Comma-separated words of all headers of this name, in lower case."""
    return frozenset(
        word.strip().lower() for known, value in headers if known.lower() == name for word in value.split(b",")
    )
