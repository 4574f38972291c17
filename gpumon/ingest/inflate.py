"""Undoes gzip (RFC 1952, several members allowed) without ever holding more than a limit."""

from __future__ import annotations

import zlib

_GZIP = 16 + zlib.MAX_WBITS
_SLICE_BYTES = 256 << 10
"""Fed to zlib at a time. What follows a member is copied at its end, so this bounds the copies."""
_MEMBERS = 1024
"""Most members. Senders write one; a body of empty ones (20 bytes each) would take a minute otherwise."""


class InflateError(Exception):
    """Not gzip, damaged, or cut short."""


class TooLargeError(Exception):
    """More than the limit once decompressed."""


def inflate(body: bytes, limit_bytes: int) -> bytes:
    """The content of ``body``. Raises InflateError, or TooLargeError above ``limit_bytes``."""
    parts: list[bytes] = []
    left = limit_bytes
    at, members = 0, 0
    member = None
    while at < len(body):
        if member is None:
            if members and not body[at : at + _SLICE_BYTES].strip(b"\0"):
                at += _SLICE_BYTES  # gzip files may be padded with zeros
                continue
            members += 1
            if members > _MEMBERS:
                raise InflateError(f"gzip of more than {_MEMBERS} members")
            member = zlib.decompressobj(_GZIP)
        piece = body[at : at + _SLICE_BYTES]
        try:
            part = member.decompress(piece, left + 1)
        except zlib.error as err:
            raise InflateError("the body is not gzip, or damaged") from err
        left -= len(part)
        if left < 0:
            raise TooLargeError(f"larger than {limit_bytes} bytes after decompression")
        parts.append(part)
        at += len(piece) - len(member.unused_data)
        if member.eof:
            member = None
    if member is not None or not members:
        raise InflateError("the gzip body is cut short")
    return parts[0] if len(parts) == 1 else b"".join(parts)
