"""What witnesses have in common: how a figure becomes evidence, and what an open incident adds to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpumon.detect.incident import Incident

CONFIRMED: Final = 0.8
"""Evidence of a condition that a detector has found, too, by its own and stricter definition."""
POINTS: Final = 0.1
"""Evidence from which a figure points at a condition: an incident stays open for a while after it is over."""
CALM: Final = 0.2
"""Evidence up to which a reading is of the usual course, from which the next ones are judged."""


def ramp(value: float, low: float, high: float) -> float:
    """0 up to ``low``, 1 from ``high`` on, a straight line between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def ratio(value: float) -> float:
    """Kept between 0 and 1, where rounding or a counter's time would lead it a little out."""
    return min(1.0, max(0.0, value))


def confirmed(evidence: float, is_found: bool) -> float:
    """Evidence, the more so where a detector has an incident of it open."""
    return max(evidence, CONFIRMED) if is_found and evidence >= POINTS else evidence


def found_on(incidents: Iterable[Incident], *kinds: str) -> frozenset[str]:
    """UUIDs of the GPUs with an open incident of one of these kinds."""
    return frozenset(
        incident.entity.uuid
        for incident in incidents
        if incident.kind in kinds and incident.is_open and incident.entity.uuid
    )
