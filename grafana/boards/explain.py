"""The dashboard gpumon-explain."""

from __future__ import annotations

from grafana.kit import Board


def board() -> Board:
    """The dashboard."""
    return Board("gpumon-explain", "gpumon / Explain", "explain", variables=("cluster", "node"))
