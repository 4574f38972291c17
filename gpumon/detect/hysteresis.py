"""Conditions that must hold for a while before they count, and are forgiven a short break. State for detectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _State:
    since_s: float
    true_s: float
    """When it was last true."""
    holds: bool


class Held(Generic[Key]):
    """Which of many things fulfil a condition, with a time to begin and a time to end."""

    def __init__(self, *, on_s: float, off_s: float) -> None:
        """on_s: true for this long before it holds. off_s: untrue for this long before it holds no more."""
        self._on_s = on_s
        self._off_s = off_s
        self._states: dict[Key, _State] = {}

    def feed(self, key: Key, is_true: bool, at_s: float, began_s: float | None = None) -> float | None:
        """Tell what is so now; since when the condition has held, None while it does not.

        began_s: when it became true, where that was before at_s: a reading may be of the time since the one before.
        """
        state = self._states.get(key)
        if state is None:
            if not is_true:
                return None
            since_s = at_s if began_s is None else min(began_s, at_s)
            state = self._states[key] = _State(since_s, at_s, at_s - since_s >= self._on_s)
        elif is_true:
            state.true_s = at_s
            state.holds = state.holds or at_s - state.since_s >= self._on_s
        elif not state.holds or at_s - state.true_s >= self._off_s:
            del self._states[key]
            return None
        return state.since_s if state.holds else None

    def keep(self, keys: Iterable[Key]) -> None:
        """Forget all others: things that are gone."""
        wanted = set(keys)
        for key in [key for key in self._states if key not in wanted]:
            del self._states[key]


class Baseline:
    """Median and spread of the newest ``size`` values fed while all was well. Robust: a few outliers move nothing."""

    def __init__(self, size: int, least: int) -> None:
        """least: fewer values than these are no baseline."""
        self._values: deque[float] = deque(maxlen=size)
        self._least = least
        self._median: float | None = None
        """As computed the last time; None when values came since."""

    def feed(self, value: float) -> None:
        """One more value of a healthy time."""
        self._values.append(value)
        self._median = None

    def clear(self) -> None:
        """Begin anew."""
        self._values.clear()
        self._median = None

    def __len__(self) -> int:
        return len(self._values)

    @property
    def known(self) -> bool:
        return len(self._values) >= self._least

    @property
    def median(self) -> float | None:
        """None until there are enough values."""
        if self._median is None and self.known:
            self._median = median(self._values)
        return self._median

    @property
    def spread(self) -> float | None:
        """1.4826 times the median absolute deviation: the standard deviation, were the values normal."""
        if not self.known:
            return None
        middle = median(self._values)
        return 1.4826 * median([abs(value - middle) for value in self._values])
