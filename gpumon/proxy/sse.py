"""Splits a stream of server-sent events into its events, however the stream was cut on its way.

The format is WHATWG HTML, 9.2: an event ends with an empty line; a line ends with CR LF, LF or CR. Bytes in, bytes out:
what came is never decoded here, so a cut in the middle of a character, of `data:` or of a line's end changes nothing.
The events, one behind the other, and the rest are the stream itself.
"""

from __future__ import annotations

import re
from typing import Final

EVENT_BYTES: Final = 256 << 10
"""Largest event that is looked into. A larger one goes by in pieces, of which only the last ends it."""

# A CR counts as an end only where it is known that no LF follows: else CR LF would be an empty line.
_EMPTY_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?=[^\n]))(?:\r\n|\n|\r(?=[^\n]))")
_OVERLAP: Final = 4
"""Bytes at the end of what was searched that may be the beginning of an empty line."""


class SseSplitter:
    """Feed it the stream; it gives whole events, each with the empty line that ends it."""

    __slots__ = ("_held", "_searched", "oversized")

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0
        self.oversized = 0
        """Pieces given that are no whole events, because theirs was too large."""

    @property
    def rest(self) -> bytes:
        """What came behind the last event."""
        return bytes(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The events that end in this piece of the stream."""
        held = self._held
        if not held and data[-2:] == b"\n\n" and b"\r" not in data:  # how nearly every stream comes
            events = [event + b"\n\n" for event in data[:-2].split(b"\n\n")]
            if len(data) <= EVENT_BYTES or len(max(events, key=len)) <= EVENT_BYTES:
                return events
        held += data
        events = []
        start = 0
        for end in _EMPTY_LINE.finditer(held, self._searched):
            events += self._bounded(bytes(held[start : end.end()]))
            start = end.end()
        if start:
            del held[:start]
        if len(held) > EVENT_BYTES:
            cut = len(held) - _OVERLAP
            events += self._bounded(bytes(held[:cut]))
            del held[:cut]
        self._searched = max(0, len(held) - _OVERLAP)
        return events

    def _bounded(self, event: bytes) -> list[bytes]:
        if len(event) <= EVENT_BYTES:
            return [event]
        pieces = [event[at : at + EVENT_BYTES] for at in range(0, len(event), EVENT_BYTES)]
        self.oversized += len(pieces)
        return pieces


def data_of(event: bytes) -> bytes:
    """The data of an event, its lines joined; empty where it has none, as a comment or a ping."""
    if event.startswith(b"data:") and event.find(b"\n", 0, -2) < 0 and event.find(b"\r") < 0:
        return event[5:].strip(b" \n")
    parts = []
    for line in event.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            parts.append(value.removeprefix(b" "))
    return b"\n".join(parts)
