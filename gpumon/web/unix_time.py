"""Unix time of steady moments, the same one each time it is asked for: what is not new must not look new.

Two clocks cannot be read at once, so the distance between them comes out a little different each time. In truth it is
the same until the wall clock is set anew, which moves it by more than ``SAME_S``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SAME_S: Final = 1e-3


class UnixTime:
    """A function of steady seconds. From any thread."""

    def __init__(self, to_unix: Callable[[float], float]) -> None:
        """to_unix: reads both clocks, the wall clock first."""
        self._to_unix = to_unix
        self._offset_s = to_unix(0.0)

    def __call__(self, at_s: float) -> float:
        offset_s = self._to_unix(0.0)
        if abs(offset_s - self._offset_s) > SAME_S:
            # Whoever is held up between the two clocks reads too little: a second look is hardly held up again.
            self._offset_s = max(offset_s, self._to_unix(0.0))
        return at_s + self._offset_s
