"""Waiting for other processes, which is all that a test of real processes can do about time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_pause = threading.Event()  # never set


def eventually(look: Callable[[], T | None], what: str, *, within_s: float = 90.0, every_s: float = 0.05) -> T:
    """The first true answer of ``look``; fails with ``what`` and the last answer when there is none in time."""
    end_s = time.monotonic() + within_s
    while True:
        answer = look()
        if answer:
            return answer
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {what}; last seen: {answer!r}"
        _pause.wait(every_s)


def settle(seconds: float) -> None:
    """Let other processes go on for this long."""
    _pause.wait(seconds)
