"""What a group usually bears: batch, context, arrivals, prompts, waits; and what computing prompts costs it.

Medians of the newest values from times that no incident touches; where there are none such yet, of all. Small rings:
0.2 MB a group.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumon.explain.quantiles import median, quantiles

_LEAST: Final = 8
_LENGTHS: Final = 24
"""Buckets of prompt lengths, each twice the one before."""
_EACH: Final = 64
_LONG: Final = 900
"""Steps of a second each: a quarter of an hour."""
_SPREAD: Final = 1.4826


class Figures(NamedTuple):
    """Of the values in a ring."""

    median: float
    mean: float
    high: float
    """What one in twenty is above."""
    spread: float
    """Robust standard deviation: 1.4826 times the median distance from the median, which a minority cannot move."""


class Ring:
    """The newest values of something."""

    __slots__ = ("_count", "_known", "_values")

    def __init__(self, size: int = 256) -> None:
        self._values = np.zeros(size)
        self._count = 0
        self._known: Figures | None = None

    def __len__(self) -> int:
        return min(self._count, len(self._values))

    def add(self, value: float) -> None:
        self._values[self._count % len(self._values)] = value
        self._count += 1
        self._known = None

    def figures(self) -> Figures | None:
        """None with fewer than eight values."""
        if len(self) < _LEAST:
            return None
        if self._known is None:
            values = self._values[: len(self)]
            middle, high = quantiles(values, (0.5, 0.95))
            spread = _SPREAD * median(np.abs(values - middle))
            self._known = Figures(middle, float(values.mean()), high, spread)
        return self._known


class Usual:
    """One figure: calm values where there are enough, else all."""

    __slots__ = ("_all", "_calm")

    def __init__(self, size: int = 256) -> None:
        self._calm = Ring(size)
        self._all = Ring(size)

    def add(self, value: float, *, calm: bool) -> None:
        if calm:
            self._calm.add(value)
        if len(self._calm) < _LEAST:
            self._all.add(value)

    def value(self) -> float | None:
        """The median; None while too little is known."""
        known = self._figures()
        return known.median if known is not None else None

    def mean(self) -> float | None:
        """Likewise, the mean."""
        known = self._figures()
        return known.mean if known is not None else None

    def high(self) -> float | None:
        """Likewise, what one in twenty is above."""
        known = self._figures()
        return known.high if known is not None else None

    def above(self, times: float, spreads: float, room: float = 0.0) -> float | None:
        """What is more than chance: so many times the median, and over it by so many spreads; None likewise."""
        known = self._figures()
        return None if known is None else max(times * known.median + room, known.median + spreads * known.spread)

    @property
    def is_calm(self) -> bool:
        """Whether it is known from calm times."""
        return self._calm.figures() is not None

    def _figures(self) -> Figures | None:
        return self._calm.figures() or self._all.figures()


class ByLength:
    """Seconds by the length of a prompt: a median for each doubling, interpolated between them."""

    def __init__(self, *, in_proportion: bool) -> None:
        """in_proportion: whether a longer prompt than is known takes so much longer; else the same."""
        self._in_proportion = in_proportion
        self._buckets = [Usual(_EACH) for _ in range(_LENGTHS)]
        self._lengths = [Usual(_EACH) for _ in range(_LENGTHS)]
        self._known: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def add(self, length: float, seconds: float, *, calm: bool) -> None:
        bucket = min(_LENGTHS - 1, int(math.log2(max(length, 1.0))))
        self._buckets[bucket].add(seconds, calm=calm)
        self._lengths[bucket].add(length, calm=calm)
        self._known = None

    def at(self, lengths: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Of prompts of these lengths; None while nothing is known."""
        if self._known is None:
            calm = any(bucket.is_calm for bucket in self._buckets)
            pairs = [
                (where, value)
                for length, bucket in zip(self._lengths, self._buckets, strict=True)
                if (value := bucket.value()) is not None and (where := length.value()) is not None
                # A length that came only while something was wrong says less than the others do.
                if bucket.is_calm or not calm
            ]
            table = np.array(sorted(pairs)).reshape(-1, 2)
            self._known = (table[:, 0], table[:, 1])
        known, typical = self._known
        if not len(known):
            return None
        more = np.maximum(lengths / known[-1], 1.0) if self._in_proportion else 1.0
        return np.asarray(np.interp(lengths, known, typical) * more, dtype=np.float64)


class Load:
    """What is usual of a group's load."""

    def __init__(self) -> None:
        self.running = Usual(_LONG)
        """Requests decoding at a time."""
        self.context = Usual(_LONG)
        """Tokens of context of one of them."""
        self.arrivals = Usual(_LONG)
        """Requests per second, over half a minute."""
        self.brought = Usual(_LONG)
        """Prompt tokens to be computed per second, likewise."""
        self.queue_s = Usual()
        self.computed = Usual()
        """Prompt tokens to be computed, of a request."""
        self.beside = Usual()
        """Those of others that are computed during a request's own prefill."""
        self.prompt_s = ByLength(in_proportion=True)
        """From admission to the first token, by prompt tokens to be computed."""
        self.token_s = ByLength(in_proportion=False)
        """What a prompt token adds to a step of the others, by the length of its prompt."""
