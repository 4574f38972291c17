"""Which spans were seen already: senders repeat a whole batch when an answer was lost, so copies are normal.

A bounded memory of hashes of (resource, trace id, span id), the oldest forgotten first. Two different spans taken for
one: less than once in 10^9 at the default size.
"""

from __future__ import annotations

from collections import deque


class Seen:
    """Remembers the last ``size`` spans, at about 80 bytes each. Exporters repeat for 10 s: enough for 6,500/s."""

    def __init__(self, size: int = 65_536) -> None:
        self._size = size
        self._hashes: set[int] = set()
        # Beside the set: a dict keeps the order too, but walks over all it has forgotten to find its first key.
        self._order: deque[int] = deque()

    def add(self, resource_key: int, trace_id: bytes, span_id: bytes) -> bool:
        """Remember a span; False if it was known."""
        key = hash((resource_key, trace_id, span_id))
        hashes = self._hashes
        if key in hashes:
            return False
        if len(hashes) >= self._size:
            hashes.remove(self._order.popleft())
        hashes.add(key)
        self._order.append(key)
        return True

    def knows(self, resource_key: int, trace_id: bytes, span_id: bytes) -> bool:
        """Whether the span was seen and is still remembered."""
        return hash((resource_key, trace_id, span_id)) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)
