"""The one clock: CLOCK_MONOTONIC inside, unix time only at the edges."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Steady seconds now, and their translation to and from unix time."""

    def now_s(self) -> float:
        """Steady seconds (CLOCK_MONOTONIC): what every ``at_s`` in gpumon is."""
        ...

    def to_unix(self, at_s: float) -> float:
        """Unix time of a steady moment, by the wall clock as it stands now."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        return time.monotonic()

    def to_unix(self, at_s: float) -> float:
        # Read anew each time: after a step of the wall clock, what is exported agrees with what others write.
        return time.time() - time.monotonic() + at_s


class ManualClock:
    """A clock that stands still until stepped: for simulation, replay and tests."""

    def __init__(self, at_s: float = 1000.0, unix_s: float = 1_800_000_000.0) -> None:
        self._at_s = at_s
        self._offset = unix_s - at_s

    def now_s(self) -> float:
        return self._at_s

    def to_unix(self, at_s: float) -> float:
        return at_s + self._offset

    def step(self, seconds: float) -> None:
        """Move forward."""
        self._at_s += seconds

    def move_to(self, at_s: float) -> None:
        """Move forward to a moment; one that is past changes nothing."""
        self._at_s = max(self._at_s, at_s)

    def set_offset(self, offset_s: float) -> None:
        """Let unix time be steady time plus this from now on: a step of the wall clock."""
        self._offset = offset_s
