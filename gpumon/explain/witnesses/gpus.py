"""What witnesses of GPUs have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpumon.detect.incident import Incident

Gpu = tuple[str, ...]
"""Labels gpu and uuid."""
GPUS_MAX: Final = 64
"""GPUs remembered: four times as many as a node has, for those whose UUID changes."""


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
