"""Figures as a person says them, for summaries of incidents: written as everywhere else (``gpumon.shown``)."""

from __future__ import annotations

from gpumon.shown import percent, shown, shown_change, shown_seconds

__all__ = ["change", "duration", "figure", "percent"]


def duration(seconds: float) -> str:
    """``45 ms``, ``3.2 s``, ``3 min 20 s``."""
    return shown_seconds(seconds)


def figure(value: float) -> str:
    """A bare number, or one whose unit follows: ``0.51``, ``5,812``."""
    return shown(value, "")


def change(before: float, now: float) -> str:
    """``+467 %``, ``x 58`` from ten times on. before: not 0."""
    return shown_change(now / before - 1.0)
