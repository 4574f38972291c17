"""What waits to be taken out of the simulated node: bounded, the oldest forgotten first, and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gpumon.sim.state import CollectiveStep, FinishedRequest

Item = TypeVar("Item", FinishedRequest, CollectiveStep)


class Outbox(Generic[Item]):
    """Things that end at a time. Not for several threads at once."""

    def __init__(self, most: int, most_weight: int, weigh: Callable[[Item], int]) -> None:
        """No more than ``most`` are kept, nor more than ``most_weight`` of what ``weigh`` says of each."""
        self.dropped = 0
        self._most = most
        self._most_weight = most_weight
        self._weigh: Callable[[Item], int] = weigh
        self._items: list[Item] = []
        self._weight = 0

    def add(self, items: Sequence[Item]) -> None:
        """Put in what has ended, or will within the step under way."""
        self._items += items
        self._weight += sum([self._weigh(item) for item in items])
        if len(self._items) > self._most or self._weight > self._most_weight:
            self._forget()

    def take(self, until_s: float) -> list[Item]:
        """Those that ended up to a moment, by time of their end."""
        self._items.sort(key=_order)
        count = len(self._items)
        while count and self._items[count - 1].end_s > until_s:
            count -= 1
        taken, self._items = self._items[:count], self._items[count:]
        self._weight = sum([self._weigh(item) for item in self._items])
        return taken

    def _forget(self) -> None:
        """Drop the oldest, a quarter more than must be: it costs a sort."""
        self._items.sort(key=_order)
        count = 0
        while len(self._items) - count > 0.75 * self._most or self._weight > 0.75 * self._most_weight:
            self._weight -= self._weigh(self._items[count])
            count += 1
        del self._items[:count]
        self.dropped += count


def _order(item: FinishedRequest | CollectiveStep) -> tuple[float, int]:
    return item.end_s, item.server
