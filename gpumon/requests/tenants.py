"""Label values that come from outside, bounded: so many are told apart, the rest counts as ``other``.

A value that was not used for a long time gives its place to a new one, so that a flood of invented names does not
keep the real ones out for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

OTHER = "other"
UNKNOWN = "unknown"
MAX_LENGTH = 256
"""Characters of the longest label value that is kept as it is."""


def clean(value: str) -> str | None:
    """The value as it can be exported; None when it is too long."""
    if len(value) > MAX_LENGTH:
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


class Place(NamedTuple):
    """Where a value counts."""

    slot: int
    reused: bool
    """The slot was another value's until now: what it counted must be forgotten."""


class BoundedLabels:
    """Gives slots 0 to ``limit`` - 1 to values."""

    def __init__(self, limit: int, idle_s: float) -> None:
        """idle_s: how long a value must be unused before another takes its slot."""
        self._limit = limit
        self._idle_s = idle_s
        self._slots: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Slot and time of last use by value, least recently used first."""

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, value: str, at_s: float) -> Place | None:
        """The value's slot, a new one if need be; None when all are in use."""
        known = self._slots.get(value)
        if known is not None:
            slot, used_s = known
            self._slots[value] = (slot, max(at_s, used_s))
            self._slots.move_to_end(value)
            return Place(slot, reused=False)
        if len(self._slots) < self._limit:
            place = Place(len(self._slots), reused=False)
        else:
            if not self._limit:
                return None
            slot, used_s = next(iter(self._slots.values()))
            if at_s - used_s < self._idle_s:
                return None
            self._slots.popitem(last=False)
            place = Place(slot, reused=True)
        self._slots[value] = (place.slot, at_s)
        return place

    def named(self) -> list[tuple[str, int]]:
        """Values and their slots, in the order of the slots."""
        return sorted(((value, slot) for value, (slot, _) in self._slots.items()), key=lambda item: item[1])
