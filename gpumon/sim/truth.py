"""Keeps the true account of what made tokens late: seconds by cause, exact, for benchmarks only.

A server adds what each step took longer than it would have, by cause, to running sums; all requests of a batch share
a step, so a request's truth is the difference of two snapshots, plus what struck it alone (a preemption). Where several
faults multiply one another, the excess is split by the share of each in the logarithm of the whole factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gpumon.sim.faults import CAUSES

INDEX: Final = {cause: index for index, cause in enumerate(CAUSES)}
_LEAST_S = 1e-6

Truth = tuple[tuple[str, float], ...]
"""Seconds by cause, those above a microsecond, in the order of CAUSES."""


class Slowing(NamedTuple):
    """A factor on a time, and who is to blame for it."""

    factor: float = 1.0
    shares: tuple[tuple[int, float], ...] = ()
    """Index of cause and its share; together 1. Empty where the factor is 1."""


def slowing(factors: Iterable[tuple[str, float]]) -> Slowing:
    """Of several factors by cause; those of at most 1 blame nobody."""
    product, logs = 1.0, []
    for cause, factor in factors:
        product *= factor
        if factor > 1.0:
            logs.append((INDEX[cause], math.log(factor)))
    whole = sum([log for _, log in logs])
    return Slowing(product, tuple([(index, log / whole) for index, log in logs]))


class Ledger:
    """Excess seconds of one server's steps by cause, since the world began."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = [0.0] * len(CAUSES)

    def add(self, cause: int, seconds: float) -> None:
        """``cause``: an index into CAUSES."""
        self.sums[cause] += seconds

    def split(self, shares: Iterable[tuple[int, float]], seconds: float) -> None:
        """Add an excess that has several causes."""
        for cause, share in shares:
            self.sums[cause] += share * seconds

    def snapshot(self) -> list[float]:
        """The sums now."""
        return self.sums.copy()


def between(older: Sequence[float], newer: Sequence[float]) -> list[float]:
    """What was added from one snapshot to another."""
    return [new - old for old, new in zip(older, newer, strict=True)]


def named(seconds: Sequence[float]) -> Truth:
    """As a FinishedRequest tells it."""
    return tuple([(cause, value) for cause, value in zip(CAUSES, seconds, strict=True) if value > _LEAST_S])
