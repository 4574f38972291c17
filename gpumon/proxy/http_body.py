"""Bodies of HTTP/1 messages: payload out of framing, piece by piece as it arrives, and where the message ends.

RFC 9112, 6 and 7. A reader keeps nothing of the payload: what comes in goes out, as far as it belongs to the body.
Chunk extensions are left out, trailers are kept. What is no chunk breaks the body, behind what came before it.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from gpumon.proxy.http_head import HEAD_BYTES, Framing, Header, HeadError, parse_headers

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_LINE_BYTES: Final = 4096
"""Longest line with a chunk's size, extensions included."""


class BodyReader(Protocol):
    """Takes the bytes that follow a head."""

    done: bool
    """Whether the body has ended."""
    broken: bool
    """Whether its framing is malformed: nothing more comes of it."""
    rest: bytes
    """What followed the end."""
    trailers: tuple[Header, ...]

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in these bytes, in pieces that are not empty."""
        ...


def body_reader(framing: Framing, length: int) -> BodyReader:
    """The reader for a body that is framed so."""
    if framing is Framing.CHUNKED:
        return _Chunked()
    return _UntilEof() if framing is Framing.EOF else _Length(length)


class _Length:
    """So many bytes; none at all is done at once."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.broken = False
        self.rest = b""
        self.trailers: tuple[Header, ...] = ()

    def feed(self, data: bytes) -> list[bytes]:
        if len(data) > self._left:
            data, self.rest = data[: self._left], self.rest + data[self._left :]
        self._left -= len(data)
        self.done = self._left == 0
        return [data] if data else []


class _UntilEof:
    """All that comes until the connection ends."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self.rest = b""
        self.trailers: tuple[Header, ...] = ()

    def feed(self, data: bytes) -> list[bytes]:
        return [data] if data else []


class _Chunked:
    """Chunks, the last one empty, and trailers."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self.rest = b""
        self.trailers: tuple[Header, ...] = ()
        self._left = 0
        """Of the chunk that is under way."""
        self._in_data = False
        self._ending = False
        self._held = b""
        """The beginning of a line or of the CR LF behind a chunk."""

    def feed(self, data: bytes) -> list[bytes]:
        if self._held:
            data, self._held = self._held + data, b""
        size = len(data)
        if not self._in_data and not self._ending:  # one whole chunk is how nearly every token comes
            line = _SIZE.match(data)
            if line is not None:
                at = line.end()
                end = at + int(line[1], 16)
                if end + 2 == size and end > at and data.endswith(b"\r\n"):
                    return [data[at:end]]
        pieces: list[bytes] = []
        at = 0
        while not self._ending:
            if self._in_data:
                if self._left:
                    end = at + self._left
                    piece = data[at:end]
                    if piece:
                        pieces.append(piece)
                    if end > size:
                        self._left = end - size
                        return pieces
                    at, self._left = end, 0
                ending = data[at : at + 2]
                if ending != b"\r\n":
                    self.broken = not b"\r\n".startswith(ending)
                    self._held = ending
                    return pieces
                at += 2
                self._in_data = False
            line = _SIZE.match(data, at)
            if line is None:
                self.broken = size - at > _LINE_BYTES or data.find(b"\n", at) >= 0
                self._held = data[at:]
                return pieces
            at = line.end()
            self._left = int(line[1], 16)
            self._in_data = self._left > 0
            self._ending = not self._in_data
        self._end(data[at:])
        return pieces

    def _end(self, data: bytes) -> None:
        if self.done:
            self.rest += data
            return
        if data.startswith(b"\r\n"):
            self.done, self.rest = True, data[2:]
            return
        section, empty_line, rest = data.partition(b"\r\n\r\n")
        self.broken = len(section) > HEAD_BYTES
        if not empty_line:
            self._held = data
            return
        try:
            self.trailers = parse_headers(section.split(b"\r\n"))
        except HeadError:
            self.broken = True
        self.done, self.rest = not self.broken, rest
