"""When a latency's P95 has grown faster than the work along a ladder of context lengths: the rule of a cliff.

The work of a prefill doubles from one rung to the next, and attention adds to that; beyond ``RATIO`` something else
does. A few slow requests must not look like a cliff: the ratio must hold, if less, for the low end of what the longer
rung's P95 may be against the high end of the shorter one's, and the median must have grown with it. Used where a
ladder is watched (``detect.context_cliff``) and where one is climbed (``probe``). Pure; seconds.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpumon.requests.windows import Signal

SHARE: Final = 0.95
RATIO: Final = 2.5
"""Of P95 to that of contexts half as long; the default of ``context_cliff`` in docs/DETECTORS.md."""
WORK: Final = 2.0
"""From rung to rung, for which RATIO is meant."""
MEDIAN: Final[dict[int, float]] = {Signal.FIRST_TOKEN: 0.9, Signal.INTER_TOKEN: 0.6}
"""Of the ratio, that the medians must have: some slow requests are no cliff. That of first tokens doubles anyway."""
ALIKE: Final[dict[int, float]] = {Signal.FIRST_TOKEN: 1.0, Signal.INTER_TOKEN: 50.0}
"""Observations that count as one: the tokens of a request, or of a step, tell nearly the same."""
_SURE: Final = 0.8
"""Of the ratio: what is left of it at the ends of the intervals."""
_DEVIATIONS: Final = 1.645


class P95(NamedTuple):
    """Of one rung, with the ends of its 90 % interval and the median."""

    low_s: float
    value_s: float
    high_s: float
    median_s: float
    observations: int


class Pair(NamedTuple):
    """One measure on two rungs."""

    before: P95
    beyond: P95

    @property
    def ratio(self) -> float:
        return self.beyond.value_s / self.before.value_s


def shares(observations: int, alike: float) -> tuple[float, float, float, float]:
    """Which quantiles make a P95, in its order. observations: at least one."""
    margin = _DEVIATIONS * math.sqrt(SHARE * (1 - SHARE) * alike / observations)
    return max(SHARE - margin, 0.0), SHARE, min(SHARE + margin, 1.0), 0.5


def allowed(ratio: float, work: float) -> float:
    """The most that P95 may grow where the work grows so. ratio: the same where it doubles."""
    return ratio * work / WORK


def is_cliff(pair: Pair, ratio: float, median: float) -> bool:
    """Whether P95 grew more than ``ratio``, and not by chance. median: of ratio, that the medians must have."""
    before, beyond = pair
    sure = beyond.low_s > _SURE * ratio * before.high_s
    return pair.ratio > ratio and sure and beyond.median_s > median * ratio * before.median_s
