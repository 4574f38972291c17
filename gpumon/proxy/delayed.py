"""Passes parts of an answer on later than they came, in their order, each when its time has come.

A part's delay moves all that follows: what came 30 ms apart leaves 30 ms and the later one's own delay apart, as from
a server that takes longer for each token. Times in nanoseconds of the clock that is handed in; the loop's timers keep
them to about a millisecond, and no error adds up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

HELD_BYTES: Final = 256 << 10
"""Above this no more is taken from the server for the time being; which slows what it sends, so is part of nobody's
arithmetic."""


class _Part(NamedTuple):
    due_ns: int
    size: int
    pass_on: Callable[[int], None]


class Delayed:
    """A queue of parts. Not for two threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._parts: deque[_Part] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._shift_ns = 0
        self.held_bytes = 0

    def add(self, size: int, at_ns: int, delay_ns: int, pass_on: Callable[[int], None]) -> None:
        """A part that came at this time. pass_on: called with the time when it is its turn."""
        self._shift_ns += delay_ns
        self._parts.append(_Part(at_ns + self._shift_ns, size, pass_on))
        self.held_bytes += size
        if self._timer is None:
            self._turn()

    def cancel(self) -> None:
        """Nothing more is passed on."""
        self._parts.clear()
        self.held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = None
        while self._parts:
            now_ns = self._now_ns()
            wait_ns = self._parts[0].due_ns - now_ns
            if wait_ns > 0:
                self._timer = self._loop.call_later(wait_ns / 1e9, self._turn)
                return
            part = self._parts.popleft()
            self.held_bytes -= part.size
            part.pass_on(now_ns)
