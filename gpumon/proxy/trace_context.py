"""W3C trace context, level 1: what a ``traceparent`` says, and how one is made. Pure; randomness is handed in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class TraceContext(NamedTuple):
    """Where a request's span stands."""

    trace_id: bytes
    span_id: bytes
    """Of the span to be made."""
    parent_id: bytes
    """Empty: it is the first."""

    @property
    def traceparent(self) -> bytes:
        """For the server behind: its parent is our span."""
        return b"00-%b-%b-01" % (self.trace_id.hex().encode(), self.span_id.hex().encode())


def trace_context(traceparent: bytes | None, random_bytes: Callable[[int], bytes]) -> TraceContext:
    """A span in the trace that the client told of or, where it told of none that is one, in a trace of its own."""
    span_id = _not_zero(8, random_bytes)
    parent = _PARENT.fullmatch(traceparent) if traceparent is not None else None
    if parent is not None and parent[1] != b"ff" and not (parent[1] == b"00" and parent[4]):
        trace_id, parent_id = bytes.fromhex(parent[2].decode()), bytes.fromhex(parent[3].decode())
        if any(trace_id) and any(parent_id):
            return TraceContext(trace_id, span_id, parent_id)
    return TraceContext(_not_zero(16, random_bytes), span_id, b"")


def _not_zero(size: int, random_bytes: Callable[[int], bytes]) -> bytes:
    found = random_bytes(size)
    return found if any(found) else b"\x01" * size
