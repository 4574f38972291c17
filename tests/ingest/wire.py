"""Protobuf wire encoding by hand, to write what no protobuf library would."""

from __future__ import annotations

import struct


def varint(value: int, *, size: int = 0) -> bytes:
    """Varint of an int64 or uint64; with ``size`` it is padded to that many bytes, as a sloppy encoder might."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F or len(out) + 1 < size:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, kind: int, *, size: int = 0) -> bytes:
    return varint(number << 3 | kind, size=size)


def integer(number: int, value: int, *, size: int = 0) -> bytes:
    return tag(number, 0) + varint(value, size=size)


def fixed64(number: int, value: int) -> bytes:
    return tag(number, 1) + struct.pack("<Q", value)


def double(number: int, value: float) -> bytes:
    return tag(number, 1) + struct.pack("<d", value)


def fixed32(number: int, value: int) -> bytes:
    return tag(number, 5) + struct.pack("<I", value)


def delimited(number: int, content: bytes | str, *, size: int = 0) -> bytes:
    """String, bytes or message; ``size`` pads the length."""
    raw = content.encode() if isinstance(content, str) else content
    return tag(number, 2) + varint(len(raw), size=size) + raw


def group(number: int, content: bytes) -> bytes:
    return tag(number, 3) + content + tag(number, 4)


def text(value: str) -> bytes:
    """AnyValue."""
    return delimited(1, value)


def boolean(value: bool) -> bytes:
    """AnyValue."""
    return integer(2, int(value))


def whole(value: int, *, size: int = 0) -> bytes:
    """AnyValue."""
    return integer(3, value, size=size)


def real(value: float) -> bytes:
    """AnyValue."""
    return double(4, value)


def array(*values: bytes) -> bytes:
    """AnyValue."""
    return delimited(5, b"".join(delimited(1, value) for value in values))


def pair(key: str, value: bytes) -> bytes:
    """KeyValue of an AnyValue."""
    return delimited(1, key) + delimited(2, value)


def token_event(at_ns: int, *pairs: bytes, name: str = "token_generated") -> bytes:
    """Serialised event with these attributes."""
    return fixed64(1, at_ns) + delimited(2, name) + b"".join(delimited(3, pair) for pair in pairs)


def span(*events: bytes, name: str = "llm_request") -> bytes:
    """Serialised span with valid ids and these events."""
    ids = delimited(1, b"0123456789abcdef") + delimited(2, b"01234567")
    return ids + delimited(5, name) + b"".join(delimited(11, event) for event in events)


def request(*spans: bytes, resource: bytes = b"", scope: bytes = b"") -> bytes:
    """Trace request of serialised spans; an empty resource or scope is left out."""
    scope_spans = (delimited(1, scope) if scope else b"") + b"".join(delimited(2, span) for span in spans)
    return delimited(1, (delimited(1, resource) if resource else b"") + delimited(2, scope_spans))
