"""Runs sources on their schedules and keeps account of their health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gpumon.model import Item


class Source(Protocol):
    """One origin of samples. Holds no clock, thread, retry or exporter type; opens nothing when constructed."""

    name: str
    """Label value of gpumon_source_*."""

    def read(self, at_s: float) -> Iterable[Item]:
        """All there is to say at this moment: samples, misses and rejections.

        ``at_s``: steady seconds (CLOCK_MONOTONIC). One thing that fails is a Miss and its neighbours go on;
        SourceError only when nothing can be read at all.
        """
        ...
