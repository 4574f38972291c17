"""What detectors remember of many things, bounded: things that are gone for a while are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
State = TypeVar("State")


class Kept(Generic[Key, State]):
    """A state for each thing, made when it is first asked for.

    A thing that was not asked for during ``forget_s`` is forgotten at the next look: shorter absences, such as a page
    that could not be read once, change nothing. Of more than ``most`` things the one unseen for longest gives way.
    """

    def __init__(self, make: Callable[[], State], *, forget_s: float = 60.0, most: int = 64) -> None:
        self._make = make
        self._forget_s = forget_s
        self._most = most
        self._states: dict[Key, tuple[State, float]] = {}
        """With the time of the last look, in the order of these times."""

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> Iterator[tuple[Key, State]]:
        """All that are remembered, the one unseen for longest first."""
        return ((key, state) for key, (state, _) in self._states.items())

    def look(self, key: Key, at_s: float) -> State:
        """The state of a thing that is there now."""
        known = self._states.pop(key, None)
        state = known[0] if known is not None and at_s - known[1] < self._forget_s else self._make()
        self._states[key] = (state, at_s)
        if len(self._states) > self._most:
            del self._states[next(iter(self._states))]
        return state

    def sweep(self, at_s: float) -> None:
        """Forget what is gone. Once per step."""
        while self._states:
            key, (_, seen_s) = next(iter(self._states.items()))
            if at_s - seen_s < self._forget_s:
                return
            del self._states[key]
