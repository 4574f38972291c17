"""What witnesses of GPUs have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gpumon.detect.incident import Incident
from gpumon.explain.group import Key
from gpumon.explain.signs import Fact, Sign

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""
GPUS_MAX: Final = 64
"""GPUs remembered: four times as many as a node has, for those whose UUID changes."""


class Seen(NamedTuple):
    """What one reading of a state says."""

    evidence: float
    cap: float
    fact: Fact | None


NOTHING: Final = Seen(0.0, 0.0, None)


class States:
    """Readings of a state, such as a number of links, that are seconds apart: signs of the stretches between them.

    The state changed somewhere between two readings that differ: the one with more evidence counts for all of it.
    """

    def __init__(self, longest_s: float) -> None:
        """longest_s: a stretch is no longer; readings may have been missed."""
        self._longest_s = longest_s
        self._read_s: float | None = None
        self._seen = NOTHING

    def is_new(self, read_s: float) -> bool:
        """Whether a reading is newer than the one before."""
        return self._read_s is None or read_s > self._read_s

    def take(self, cause: str, key: Key, read_s: float, seen: Seen) -> list[Sign]:
        """The next reading: its sign, if there is one."""
        before_s, before = self._read_s, self._seen
        self._read_s, self._seen = read_s, seen
        more = max(seen, before, key=lambda each: each.evidence)
        if before_s is None or more.evidence <= 0:
            return []
        return [Sign(cause, key, max(before_s, read_s - self._longest_s), read_s, *more)]


def ratio(value: float) -> float:
    """Kept between 0 and 1, where rounding or the time of a reading leads it a little out."""
    return min(1.0, max(0.0, value))


def found_on(incidents: Iterable[Incident], *kinds: str) -> frozenset[str]:
    """UUIDs of the GPUs with an open incident of one of these kinds."""
    return frozenset(
        incident.entity.uuid
        for incident in incidents
        if incident.kind in kinds and incident.is_open and incident.entity.uuid
    )
