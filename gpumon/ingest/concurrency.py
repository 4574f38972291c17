"""How many requests were open on one server at a moment: from the start and end of every request known there.

Requests whose span came count with both ends; those known only by their children count from the first child on. What
is not known is not counted: a server that sends nothing before a request's end (vLLM, TGI) hides the requests that
outlive the one asked about, so a short request among long ones sees too few. Bounded: the requests that ended
longest ago are forgotten, which changes no answer about times after their end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort


class Concurrency:
    """Intervals [start, end) in unix ns of one server's clock."""

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._by_end: list[tuple[int, int]] = []
        self._open = 0

    @property
    def open(self) -> int:
        """Requests that began and have no end yet."""
        return self._open

    def begin(self, start_ns: int) -> bool:
        """A request is open; False if there is no room to remember it."""
        if self._open >= self._size:
            return False
        insort(self._starts, start_ns)
        self._open += 1
        return True

    def forget(self, start_ns: int) -> None:
        """Take back a ``begin``."""
        del self._starts[bisect_right(self._starts, start_ns) - 1]
        self._open -= 1

    def add(self, start_ns: int, end_ns: int) -> None:
        """A request ran from start to end."""
        insort(self._starts, start_ns)
        insort(self._ends, end_ns)
        heapq.heappush(self._by_end, (end_ns, start_ns))
        if len(self._by_end) > self._size:
            _, start_ns = heapq.heappop(self._by_end)
            del self._ends[0]
            del self._starts[bisect_right(self._starts, start_ns) - 1]

    def at(self, at_ns: int) -> int:
        """Requests open at a moment; one that starts then is open, one that ends then is not."""
        return bisect_right(self._starts, at_ns) - bisect_right(self._ends, at_ns)
