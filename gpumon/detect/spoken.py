"""Figures as a person says them, for summaries."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``45 ms``, ``3.2 s``: three digits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def change(before: float, now: float) -> str:
    """``+467 %``. before: not 0."""
    return f"{100 * (now / before - 1):+.0f} %"
