"""Requests that come alone and wait longer than those that come together: a part of ``detect.batch``.

A request that finds little running should see its first token sooner than one of a burst. Where batches are formed by
waiting for more, it is the other way round, and it shows in the P99 of few requests only. Compared is the time in the
queue where it is told, else the time to first token, and then only while the lone requests' prompts are no longer than
the others'. Servers differ in what ``concurrency`` counts; only its order matters.

Bounded: 512 requests of a pair of server and model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gpumon.model import RequestRecord

_KEPT: Final = 512
_LARGEST_LEAST: Final = 4
"""Where concurrency never was this large, nobody comes in company."""
_LOW: Final = 0.25
"""Concurrency up to which a request is alone, over the largest."""
_PROMPTS: Final = 1.5
"""Lone requests' median prompt over the others' from which times to first token are not compared."""


class _Seen(NamedTuple):
    arrived_s: float
    concurrency: int
    queue_s: float | None
    first_token_s: float | None
    prompt_tokens: int | None


class Waits(NamedTuple):
    """What was compared, seconds; the median and the P99 of the lone requests and of the others."""

    name: str
    """queue_time or time_to_first_token."""
    lone: tuple[float, float]
    others: tuple[float, float]
    lone_requests: int
    other_requests: int
    fill: float
    """Mean over largest concurrency."""
    spacing: float
    """Standard deviation over mean of the time between arrivals."""


@dataclass(slots=True)
class LoneWaits:
    """Of one server and model."""

    _seen: deque[_Seen] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, record: RequestRecord) -> None:
        """A request that ended."""
        if record.concurrency > 0:
            self._seen.append(
                _Seen(
                    record.arrived_s,
                    record.concurrency,
                    record.queue_s,
                    record.time_to_first_token_s,
                    record.prompt_tokens,
                )
            )

    def look(self, oldest_s: float, *, fill: float, spacing: float, least: int) -> Waits | None:
        """Of requests that arrived since; None where there is nothing to compare.

        fill: most that mean over largest concurrency may be. spacing: least standard deviation over mean of the time
        between arrivals. least: fewest lone requests, and half of the fewest others.
        """
        while self._seen and self._seen[0].arrived_s < oldest_s:
            self._seen.popleft()
        if len(self._seen) < 3 * least:
            return None
        concurrencies = [each.concurrency for each in self._seen]
        largest = max(concurrencies)
        filled = sum(concurrencies) / len(concurrencies) / largest
        if largest < _LARGEST_LEAST or filled > fill:
            return None
        variation = _variation([each.arrived_s for each in self._seen])
        if variation <= spacing:
            return None
        low = max(1.0, _LOW * largest)
        lone = [each for each in self._seen if each.concurrency <= low]
        others = [each for each in self._seen if each.concurrency > low]
        name, sides = "queue_time", [_told([each.queue_s for each in side]) for side in (lone, others)]
        if len(sides[0]) < least or len(sides[1]) < 2 * least:
            if _middle_prompt(lone) > _PROMPTS * _middle_prompt(others):
                return None
            name, sides = (
                "time_to_first_token",
                [_told([each.first_token_s for each in side]) for side in (lone, others)],
            )
        if len(sides[0]) < least or len(sides[1]) < 2 * least:
            return None
        return Waits(
            name,
            _quantiles(sides[0]),
            _quantiles(sides[1]),
            len(sides[0]),
            len(sides[1]),
            filled,
            variation,
        )


def _told(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    median, p99 = np.quantile(values, (0.5, 0.99)).tolist()
    return median, p99


def _middle_prompt(side: Sequence[_Seen]) -> float:
    told = [each.prompt_tokens for each in side if each.prompt_tokens is not None]
    return float(np.median(told)) if told else 0.0


def _variation(arrivals: Sequence[float]) -> float:
    spacing = np.diff(np.sort(arrivals))
    mean = float(spacing.mean())
    return float(spacing.std()) / mean if mean > 0 else 0.0
