"""Room for a fixed number of groups: a new one takes the place of that unseen for longest, if it was for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from gpumon.explain.group import Group

GROUPS: Final = 32
IDLE_S: Final = 300.0

State = TypeVar("State")


class GroupRoom(Generic[State]):
    """A state for each group. Not thread-safe."""

    def __init__(self, make: Callable[[float], State], *, most: int = GROUPS, idle_s: float = IDLE_S) -> None:
        """make: a new state, at a time. idle_s: how long a group must be unseen before another takes its place."""
        self._make = make
        self._most = most
        self._idle_s = idle_s
        self._states: dict[Group, State] = {}
        self._seen_s: dict[Group, float] = {}

    def see(self, group: Group, at_s: float) -> State | None:
        """The state of a group that is there now; None where there is no room for it."""
        if group not in self._states:
            if len(self._states) >= self._most:
                oldest = min(self._seen_s, key=self._seen_s.__getitem__)
                if at_s - self._seen_s[oldest] < self._idle_s:
                    return None
                del self._states[oldest], self._seen_s[oldest]
            self._states[group] = self._make(at_s)
        self._seen_s[group] = at_s
        return self._states[group]

    def get(self, group: Group) -> State | None:
        """The state of a group; None where it has none."""
        return self._states.get(group)

    def items(self) -> Iterator[tuple[Group, State]]:
        """All of them, in the order in which they came."""
        return iter(self._states.items())
