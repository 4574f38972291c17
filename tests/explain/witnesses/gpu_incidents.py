"""Incidents of GPUs, for tests of witnesses."""

from __future__ import annotations

from gpumon.detect.detector import gpu_entity
from gpumon.detect.incident import Incident
from tests.detect.scenes import gpu
from tests.explain.witnesses.looks import incident


def gpu_incident(kind: str, index: int = 0, *, closed_s: float | None = None) -> Incident:
    """One of a GPU, open or closed."""
    found = incident(kind, "gpu", "", closed_s=closed_s)
    found.entity = gpu_entity(gpu(index))
    return found
